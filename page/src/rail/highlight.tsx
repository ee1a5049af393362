// Marks the words of a search in a title or a snippet.
import type { ReactNode } from "react";

/** Split a text at every occurrence of the search, ignoring case. Every second piece is one. */
export function piecesOf(text: string, search: string): string[] {
  const words = search.trim().split(/\s+/).filter(Boolean);
  if (words.length === 0) return [text];
  const pattern = words.map((word) => word.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")).join("\\s+");
  return text.split(new RegExp(`(${pattern})`, "iu"));
}

export function Highlighted({ text, search }: { text: string; search: string }): ReactNode {
  return piecesOf(text, search).map((piece, index) => (index % 2 === 1 ? <mark key={index}>{piece}</mark> : piece));
}
