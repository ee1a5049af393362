// Bounded Markdown lexer. Text that is too deep, too long or breaks the lexer is shown as plain text.
import { Lexer, type MarkedOptions, type Token, type TokensList } from "marked";
import { countFrom, MATHS } from "./maths_rules";

const MAX_INLINE = 8 * 1024;
/** Maximum depth of quotes or lists. Deeper ones overflow the stack or take seconds. */
const MAX_DEPTH = 32;
const DEEP = new RegExp(
  `^(?:[ \\t]*>){${MAX_DEPTH + 1}}|^[ \\t]{${MAX_DEPTH * 4}}[ \\t]*(?:[-*+]|\\d+[.)])[ \\t]`,
  "m",
);
const OPTIONS = { gfm: true, breaks: false, pedantic: false, extensions: MATHS } as unknown as MarkedOptions;

export type Links = TokensList["links"];

export interface Lexed {
  tokens: Token[];
  /** Link definitions in the text (`[name]: url`). */
  links: Links;
}

/** A block of text that is not Markdown. */
export function plain(text: string): Token {
  return { type: "plain", raw: text, text } as Token;
}

export const normalised = (text: string) => text.replace(/\r\n?/g, "\n");

/** Lex a text into blocks. `links` are definitions from earlier text, `formulas` is the number of formulas in it. */
export function lex(text: string, links: Links = {}, formulas = 0): Lexed {
  if (DEEP.test(text)) return { tokens: [plain(text)], links };
  try {
    const lexer = new Lexer(OPTIONS);
    lexer.tokens.links = { ...links };
    countFrom(lexer, formulas);
    lexer.blockTokens(text, lexer.tokens);
    for (const { src, tokens } of lexer.inlineQueue) {
      if (src.length > MAX_INLINE) tokens.push({ type: "text", raw: src, text: src, escaped: false } as Token);
      else lexer.inlineTokens(src, tokens);
    }
    return { tokens: [...lexer.tokens], links: lexer.tokens.links };
  } catch {
    return { tokens: [plain(text)], links };
  }
}
