// Show misleading characters by name: bidirectional marks, invisible characters,
// controls, and lookalikes of a space.
const HIDDEN = new RegExp(
  [
    "\\p{Cc}(?<![\\n\\t])",
    "\\p{Zs}(?<! )",
    "\\p{Cf}|\\p{Cs}|\\p{Zl}|\\p{Zp}",
    "\\p{Default_Ignorable_Code_Point}",
  ].join("|"),
  "gu",
);

export interface Piece {
  text: string;
  isHidden: boolean;
}

export const nameOf = (character: string) =>
  `<U+${character.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}>`;

/** Split a text into visible pieces and the names of misleading characters. */
export function visible(text: string): Piece[] {
  const pieces: Piece[] = [];
  let from = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > from) pieces.push({ text: text.slice(from, found.index), isHidden: false });
    pieces.push({ text: nameOf(found[0]), isHidden: true });
    from = found.index + found[0].length;
  }
  if (from < text.length) pieces.push({ text: text.slice(from), isHidden: false });
  return pieces;
}
