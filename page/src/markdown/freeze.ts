// Incremental lexer. All but the last two blocks are frozen: they keep their identity, so that they are neither
// lexed nor rendered again. Two stay live because a list can still absorb the block after it.
import { type Token, walkTokens } from "marked";
import remend from "remend";
import { type Links, lex, normalised } from "./lex";

const LIVE = 2;
const REMEND = { linkMode: "text-only", htmlTags: false, katex: false } as const;

export class GrowingLexer {
  private text = "";
  private frozen: Token[] = [];
  private frozenEnd = 0;
  private links: Links = {};
  /** Number of formulas in the frozen blocks. */
  private formulas = 0;

  /** Return the blocks of the current text. */
  blocks(given: string, isStreaming: boolean): Token[] {
    const text = normalised(given);
    if (!text.startsWith(this.text)) this.reset();
    this.text = text;
    let { tokens, links } = lex(text.slice(this.frozenEnd), this.links, this.formulas);
    if (this.frozenEnd > 0 && Object.keys(links).length > Object.keys(this.links).length) {
      // A link definition also affects earlier blocks.
      this.reset();
      this.text = text;
      ({ tokens, links } = lex(text));
    }
    this.links = links;
    const live = this.freeze(tokens);
    return [...this.frozen, ...(isStreaming ? this.mended(live) : live)];
  }

  private reset(): void {
    this.text = "";
    this.frozen = [];
    this.frozenEnd = 0;
    this.links = {};
    this.formulas = 0;
  }

  /** Freeze all but the last blocks, and return the rest. */
  private freeze(tokens: Token[]): Token[] {
    const length = tokens.reduce((sum, token) => sum + token.raw.length, 0);
    if (length !== this.text.length - this.frozenEnd) return tokens;
    let cut = tokens.length;
    for (let kept = 0; cut > 0 && kept < LIVE; cut -= 1) if (tokens[cut - 1]!.type !== "space") kept += 1;
    const done = tokens.slice(0, cut);
    this.frozen.push(...done);
    this.frozenEnd += done.reduce((sum, token) => sum + token.raw.length, 0);
    walkTokens(done, (token) => {
      if (token.type === "maths") this.formulas += 1;
    });
    return tokens.slice(cut);
  }

  /** Return the live blocks, with unclosed markers such as `**` closed in the last one. */
  private mended(live: Token[]): Token[] {
    const last = live.at(-1);
    if (!last || (last.type !== "paragraph" && last.type !== "heading" && last.type !== "list")) return live;
    const text = remend(last.raw, REMEND);
    return text === last.raw ? live : [...live.slice(0, -1), ...lex(text, this.links, this.formulas).tokens];
  }
}
