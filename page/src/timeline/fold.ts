// Pure fold of a run's records into timeline rows. Times are milliseconds since the first record.
import type { Json, RunRecord } from "../api";
import { timelineWords } from "./words";

export type RowKind =
  | "message"
  | "run"
  | "step"
  | "reasoning"
  | "text"
  | "tool"
  | "stage"
  | "wait"
  | "file"
  | "note"
  | "unknown"
  | "error";
export type RowStatus = "open" | "done" | "failed" | "denied" | "stopped";
export type JsonObject = { [key: string]: Json };

/** A part of the stream, or a state transition. */
export interface Item {
  /** Position among all items of the run. */
  index: number;
  seq: number;
  time: number;
  /** Type of the part, or kind of the state transition. */
  type: string;
  value: JsonObject;
  /** The provider's raw event, if the log has it. */
  raw: Json | undefined;
  blobs: string[];
  row: Row;
}

export interface Row {
  id: string;
  kind: RowKind;
  label: string;
  depth: number;
  start: number;
  /** End time. Null while it is open. */
  end: number | null;
  status: RowStatus;
  /** True if the provider runs it. */
  isHosted: boolean;
  items: Item[];
  children: Row[];
  usage: StepUsage | null;
  /** Text of the block so far. */
  text: string;
}

export interface StepUsage {
  input: number;
  cached: number;
  output: number;
  cost: number | null;
}

export interface Timeline {
  rows: Row[];
  items: Item[];
  steps: Row[];
  /** Times of all events, in order. */
  times: number[];
  /** Start time, in seconds since 1970. Null if unknown. */
  began: number | null;
  end: number;
  usage: StepUsage | null;
  status: RowStatus;
  /** Number of unknown items. */
  unknown: number;
}

/** Kind of the part that marks a call as covered by a remembered approval. */
const CALL_GRANTED = "sidestream.call-granted";
/** Milliseconds between two records of a file without timestamps. */
const UNTIMED_MS = 10;

export function fold(records: RunRecord[]): Timeline {
  const state = new Folding(records);
  for (const record of records) state.feed(record);
  return state.timeline();
}

/** State of one nesting level: a run, or a subagent's run inside a call. */
class Level {
  run: Row | null = null;
  step: Row | null = null;
  blocks = new Map<string, Row>();
  calls = new Map<string, Row>();
  inner = new Map<string, Level>();
  constructor(
    readonly depth: number,
    readonly parent: Row | null,
  ) {}
}

class Folding {
  private roots: Row[] = [];
  private items: Item[] = [];
  private steps: Row[] = [];
  private times: number[] = [];
  private readonly began: number | null;
  private now = 0;
  private before = 0;
  private record!: RunRecord;
  private readonly top = new Level(0, null);
  private usage: StepUsage | null = null;
  private unknown = 0;

  constructor(records: RunRecord[]) {
    this.began = records[0]?.time || null;
  }

  feed(record: RunRecord): void {
    this.record = record;
    this.before = this.now;
    const elapsed = this.began ? (record.time - this.began) * 1000 : this.times.length * UNTIMED_MS;
    this.now = Math.max(this.now, elapsed); // The clock may have been set back.
    this.times.push(this.now);
    if (record.damaged) {
      this.add(this.point(this.top, "error", "Unreadable record"), "damaged", {}).status = "failed";
    } else if (record.fact) {
      this.fact(object(record.fact));
    }
    for (const part of record.parts ?? []) this.part(this.top, object(part));
  }

  timeline(): Timeline {
    const status = this.top.run?.status ?? "done";
    if (status !== "open") for (const row of this.roots) this.close(row);
    const rows: Row[] = [];
    const walk = (row: Row) => {
      rows.push(row);
      for (const child of row.children) walk(child);
    };
    for (const row of this.roots) walk(row);
    const { items, steps, times, began, usage, unknown } = this;
    return { rows, items, steps, times, began, end: this.now, usage, status, unknown };
  }

  /** Close the rows that a finished run left open. */
  private close(row: Row): void {
    if (row.end === null) {
      row.end = this.now;
      if (row.status === "open") row.status = "stopped";
    }
    for (const child of row.children) this.close(child);
  }

