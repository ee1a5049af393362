// Lexes a text that grows. All but the last two blocks are frozen: they keep their identity, so that they are neither
// lexed nor rendered again. One would not be enough: a list can still take in what follows it.
import type { Token } from "marked";
import remend from "remend";
import { type Links, lex, normalised } from "./lex";

const LIVE = 2;
const REMEND = { linkMode: "text-only", htmlTags: false } as const;

export class GrowingLexer {
  private text = "";
  private frozen: Token[] = [];
  private frozenEnd = 0;
  private links: Links = {};

  /** The blocks of the text as it is now. */
  blocks(given: string, isStreaming: boolean): Token[] {
    const text = normalised(given);
    if (!text.startsWith(this.text)) this.reset();
    this.text = text;
    let { tokens, links } = lex(text.slice(this.frozenEnd), this.links);
    if (this.frozenEnd > 0 && Object.keys(links).length > Object.keys(this.links).length) {
      // A definition also changes the links of the blocks before it.
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
  }

  /** Freezes all but the last blocks of these, which are returned. */
  private freeze(tokens: Token[]): Token[] {
    const length = tokens.reduce((sum, token) => sum + token.raw.length, 0);
    if (length !== this.text.length - this.frozenEnd) return tokens;
    let cut = tokens.length;
    for (let kept = 0; cut > 0 && kept < LIVE; cut -= 1) if (tokens[cut - 1]!.type !== "space") kept += 1;
    const done = tokens.slice(0, cut);
    this.frozen.push(...done);
    this.frozenEnd += done.reduce((sum, token) => sum + token.raw.length, 0);
    return tokens.slice(cut);
  }

  /** The live blocks, with what is open in the last one closed: a `**` that has come, but not yet its partner. */
  private mended(live: Token[]): Token[] {
    const last = live.at(-1);
    if (!last || (last.type !== "paragraph" && last.type !== "heading" && last.type !== "list")) return live;
    const text = remend(last.raw, REMEND);
    return text === last.raw ? live : [...live.slice(0, -1), ...lex(text, this.links).tokens];
  }
}
