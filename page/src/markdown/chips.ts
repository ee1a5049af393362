// Citations in a text. Marks of two private-use characters are inserted before lexing, so that a chip
// is placed at the end of its span whatever Markdown surrounds it. Model output cannot contain them.
const OPEN = "\uE000";
const CLOSE = "\uE001";
const MARK = /\uE000(\d+)\uE001/g;
const PRIVATE = /[\uE000\uE001]/g;
const MARKER = /[*_~`$]/;

export interface Citation {
  /** End of the span, in UTF-16 units. */
  end: number;
  /** Start of the link that the chip replaces, up to `end`. */
  from?: number;
  /** Number of the source. */
  number: number;
}

/** Insert a mark at the end of each span. */
export function marked(text: string, citations: Citation[]): string {
  const clean = text.replace(PRIVATE, "\uFFFD");
  if (citations.length === 0) return clean;
  const at = new Map<number, number[]>();
  const cuts = new Map<number, number>();
  for (const { end, number, from } of citations) {
    if (from !== undefined) cuts.set(end, Math.min(from, cuts.get(end) ?? from));
    let place = Math.min(Math.max(end, 0), clean.length);
    // Do not split a Markdown marker (`*|*`).
    while (place > 0 && place < clean.length && MARKER.test(clean[place]!) && clean[place] === clean[place - 1])
      place += 1;
    const numbers = at.get(place) ?? [];
    if (!numbers.includes(number)) at.set(place, [...numbers, number]);
  }
  let result = "";
  let from = 0;
  for (const place of [...at.keys()].sort((a, b) => a - b)) {
    result +=
      clean.slice(from, Math.max(from, cuts.get(place) ?? place)) +
      at
        .get(place)!
        .map((number) => OPEN + number + CLOSE)
        .join("");
    from = place;
  }
  return result + clean.slice(from);
}

/** Split a text into strings and the chip numbers between them. */
export function pieces(text: string): (string | number)[] {
  return text
    .split(MARK)
    .flatMap<string | number>((piece, index) => (index % 2 === 1 ? [Number(piece)] : piece ? [piece] : []));
}

/** Remove the marks from a text, and return their chips too. */
export function unmarked(text: string): { text: string; numbers: number[] } {
  const found = pieces(text);
  return {
    text: found.filter((piece) => typeof piece === "string").join(""),
    numbers: found.filter((piece) => typeof piece === "number"),
  };
}

/** Convert a character index to UTF-16 units. The server counts characters. */
export function unitsOf(text: string, characters: number): number {
  let units = 0;
  for (let left = characters; left > 0 && units < text.length; left -= 1) {
    units += text.codePointAt(units)! > 0xffff ? 2 : 1;
  }
  return units;
}
