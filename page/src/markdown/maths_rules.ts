// Lexer rules for maths: `$…$`, `\(…\)` in text, and `$$…$$`, `\[…\]` for display. Prices stay text.
import type { TokenizerThis, Tokens } from "marked";

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

// Neither kind of display maths contains a blank line, so that a stray delimiter affects one paragraph at most.
const BLOCKS: [RegExp, RegExp][] = [
  [/^ {0,3}\$\$(?!\$)((?:\\[\s\S]|(?!\n[ \t]*\n)[^$\\])*)\$\$(?!\$)[ \t]*(?:\n|$)/, /^ {0,3}\$\$(?!\$)/],
  [/^ {0,3}\\\[((?:(?!\\\]|\n[ \t]*\n)[\s\S])*)\\\][ \t]*(?:\n|$)/, /^ {0,3}\\\[/],
];
const BLANK_LINE = /\n[ \t]*\n/;
const NEXT_BLOCK = /\n(?:[ \t]*\n| {0,3}(?:\$\$|\\\[))/;

const DISPLAY = [
  /^\$\$(?!\$)((?:\\[\s\S]|(?!\n[ \t]*\n)[^$\\])+)\$\$(?!\$)/,
  /^\\\[((?:(?!\\\]|\n[ \t]*\n)[\s\S])+)\\\]/,
];
const PARENTHESES = /^\\\(((?:(?!\\\)|\n[ \t]*\n)[\s\S])+)\\\)/;
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

function block(this: TokenizerThis, src: string): MathsToken | undefined {
  for (const [whole, opener] of BLOCKS) {
    if (!opener.test(src)) continue;
    const found = whole.exec(src);
    if (found) return isFit(found[1]!, MAX_DISPLAY) ? token(found[0], found[1]!, true) : undefined;
    // The rest of a growing text stays one block, or its lines would be frozen as lists and headings.
    const rest = src.replace(opener, "");
    const isClosed = rest.includes(src.trimStart().startsWith("$$") ? "$$" : "\\]");
    return isClosed || rest.trim() === "" || BLANK_LINE.test(src) || src.length > MAX_DISPLAY
      ? undefined
      : token(src, rest, true, true);
  }
}

const isFit = (text: string, most: number) => text.trim() !== "" && text.length <= most && isTex(text);

function inline(this: TokenizerThis, src: string, tokens: Tokens.Generic[]): MathsToken | undefined {
  if (src[0] === "\\") {
    const displayed = DISPLAY[1]!.exec(src);
    if (displayed) return isFit(displayed[1]!, MAX_DISPLAY) ? token(displayed[0], displayed[1]!, true) : undefined;
    const found = PARENTHESES.exec(src);
    return found && found[1]!.trim() && found[1]!.length <= MAX_INLINE ? token(found[0], found[1]!, false) : undefined;
  }
  if (src[0] !== "$" || WORD.test(tokens.at(-1)?.raw.at(-1) ?? "")) return;
  const displayed = DISPLAY[0]!.exec(src);
  if (displayed) return isFit(displayed[1]!, MAX_DISPLAY) ? token(displayed[0], displayed[1]!, true) : undefined;
  const found = DOLLARS.exec(src);
  if (!found || found[1]!.length > MAX_INLINE || isPrice(found[1]!)) return;
  return token(found[0], found[1]!, false);
}

/** Where a paragraph ends because display maths may start. */
function nextBlock(src: string): number | undefined {
  const found = NEXT_BLOCK.exec(src);
  return found && /[$[]$/.test(found[0]) ? found.index : undefined;
}

/** Options of marked's lexer. */
export const MATHS = {
  block: [block],
  startBlock: [nextBlock],
  inline: [inline],
  startInline: [(src: string) => src.search(/\$|\\[([]/)],
  renderers: {},
  childTokens: {},
};