  private row(level: Level, parent: Row | null, kind: RowKind, label: string): Row {
    const depth = parent ? parent.depth + 1 : level.depth;
    const row: Row = {
      id: `${this.record.seq}.${this.items.length}.${kind}`,
      kind,
      label,
      depth,
      start: this.now,
      end: null,
      status: "open",
      isHosted: false,
      items: [],
      children: [],
      usage: null,
      text: "",
    };
    (parent ? parent.children : this.roots).push(row);
    return row;
  }

  private point(level: Level, kind: RowKind, label: string, parent = level.step ?? level.run ?? level.parent): Row {
    const row = this.row(level, parent, kind, label);
    row.end = this.now;
    row.status = "done";
    return row;
  }

  private add(row: Row, type: string, value: JsonObject, raw?: Json): Row {
    const { seq, blobs = [] } = this.record;
    const item = { index: this.items.length, seq, time: this.now, type, value, raw, blobs, row };
    this.items.push(item);
    row.items.push(item);
    return row;
  }

  private end(row: Row, status: RowStatus = "done"): void {
    row.end = this.now;
    row.status = status;
  }

  private fact(body: JsonObject): void {
    const level = this.top;
    const type = text(body.type);
    const open = level.step ?? level.run;
    switch (type) {
      case "message": {
        const message = object(body.message);
        const role = text(message.role);
        const row = this.point(
          level,
          "message",
          firstText(message) || (role === "user" ? "Question" : "Message"),
          null,
        );
        this.add(row, type, body);
        return;
      }
      case "run-started": {
        if (level.run?.end === null) this.end(level.run, body.resumes ? "done" : "stopped");
        level.step = null;
        level.run = this.row(level, null, "run", text(body.model) || "Run");
        if (body.resumes) level.run.label += ", resumed";
        this.add(level.run, type, body);
        return;
      }
      case "tool-started": {
        const call = level.calls.get(text(body.call_id));
        if (call) this.add(this.stage(level, call, "started"), type, body);
        return;
      }
      case "approval-asked": {
        const approval = object(body.approval);
        const call = level.calls.get(text(approval.call_id));
        const row = this.row(level, call ?? open, "wait", `Waiting for you: ${text(approval.tool)}`);
        level.blocks.set(`approval:${text(approval.approval_id)}`, this.add(row, type, body));
        return;
      }
      case "approval-decided": {
        const decision = object(body.decision);
        const id = `approval:${text(decision.approval_id)}`;
        const row = level.blocks.get(id) ?? this.point(level, "wait", text(decision.tool));
        level.blocks.delete(id);
        const isApproved = decision.is_approved === true;
        const reason = text(decision.reason);
        row.label = isApproved ? `Allowed: ${text(decision.tool)}` : `Denied: ${text(decision.tool)}`;
        if (isApproved && decision.grant) row.label += " (in this conversation)";
        if (reason) row.label += ` (${reason})`;
        this.end(this.add(row, type, body), isApproved ? "done" : "denied");
        return;
      }
      case "grants": {
        const names = list(body.grants).map((grant) => text(object(grant).tool));
        const row = this.point(level, "note", `Allowed in this conversation: ${names.join(", ") || "none"}`);
        this.add(row, type, body);
        return;
      }
      case "evidence-checked": {
        const claims = list(body.claims).map((claim) => text(object(object(claim).evidence).state));
        const found = claims.filter((state) => state === "quoted" || state === "supported").length;
        const row = this.point(level, "note", `Citations checked: ${found} of ${claims.length} confirmed`);
        this.add(row, type, body);
        return;
      }
      case "request-sent":
        this.add(this.point(level, "note", timelineWords.requestSent(text(body.model))), type, body);
        return;
      case "response-received":
        this.add(this.point(level, "note", timelineWords.responseReceived), type, body);
        return;
      case "forked": {
        const what = timelineWords.changes(Object.keys(object(body.changes)));
        this.add(this.point(level, "note", timelineWords.forkedAt(number(body.seq), what)), type, body);
        return;
      }
      case "cancelled":
        if (level.step) this.end(level.step, "stopped");
        if (level.run) this.end(this.add(level.run, type, body), "stopped");
        return;
      default:
        this.add(this.point(level, "note", text(body.type) || this.record.kind), type || this.record.kind, body);
    }
  }

