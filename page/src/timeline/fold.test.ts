import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import type { Json, RunRecord } from "../api";
import { readLines } from "./files";
import { itemAt, moved, shownRows } from "./filters";
import { fold, object, type Row } from "./fold";
import { makeScale } from "./scale";

// Logs written by the server, made by tests/page/make_records.py. The environment variable adds more.
const FOLDERS = [join(import.meta.dirname, "../../../tests/page/records"), process.env.SIDESTREAM_RECORDS ?? ""].filter(
  Boolean,
);
const LOGS = FOLDERS.flatMap((folder) => readdirSync(folder).map((name) => [name, join(folder, name)] as const));
const read = (path: string) => JSON.parse(readFileSync(path, "utf8")) as RunRecord[];
const log = (name: string) => read(join(FOLDERS[0]!, `${name}.json`));
const named = (rows: Row[], kind: string) => rows.filter((row) => row.kind === kind);

describe.each(LOGS)("the log %s", (_, path) => {
  const records = read(path);
  const timeline = fold(records);

  it("has each part in exactly one row, in order", () => {
    const parts = records.flatMap((record) => record.parts ?? []);
    const facts = records.filter((record) => record.fact);
    expect(timeline.items.filter((item) => item.type !== "warning").length).toBe(parts.length + facts.length);
    expect(timeline.items.map((item) => item.index)).toEqual(timeline.items.map((_, index) => index));
    expect(timeline.items.map((item) => item.seq)).toEqual(
      timeline.items.map((item) => item.seq).sort((a, b) => a - b),
    );
    expect(timeline.rows.flatMap((row) => row.items).length).toBe(timeline.items.length);
  });

  it("has the full text of every block", () => {
    const deltas = records
      .flatMap((record) => record.parts ?? [])
      .map(object)
      .filter((part) => part.type === "text-delta")
      .map((part) => part.delta)
      .join("");
    const ends = records.flatMap((record) => record.parts ?? []).map(object);
    if (ends.some((part) => part.type === "text-end" && typeof part.text === "string")) return;
    const shown = timeline.rows.filter((row) => row.kind === "text").map((row) => row.text);
    expect([...shown.join("")].sort().join("")).toBe([...deltas].sort().join(""));
  });

  it("has rows that start before they end, within the run", () => {
    for (const row of timeline.rows) {
      expect(row.start).toBeGreaterThanOrEqual(0);
      expect(row.end ?? timeline.end).toBeGreaterThanOrEqual(row.start);
      expect(row.end ?? timeline.end).toBeLessThanOrEqual(timeline.end);
    }
  });

  it("grows incrementally while streaming", () => {
    for (let size = 1; size < records.length; size += Math.ceil(records.length / 20)) {
      const items = fold(records.slice(0, size)).items;
      expect(items.map((item) => [item.seq, item.type, item.row.id])).toEqual(
        timeline.items.slice(0, items.length).map((item) => [item.seq, item.type, item.row.id]),
      );
    }
  });
});

describe("a run with approvals", () => {
  const timeline = fold(log("approvals"));

  it("shows how long each call waited and its decision", () => {
    const [allowed, denied] = named(timeline.rows, "wait");
    expect([allowed!.label, allowed!.status]).toEqual(["Allowed: delete", "done"]);
    expect([denied!.label, denied!.status]).toEqual(["Denied: delete (Keep it.)", "denied"]);
    expect(allowed!.end! - allowed!.start).toBeGreaterThan(800_000);
    const calls = named(timeline.rows, "tool");
    expect(calls.map((row) => row.status)).toEqual(["done", "denied"]);
    expect(calls.every((row) => !row.isHosted)).toBe(true);
  });

  it("skips long waits unless the scale is linear", () => {
    const scale = makeScale(timeline.times);
    expect(scale.breaks.length).toBe(1);
    const [gap] = scale.breaks;
    expect(gap!.to - gap!.from).toBeGreaterThan(800_000);
    expect(gap!.end - gap!.start).toBeLessThan(0.05);
    expect(makeScale(timeline.times, true).breaks).toEqual([]);
    const places = timeline.times.map(scale.at);
    expect(places).toEqual([...places].sort((a, b) => a - b));
    expect([places[0], places.at(-1)]).toEqual([0, 1]);
  });

  it("finds rows by filter and text, with their ancestors", () => {
    const waits = shownRows(timeline.rows, "approvals", "");
    expect(waits.map((row) => row.kind)).toEqual(["run", "step", "tool", "wait", "tool", "wait"]);
    expect(shownRows(timeline.rows, null, "B.TXT").some((row) => row.kind === "tool")).toBe(true);
    expect(shownRows(timeline.rows, null, "nowhere")).toEqual([]);
    expect(shownRows(timeline.rows, "errors", "")).toEqual([]);
  });

  it("moves by part and by step", () => {
    const first = moved(timeline, null, "next");
    expect(first!.index).toBe(0);
    expect(moved(timeline, first, "previous")).toBe(first);
    const step = moved(timeline, first, "next-step")!;
    const second = moved(timeline, step, "next-step")!;
    expect([step.row.label, second.row.label]).toEqual(["Step 1", "Step 2"]);
    expect(moved(timeline, second, "previous-step")).toBe(step);
    expect(moved(timeline, second, "next-step")).toBe(second);
    expect(itemAt(timeline, second.seq)!.seq).toBe(second.seq);
  });
});

