import type { Token, Tokens } from "marked";
import type { ReactNode } from "react";
import { CopyButton } from "../ui/copy";
import { words } from "../words";
import { unmarked } from "./chips";

/** A table that scrolls sideways, with a button that copies it as CSV. */
export function TableFigure({ token, children }: { token: Tokens.Table; children: ReactNode }) {
  return (
    <div className="table-figure">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <div className="table" tabIndex={0}>
        {children}
      </div>
      <CopyButton text={() => csvOf(token)} label={words.copyCsv} />
    </div>
  );
}

/** Return a table as CSV (RFC 4180). */
export function csvOf({ header, rows }: Tokens.Table): string {
  return [header, ...rows].map((row) => row.map(({ tokens }) => field(textOf(tokens))).join(",")).join("\r\n");
}

const NUMBER = /^[+-]?[\d.,\s]*%?$/;

function field(text: string): string {
  // Spreadsheets run what looks like a formula.
  const safe = /^[=+@\t\r-]/.test(text) && !NUMBER.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}

function textOf(tokens: Token[]): string {
  const text = tokens
    .map((token) => {
      if (token.type === "br") return "\n";
      if (token.type === "image" || !("tokens" in token) || !token.tokens)
        return "text" in token ? token.text : token.raw;
      return textOf(token.tokens);
    })
    .join("");
  return unmarked(text).text.trim();
}