  private part(level: Level, part: JsonObject): void {
    const type = text(part.type);
    const handler = PARTS[type];
    if (handler) handler.call(this, level, part, type);
    else this.add(this.point(level, "note", type || "Part"), type, part, part.provider_metadata);
  }

  private stage(level: Level, call: Row, name: string): Row {
    const last = call.children.findLast((child) => child.kind === "stage");
    if (last?.label === name) {
      last.end = this.now;
      return last;
    }
    if (last?.status === "open") this.end(last);
    const row = this.row(level, call, "stage", name);
    row.isHosted = call.isHosted;
    return row;
  }

  private call(level: Level, part: JsonObject): Row {
    const id = text(part.id ?? part.call_id);
    const known = level.calls.get(id);
    if (known) return known;
    // A program's call is shown below the program.
    const caller = object(object(object(part.provider_metadata).sidestream).caller).caller_id;
    const row = this.row(
      level,
      level.calls.get(text(caller)) ?? level.step ?? level.run ?? level.parent,
      "tool",
      text(part.name ?? part.tool) || "Tool",
    );
    row.isHosted = part.provider_executed === true;
    level.calls.set(id, row);
    return row;
  }

  private block(level: Level, part: JsonObject, kind: "text" | "reasoning"): Row {
    const key = `${kind}:${text(part.id)}`;
    let row = level.blocks.get(key);
    if (!row) {
      row = this.row(level, level.step ?? level.run ?? level.parent, kind, kind === "text" ? "Text" : "Thought");
      // A short block is one record, written at its end. Assume that it began at the previous record.
      row.start = Math.max(this.before, level.step?.start ?? 0);
      level.blocks.set(key, row);
    }
    return row;
  }