describe("hosted tools", () => {
  it("have lifecycle stages with the provider's events", () => {
    const timeline = fold(log("code_run"));
    const tool = named(timeline.rows, "tool").find((row) => row.children.length > 0)!;
    expect(tool.isHosted).toBe(true);
    expect(tool.children.every((row) => row.kind === "stage")).toBe(true);
    const events = timeline.items.filter((item) => item.type === "tool-event");
    expect(events.length).toBeGreaterThan(0);
    expect(events.every((item) => item.raw !== undefined)).toBe(true);
    expect(timeline.steps.every((step) => step.usage && step.usage.input > 0)).toBe(true);
  });

  it("name their files", () => {
    const timeline = fold(log("image"));
    const files = named(timeline.rows, "file");
    expect(files.length).toBeGreaterThan(0);
    expect(files[0]!.items[0]!.blobs.length).toBe(1);
  });
});

const part = (type: string, fields: { [key: string]: Json } = {}) => ({ type, ...fields });
const record = (seq: number, parts: Json[]): RunRecord => ({ seq, time: 100 + seq, kind: "segment", parts });

describe("odd logs", () => {
  it("nests a subagent's run below its call", () => {
    const forwarded = (inner: { [key: string]: Json }) =>
      part("tool-event", { tool: "ask", call_id: "c", stage: "delta", provider_stage: inner.type!, event: inner });
    const timeline = fold([
      record(1, [part("stream-start", { warnings: [] }), part("step-start", { step: 0 })]),
      record(2, [part("tool-call", { id: "c", name: "ask", provider_executed: false })]),
      record(3, [forwarded(part("stream-start", { warnings: [] })), forwarded(part("step-start", { step: 0 }))]),
      record(4, [forwarded(part("text-start", { id: "t" })), forwarded(part("text-delta", { id: "t", delta: "Hi" }))]),
    ]);
    expect(timeline.rows.map((row) => [row.depth, row.kind])).toEqual([
      [0, "run"],
      [1, "step"],
      [2, "tool"],
      [3, "run"],
      [4, "step"],
      [5, "text"],
    ]);
    expect(timeline.rows.at(-1)!.text).toBe("Hi");
  });

  it("nests a program's calls below the program", () => {
    const made = { id: "p/1", name: "add", provider_metadata: { sidestream: { caller: { caller_id: "p" } } } };
    const timeline = fold([
      record(1, [part("stream-start", { warnings: [] }), part("step-start", { step: 0 })]),
      record(2, [part("tool-call", { id: "p", name: "program" }), part("step-finish", { step: 0 })]),
      record(3, [part("tool-call", made), part("tool-result", { ...made, result: 3 })]),
      record(4, [part("tool-result", { id: "p", name: "program", result: "3" })]),
    ]);
    expect(timeline.rows.map(({ depth, label, status }) => [depth, label, status])).toEqual([
      [0, "Run", "open"],
      [1, "Step 1", "done"],
      [2, "program", "done"],
      [3, "add", "done"],
    ]);
  });

  it("shows unknown, damaged and unexpected records", () => {
    const timeline = fold([
      { seq: 1, time: 1, kind: "text", damaged: true },
      record(2, [part("raw", { provider: "x", event: { type: "new.thing" } }), part("from-the-future")]),
      { seq: 3, time: 3, kind: "x", fact: null },
      { seq: 4, time: 2, kind: "y", fact: { type: "later" } },
    ]);
    expect(timeline.unknown).toBe(1);
    expect(timeline.rows.map((row) => row.kind)).toEqual(["error", "unknown", "note", "note"]);
    expect(timeline.end).toBe(timeline.times.at(-1));
  });

  it("closes rows that a stopped run left open", () => {
    const timeline = fold([
      { seq: 1, time: 1, kind: "run-started", fact: { type: "run-started", model: "m" } },
      record(2, [part("step-start", { step: 0 }), part("text-start", { id: "t" })]),
      { seq: 3, time: 200, kind: "cancelled", fact: { type: "cancelled" } },
    ]);
    expect(timeline.status).toBe("stopped");
    expect(timeline.rows.map((row) => row.status)).toEqual(["stopped", "stopped", "stopped"]);
    expect(timeline.rows.every((row) => row.end !== null)).toBe(true);
  });

  it("is empty without records", () => {
    expect(fold([]).rows).toEqual([]);
    expect(makeScale([]).at(5)).toBe(0);
  });
});

