// Where citations stand in a text. Marks of two private characters are put into the source before it is lexed, so that a
// chip stands at the end of its span whatever Markdown is around it; those characters cannot come from the model.
const OPEN = "\uE000";
const CLOSE = "\uE001";
const MARK = /\uE000(\d+)\uE001/g;
const PRIVATE = /[\uE000\uE001]/g;
const MARKER = /[*_~`]/;

export interface Citation {
  /** Where the span ends, in UTF-16 units of the text. */
  end: number;
  /** Where a link begins that the chip replaces, up to `end`. */
  from?: number;
  /** The number of the source. */
  number: number;
}

/** The text with a mark at the end of each span. */
export function marked(text: string, citations: Citation[]): string {
  const clean = text.replace(PRIVATE, "\uFFFD");
  if (citations.length === 0) return clean;
  const at = new Map<number, number[]>();
  const cuts = new Map<number, number>();
  for (const { end, number, from } of citations) {
    if (from !== undefined) cuts.set(end, Math.min(from, cuts.get(end) ?? from));
    let place = Math.min(Math.max(end, 0), clean.length);
    // Not between the characters of one marker (`*|*`), which would no longer be one.
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

/** A text in pieces: strings, and the numbers of the chips between them. */
export function pieces(text: string): (string | number)[] {
  return text
    .split(MARK)
    .flatMap<string | number>((piece, index) => (index % 2 === 1 ? [Number(piece)] : piece ? [piece] : []));
}

/** The text without marks, and the chips that were in it. */
export function unmarked(text: string): { text: string; numbers: number[] } {
  const found = pieces(text);
  return {
    text: found.filter((piece) => typeof piece === "string").join(""),
    numbers: found.filter((piece) => typeof piece === "number"),
  };
}

/** The place in UTF-16 units of the n-th character of a text: the server counts characters, not units. */
export function unitsOf(text: string, characters: number): number {
  let units = 0;
  for (let left = characters; left > 0 && units < text.length; left -= 1) {
    units += text.codePointAt(units)! > 0xffff ? 2 : 1;
  }
  return units;
}
