// Lexer rules for maths: `$…$`, `\(…\)` in text, and `$$…$$`, `\[…\]` for display. Prices stay text.
import type { Lexer, TokenizerThis, Tokens } from "marked";

export interface MathsToken extends Tokens.Generic {
  type: "maths";
  raw: string;
  /** TeX source, without delimiters. */
  text: string;
  isDisplay: boolean;
  /** Whether the text ends before the closing delimiter. */
  isOpen: boolean;
}

const MAX_INLINE = 1000;
const MAX_DISPLAY = 4000;

const OPENER = /^ {0,3}(\$\$(?!\$)|\\\[)/;
const LINE_END = /[ \t]*(?:\n|$)/y;
// Display maths contains no blank line, so that a stray delimiter affects one paragraph at most.
const BLANK_LINE = /\n[ \t]*\n/;
const NEXT_BLOCK = /\n(?:[ \t]*\n| {0,3}(?:\$\$|\\\[))/g;
/** Most paragraphs of a text that end at display maths. Each costs the lexer a look at all that follows. */
const MAX_CUTS = 50;
/** Most formulas in a text. Further ones stay source. */
const MAX_FORMULAS = 1000;
// As Pandoc has it: no space inside either dollar. A word may follow only as in `$n$th`.
const DOLLARS =
  /^\$(?![\s$])((?:\\[^\n]|[^$\\\n])*[^\s$\\]|(?:\\[^\n]|[^$\\\n])*\\[^\s])\$(?=$|[^\w$]|(?:th|st|nd|rd|s)\b)/;
const WORD = /[\p{L}\p{N}_$\\]/u;

/** Return whether `$…$` is money and what follows it: `5 per month or 10`. */
function isPrice(text: string): boolean {
  if (!/^[\d.,]/.test(text)) return false;
  return /[\s\d][a-z]{3,}|\s(?:to|or|an?|in|on|at|is)\s/i.test(text.replace(/\\[a-z]+(?:\s*\{[^}]*\})?/gi, ""));
}

/** Return whether the text between two `$$` can be TeX. `$$ (moderate) or $$` is a price range. */
const isTex = (text: string) => /[\\^_={}<>+*/|]|^\s*\S+\s*$/.test(text);

function token(raw: string, text: string, isDisplay: boolean, isOpen = false): MathsToken {
  return { type: "maths", raw, text: text.trim(), isDisplay, isOpen };
}

/** Position of the closing delimiter. -1 if the text ends before it, null if the text cannot be TeX. */
function closing(text: string, delimiter: string): number | null {
  const found = delimiter === "$$" ? /\\[\s\S]|\$/g : /\\[\s\S]/g;
  for (const { 0: mark, index } of text.matchAll(found)) {
    if (mark === delimiter) return index;
    // Maths does not nest. This also bounds the search in a text of opening delimiters.
    if (mark === "\\(" || mark === "\\[") return null;
    if (mark !== "$") continue;
    if (index + 1 === text.length) return -1;
    return text[index + 1] === "$" && text[index + 2] !== "$" ? index : null;
  }
  return -1;
}

/** Return the TeX between delimiters at the start of a text. Bounded, because the model may never close them. */
function between(src: string, start: number, delimiter: string, most: number): string | null {
  const text = src.slice(start, start + most + delimiter.length + 1);
  const end = closing(text, delimiter);
  if (end === null || end < 0 || end > most) return null;
  const found = text.slice(0, end);
  return found.trim() === "" || BLANK_LINE.test(found) ? null : found;
}

function block(src: string): MathsToken | undefined {
  const opener = OPENER.exec(src.slice(0, 6));
  if (!opener) return;
  const start = opener[0].length;
  const delimiter = opener[1] === "$$" ? "$$" : "\\]";
  const text = between(src, start, delimiter, MAX_DISPLAY);
  if (text !== null) {
    LINE_END.lastIndex = start + text.length + 2;
    const end = LINE_END.exec(src);
    return end && isTex(text) ? token(src.slice(0, end.index + end[0].length), text, true) : undefined;
  }
  // The rest of a growing text stays one block, or its lines would be frozen as lists and headings.
  const rest = src.slice(start, start + MAX_DISPLAY + 1);
  if (rest.length > MAX_DISPLAY || rest.trim() === "" || closing(rest, delimiter) !== -1) return;
  return BLANK_LINE.test(rest) ? undefined : token(src, rest, true, true);
}

type Rule = (this: TokenizerThis, src: string, tokens: Tokens.Generic[]) => MathsToken | undefined;

/** Apply a rule, up to a number of formulas in one text. */
function counted(rule: (src: string, tokens: Tokens.Generic[]) => MathsToken | undefined): Rule {
  return function (src, tokens) {
    const count = formulas.get(this.lexer) ?? 0;
    const found = count < MAX_FORMULAS ? rule(src, tokens) : undefined;
    if (found) formulas.set(this.lexer, count + 1);
    return found;
  };
}

function formula(src: string, tokens: Tokens.Generic[]): MathsToken | undefined {
  if (src[0] === "\\") {
    if (src[1] !== "(" && src[1] !== "[") return;
    const isDisplay = src[1] === "[";
    const text = between(src, 2, isDisplay ? "\\]" : "\\)", isDisplay ? MAX_DISPLAY : MAX_INLINE);
    return text === null || (isDisplay && !isTex(text))
      ? undefined
      : token(src.slice(0, text.length + 4), text, isDisplay);
  }
  if (src[0] !== "$" || WORD.test(tokens.at(-1)?.raw.at(-1) ?? "")) return;
  if (src[1] === "$") {
    const text = src[2] === "$" ? null : between(src, 2, "$$", MAX_DISPLAY);
    return text === null || !isTex(text) ? undefined : token(src.slice(0, text.length + 4), text, true);
  }
  const found = DOLLARS.exec(src.slice(0, MAX_INLINE + 8));
  return found && !isPrice(found[1]!) ? token(found[0], found[1]!, false) : undefined;
}

const cuts = new WeakMap<object, number>();
const formulas = new WeakMap<object, number>();

/** Make a lexer count the formulas of earlier text, too. */
export function countFrom(lexer: Lexer, earlier: number): void {
  formulas.set(lexer, earlier);
}

/** Return where a paragraph ends because display maths starts. */
function nextBlock(this: TokenizerThis, src: string): number | undefined {
  const made = cuts.get(this.lexer) ?? 0;
  if (made >= MAX_CUTS) return;
  for (const found of src.matchAll(NEXT_BLOCK)) {
    if (!/[$[]$/.test(found[0])) return;
    if (!block(src.slice(found.index + 1))) continue;
    cuts.set(this.lexer, made + 1);
    return found.index;
  }
}

/** Options of marked's lexer. */
export const MATHS = {
  block: [counted(block)],
  startBlock: [nextBlock],
  inline: [counted(formula)],
  startInline: [(src: string) => src.search(/\$|\\[([]/)],
  renderers: {},
  childTokens: {},
};
