// Filters of the rows, and keyboard navigation between them.
import type { Item, Row, RowKind, Timeline } from "./fold";

export type Filter = "errors" | "tools" | "approvals" | "unknown";
export const FILTERS: Filter[] = ["errors", "tools", "approvals", "unknown"];

const KINDS: Record<Filter, (row: Row) => boolean> = {
  errors: isError,
  tools: (row) => ["tool", "stage"].includes(row.kind),
  approvals: (row) => row.kind === "wait",
  unknown: (row) => row.kind === "unknown",
};

export function isError(row: Row): boolean {
  return row.status === "failed" && row.kind !== ("run" satisfies RowKind);
}

/** Return the rows that match a filter and a text, with their ancestors. */
export function shownRows(rows: Row[], filter: Filter | null, search: string): Row[] {
  const wanted = search.trim().toLowerCase();
  if (!filter && !wanted) return rows;
  const keep = new Set<Row>();
  const path: Row[] = [];
  for (const row of rows) {
    path.length = Math.min(path.length, row.depth);
    path[row.depth] = row;
    if ((!filter || KINDS[filter](row)) && (!wanted || holds(row, wanted))) {
      for (const each of path) if (each) keep.add(each);
    }
  }
  return rows.filter((row) => keep.has(row));
}

function holds(row: Row, wanted: string): boolean {
  if (row.label.toLowerCase().includes(wanted) || row.text.toLowerCase().includes(wanted)) return true;
  return row.items.some((item) => JSON.stringify(item.value).toLowerCase().includes(wanted));
}

/** Return the item with this sequence number, or the next one. */
export function itemAt(timeline: Timeline, seq: number): Item | null {
  return timeline.items.find((item) => item.seq >= seq) ?? timeline.items.at(-1) ?? null;
}

export type Move = "next" | "previous" | "next-step" | "previous-step" | "next-error";

/** Return the item that a key moves to. */
export function moved(timeline: Timeline, from: Item | null, move: Move): Item | null {
  const { items, steps } = timeline;
  const index = from?.index ?? -1;
  switch (move) {
    case "next":
      return items[index + 1] ?? from;
    case "previous":
      return items[Math.max(0, index - 1)] ?? null;
    case "next-step":
      return steps.map((step) => step.items[0]!).find((item) => item.index > index) ?? from;
    case "previous-step":
      return steps.map((step) => step.items[0]!).findLast((item) => item.index < index) ?? from;
    case "next-error":
      return items.find((item) => item.index > index && isError(item.row) && item.row !== from?.row) ?? from;
  }
}
