// Line-by-line diff of two texts.

export interface Line {
  kind: "same" | "old" | "new";
  text: string;
}

/** Maximum number of lines to compare. Longer texts are shown whole, the old one first. */
const MAX_LINES = 500;

export function diffOf(before: string, after: string): Line[] {
  const old = before.split("\n");
  const now = after.split("\n");
  if (old.length > MAX_LINES || now.length > MAX_LINES) return [...lines("old", old), ...lines("new", now)];
  const common = lengths(old, now);
  const found: Line[] = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      found.push({ kind: "same", text: old[i]! });
      i += 1;
      j += 1;
    } else if (j >= now.length || (i < old.length && common[i + 1]![j]! >= common[i]![j + 1]!)) {
      found.push({ kind: "old", text: old[i]! });
      i += 1;
    } else {
      found.push({ kind: "new", text: now[j]! });
      j += 1;
    }
  }
  return found;
}

const lines = (kind: Line["kind"], texts: string[]): Line[] => texts.map((text) => ({ kind, text }));

/** Return the length of the longest common subsequence from each pair of lines on. */
function lengths(old: string[], now: string[]): number[][] {
  const found = Array.from({ length: old.length + 1 }, () => new Array<number>(now.length + 1).fill(0));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      found[i]![j] = old[i] === now[j] ? found[i + 1]![j + 1]! + 1 : Math.max(found[i + 1]![j]!, found[i]![j + 1]!);
    }
  }
  return found;
}
