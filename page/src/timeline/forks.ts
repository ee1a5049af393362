// What can be changed where a run is continued, and how a fork differs from its original. Pure.
import type { Json, RunRecord } from "../api";
import { type Item, type JsonObject, object, type Row, type StepUsage, type Timeline } from "./fold";

/** Where a run was forked from. `run` is null if that was deleted. */
export interface Origin {
  chat: string;
  run: string | null;
  at: number;
  changes: JsonObject;
}

/** Tools whose results may be changed: all, or these. Null means that the run cannot be continued. */
export type Changeable = boolean | string[] | null;

export interface Change {
  kind: "none" | "result" | "deny" | "message" | "model";
  /** Last record to keep. */
  at: number;
  call?: string;
  tool?: string;
  /** The recorded result. */
  value?: Json;
}

/** Return what a user may change at an item. The first one keeps everything as it was. */
export function changesAt({ items }: Timeline, item: Item, changeable: Changeable): Change[] {
  const changes: Change[] = [
    { kind: "none", at: item.seq },
    { kind: "message", at: item.seq },
    { kind: "model", at: item.seq },
  ];
  const id = callOf(item);
  const call = items.find(({ type, value }) => type === "tool-call" && value.id === id);
  if (!id || !call || call.value.provider_executed === true) return changes;
  const tool = String(call.value.name);
  const isIn = (type: string) => items.some((one) => one.type === type && callOf(one) === id);
  const isOpen = changeable === true || (Array.isArray(changeable) && changeable.includes(tool));
  // Results of other calls of the step are kept, so that they are not called again.
  const next = items.find(({ type, seq }) => (type === "request-sent" || type === "step-start") && seq > call.seq);
  const at = next ? next.seq - 1 : items.at(-1)!.seq;
  if (!items.some(({ type, seq }) => type === "step-finish" && seq > call.seq && seq <= at)) return changes;
  const result = items.findLast(
    ({ type, value }) => type === "tool-result" && value.id === id && value.preliminary !== true,
  );
  if (isOpen || isIn("approval-asked")) changes.unshift({ kind: "deny", at, call: id, tool });
  if (isOpen) changes.unshift({ kind: "result", at, call: id, tool, value: result?.value.result ?? "" });
  return changes;
}

function callOf({ type, value }: Item): string | null {
  const id =
    type === "tool-call" || type === "tool-result" || type.startsWith("tool-input")
      ? value.id
      : (value.call_id ?? object(value.approval).call_id ?? object(value.decision).call_id);
  return typeof id === "string" ? id : null;
}

/** Return the JSON that a user has written instead of a result, which is a text if that was one. */
export function readValue(text: string, before: Json | undefined): Json {
  return typeof before === "string" ? text : JSON.parse(text);
}

export interface Entry {
  row: Row;
  /** What it says: the text of an answer, or the result of a call. */
  text: string;
  differs: boolean;
}

export interface Side {
  entries: Entry[];
  usage: StepUsage;
}

export interface Comparison {
  /** Records that both begin with. */
  common: number;
  original: Side;
  fork: Side;
}

/** Compare two runs, of which one was forked from the other. */
export function compare(records: [RunRecord[], RunRecord[]], timelines: [Timeline, Timeline]): Comparison {
  const [before, after] = records;
  let common = 0;
  while (common < before.length && common < after.length && essence(before[common]!) === essence(after[common]!)) {
    common += 1;
  }
  const first = records.map((each) => each[common]?.seq ?? Number.POSITIVE_INFINITY);
  const entries = timelines.map(({ rows }, side) =>
    rows.filter((row) => isShown(row, first[side]!)).map((row) => ({ row, text: textOf(row), differs: true })),
  ) as [Entry[], Entry[]];
  align(...entries);
  const forked = timelines[1].items.findLast(({ type }) => type === "forked")?.seq ?? 0;
  return {
    common,
    original: { entries: entries[0], usage: spent(timelines[0], 0) },
    fork: { entries: entries[1], usage: spent(timelines[1], forked) },
  };
}

const OWN_IDS = /\b(run|approval)_[0-9a-f]{32}\b/g;

/** Return a record without what is always different in a fork: its ids, and the worker of the run. */
function essence({ seq, kind, fact, parts }: RunRecord): string {
  const body = object(fact);
  const shown = body.type === "run-started" ? { ...body, details: null } : (fact ?? parts);
  return JSON.stringify([seq, kind, shown]).replace(OWN_IDS, "$1");
}

const UNSHOWN = new Set(["request-sent", "response-received", "forked"]);

function isShown(row: Row, first: number): boolean {
  if (row.kind === "run" || row.kind === "step" || row.kind === "stage") return false;
  return row.items.some(({ seq, type }) => seq >= first && !UNSHOWN.has(type));
}

function textOf(row: Row): string {
  if (row.kind !== "tool") return row.text;
  const of = (type: string) => row.items.findLast((item) => item.type === type)?.value;
  const value = of("tool-result")?.result ?? of("tool-call")?.input ?? "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Above this number of pairs, only an equal entry at any place is looked for. */
const MOST_PAIRS = 250_000;

/** Mark the entries that both sides have, in the same order. */
function align(left: Entry[], right: Entry[]): void {
  const [a, b] = [left, right].map((side) =>
    side.map(({ row, text }) => [row.kind, row.label, row.status, text].join("\n")),
  ) as [string[], string[]];
  if (a.length * b.length > MOST_PAIRS) {
    for (const [index, key] of a.entries()) left[index]!.differs = !b.includes(key);
    for (const [index, key] of b.entries()) right[index]!.differs = !a.includes(key);
    return;
  }
  const longest = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      longest[i]![j] = a[i] === b[j] ? longest[i + 1]![j + 1]! + 1 : Math.max(longest[i + 1]![j]!, longest[i]![j + 1]!);
    }
  }
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) {
      left[i]!.differs = false;
      right[j]!.differs = false;
      i += 1;
      j += 1;
    } else if (longest[i + 1]![j]! >= longest[i]![j + 1]!) i += 1;
    else j += 1;
  }
}

/** Return what the steps after a record used. The cost is null if a price is unknown. */
function spent({ steps }: Timeline, after: number): StepUsage {
  const total: StepUsage = { input: 0, cached: 0, output: 0, cost: 0 };
  for (const { usage, items } of steps) {
    if (!usage || items.at(-1)!.seq <= after) continue;
    total.input += usage.input;
    total.cached += usage.cached;
    total.output += usage.output;
    total.cost = total.cost === null || usage.cost === null ? null : total.cost + usage.cost;
  }
  return total;
}
