// Characters that deceive a reader are shown as their names: marks that turn the direction of text, invisible ones,
// controls, and what only looks like a space.
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

/** The text in pieces: what is seen as it is, and the names of what would not be seen. */
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