  static readonly handlers: Record<string, (this: Folding, level: Level, part: JsonObject, type: string) => void> = {
    "stream-start"(level, part, type) {
      const row = level.run ?? this.row(level, level.parent, "run", level.parent ? level.parent.label : "Run");
      level.run ??= row;
      this.add(row, type, part);
      for (const warning of list(part.warnings))
        this.add(this.point(level, "note", text(warning)), "warning", { warning });
    },
    "response-metadata"(level, part, type) {
      const row = level.step ?? level.run;
      if (row) this.add(row, type, part, part.provider_metadata);
    },
    "step-start"(level, part, type) {
      level.step = this.row(level, level.run ?? level.parent, "step", `Step ${number(part.step) + 1}`);
      this.add(level.step, type, part);
      this.steps.push(level.step);
    },
    "step-finish"(level, part, type) {
      const step = level.step;
      if (!step) return;
      step.usage = usageOf(object(part.usage));
      this.end(this.add(step, type, part, object(part.usage).raw), part.reason === "error" ? "failed" : "done");
      level.step = null;
    },
    "text-start"(level, part, type) {
      this.add(this.block(level, part, "text"), type, part, part.provider_metadata);
    },
    "text-delta"(level, part, type) {
      written(this.add(this.block(level, part, "text"), type, part, part.provider_metadata), part.delta);
    },
    "text-end"(level, part, type) {
      const row = this.block(level, part, "text");
      if (typeof part.text === "string") written(row, part.text, true);
      this.end(this.add(row, type, part, part.provider_metadata));
    },
    "reasoning-start"(level, part, type) {
      this.add(this.block(level, part, "reasoning"), type, part, part.provider_metadata);
    },
    "reasoning-delta"(level, part, type) {
      written(this.add(this.block(level, part, "reasoning"), type, part, part.provider_metadata), part.delta);
    },
    "reasoning-end"(level, part, type) {
      const row = this.block(level, part, "reasoning");
      if (typeof part.text === "string") written(row, part.text, true);
      this.end(this.add(row, type, part, part.provider_metadata));
    },
    "tool-input-start"(level, part, type) {
      this.add(this.call(level, part), type, part, part.provider_metadata);
    },
    "tool-input-delta"(level, part, type) {
      this.add(this.call(level, part), type, part, part.provider_metadata);
    },
    "tool-input-end"(level, part, type) {
      this.add(this.call(level, part), type, part, part.provider_metadata);
    },
    "tool-call"(level, part, type) {
      const row = this.call(level, part);
      row.isHosted = part.provider_executed === true;
      if (text(part.name)) row.label = text(part.name);
      if (part.input_error) row.status = "failed";
      this.add(row, type, part, part.provider_metadata);
    },
    "tool-event"(level, part, type) {
      const call = this.call(level, part);
      const stage = text(part.provider_stage ?? part.stage);
      const event = object(part.event);
      // A subagent's part: nest its run below the call.
      if (event.type === stage && stage in PARTS) {
        const id = text(part.call_id);
        const inner = level.inner.get(id) ?? new Level(call.depth + 1, call);
        level.inner.set(id, inner);
        this.part(inner, event);
        return;
      }
      if (!part.call_id) call.isHosted = true;
      this.add(this.stage(level, call, text(part.stage)), type, part, part.event);
    },
    "tool-result"(level, part, type) {
      const row = this.call(level, part);
      this.add(row, type, part, part.provider_metadata);
      if (part.preliminary) return;
      const stage = row.children.findLast((child) => child.kind === "stage");
      if (stage?.status === "open") this.end(stage);
      const isDenied = row.children.some((child) => child.status === "denied");
      this.end(row, isDenied ? "denied" : part.is_error ? "failed" : "done");
    },
    "tool-approval-request"(level, part, type) {
      this.add(this.call(level, part), type, part, part.provider_metadata);
    },
    source(level, part, type) {
      const block = level.blocks.get(`text:${text(part.text_id)}`) ?? level.step ?? level.run;
      const row = block ?? this.point(level, "note", "Source");
      this.add(row, type, part, part.provider_metadata);
    },
    file(level, part, type) {
      this.add(this.point(level, "file", text(part.name) || text(part.mime_type) || "File"), type, part);
    },
    custom(level, part, type) {
      const data = object(part.data);
      const call = part.kind === CALL_GRANTED ? level.calls.get(text(data.call_id)) : undefined;
      if (call) {
        // List it with the approvals: the call has this instead of one.
        const row = this.point(level, "wait", `${timelineWords.granted}: ${text(data.name)}`, call);
        this.add(row, type, part, part.data);
        return;
      }
      this.add(this.point(level, "note", text(part.kind) || "Custom"), type, part, part.data);
    },
    raw(level, part, type) {
      this.unknown += 1;
      const name = text(object(part.event).type);
      this.add(this.point(level, "unknown", name ? `Unknown: ${name}` : "Unknown event"), type, part, part.event);
    },
    steer(level, part, type) {
      this.add(this.point(level, "message", `${text(part.text)} (${text(part.status)})`), type, part);
    },
    error(level, part, type) {
      const row = this.point(level, "error", text(part.message) || "Error");
      row.status = "failed";
      this.add(row, type, part, part.provider_metadata);
    },
    finish(level, part, type) {
      const usage = usageOf(object(part.usage));
      if (level === this.top) this.usage = usage;
      if (level.step) this.end(level.step, "stopped");
      level.step = null;
      if (!level.run) return;
      level.run.usage = usage;
      const status = part.reason === "error" ? "failed" : part.reason === "approval" ? "open" : "done";
      this.end(this.add(level.run, type, part, object(part.usage).raw), status);
      if (status === "open") level.run.end = null;
    },
  };
}

const PARTS = Folding.handlers;

function written(row: Row, delta: Json | undefined, isWhole = false): void {
  row.text = isWhole ? text(delta) : row.text + text(delta);
}

export function usageOf(usage: JsonObject): StepUsage | null {
  const input = object(usage.input);
  const output = object(usage.output);
  if (Object.keys(usage).length === 0) return null;
  return {
    input: number(input.total),
    cached: number(input.cache_read),
    output: number(output.total),
    cost: typeof usage.cost === "number" ? usage.cost : null,
  };
}

function firstText(message: JsonObject): string {
  for (const part of list(message.parts)) {
    const found = text(object(part).text);
    if (found) return found.slice(0, 200);
  }
  return "";
}

export function object(value: Json | undefined): JsonObject {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};
}

const list = (value: Json | undefined): Json[] => (Array.isArray(value) ? value : []);
const number = (value: Json | undefined): number => (typeof value === "number" ? value : 0);
const text = (value: Json | undefined): string =>
  typeof value === "string" ? value : typeof value === "number" ? String(value) : "";