describe("a parts file", () => {
  it("is parsed line by line, without timestamps", () => {
    const text = ['{"type":"stream-start","warnings":[]}', "", '{"type":"step-start","step":0}'].join("\n");
    const timeline = fold(readLines(text));
    expect(timeline.began).toBeNull();
    expect(timeline.rows.map((row) => row.kind)).toEqual(["run", "step"]);
  });

  it("may contain log records", () => {
    const line = JSON.stringify({ seq: 7, time: 3, kind: "x", blobs: [], body: { type: "segment", parts: [] } });
    expect(readLines(line)).toEqual([{ seq: 7, time: 3, kind: "x", blobs: [], parts: [] }]);
  });

  it.each(["{", "[1]", "7", '{"no":"type"}'])("reports the invalid line: %s", (line) => {
    expect(() => readLines(`{"type":"finish"}\n${line}`)).toThrow("Line 2");
  });
});

describe("remembered approvals", () => {
  const record = (seq: number, fact: { [key: string]: Json }): RunRecord =>
    ({ seq, time: seq, kind: "x", fact }) as RunRecord;

  it("appear at the decision and where they are revoked", () => {
    const { rows } = fold([
      record(1, { type: "approval-asked", approval: { approval_id: "a", tool: "book" } }),
      record(2, {
        type: "approval-decided",
        decision: { approval_id: "a", tool: "book", is_approved: true, grant: {} },
      }),
      record(3, { type: "grants" }),
    ]);
    expect(rows.map((row) => row.label)).toEqual([
      "Allowed: book (in this conversation)",
      "Allowed in this conversation: none",
    ]);
  });

  it("show how many citations a check confirmed", () => {
    const claims = ["quoted", "contradicted"].map((state) => ({ evidence: { state } }));
    const { rows } = fold([{ seq: 1, time: 1, kind: "evidence-checked", fact: { type: "evidence-checked", claims } }]);
    expect(rows.map((row) => row.label)).toEqual(["Citations checked: 1 of 2 confirmed"]);
  });

  it("appear at each call that they covered", () => {
    const part = (seq: number, value: { [key: string]: Json }): RunRecord =>
      ({ seq, time: seq, kind: "x", parts: [value] }) as RunRecord;
    const { rows } = fold([
      part(1, { type: "tool-call", id: "c1", name: "book", input: {} }),
      part(2, { type: "custom", kind: "sidestream.call-granted", data: { call_id: "c1", name: "book", grant: "a" } }),
      part(3, { type: "tool-result", id: "c1", name: "book", result: "ok" }),
    ]);
    expect(rows.map(({ kind, label, status }) => [kind, label, status])).toEqual([
      ["tool", "book", "done"],
      ["wait", "Already allowed in this conversation: book", "done"],
    ]);
  });
});
