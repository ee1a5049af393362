import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import type { RunRecord } from "../api";
import { fold } from "./fold";
import { changesAt, compare, readValue } from "./forks";

const FOLDER = join(import.meta.dirname, "../../../tests/page/records");
const log = JSON.parse(readFileSync(join(FOLDER, "approvals.json"), "utf8")) as RunRecord[];
const copy = () => structuredClone(log);
const own = (records: RunRecord[]): RunRecord[] =>
  JSON.parse(
    JSON.stringify(records).replace(
      /\b(run|approval)_([0-9a-f]{32})\b/g,
      (_, kind, id) => `${kind}_${[...id].reverse().join("")}`,
    ),
  );
const both = (fork: RunRecord[]) => compare([log, fork], [fold(log), fold(fork)]);
const at = (kind: string) => log.findLastIndex((record) => record.kind === kind);

describe("changes at a part", () => {
  const timeline = fold(log);
  const item = (type: string) => timeline.items.findLast((one) => one.type === type)!;
  const kinds = (type: string, changeable: boolean | string[]) =>
    changesAt(timeline, item(type), changeable).map((change) => change.kind);

  it("include the call's result where the operator allows it", () => {
    expect(kinds("tool-result", true)).toEqual(["result", "deny", "none", "message", "model"]);
    expect(kinds("tool-result", ["delete"])).toEqual(kinds("tool-result", true));
    // A call that asked for approval can be denied everywhere.
    expect(kinds("tool-result", ["other"])).toEqual(["deny", "none", "message", "model"]);
    expect(kinds("text-delta", true)).toEqual(["none", "message", "model"]);
  });

  it("keep the results of other calls of the step", () => {
    const [result] = changesAt(timeline, item("tool-call"), true);
    const next = log.find((record) => record.kind === "step-start" && record.seq > 20)!;
    expect(result!.at).toBe(next.seq - 1);
  });

  it("read a result as the recorded one was written", () => {
    expect(readValue("12", "a.txt is gone")).toBe("12");
    expect(readValue("12", 11)).toBe(12);
    expect(() => readValue("twelve", 11)).toThrow(SyntaxError);
  });
});

describe("the comparison", () => {
  it("folds a fork that is the same, except for its own ids", () => {
    const found = both(own(copy()));
    expect(found.common).toBe(log.length);
    expect([found.original.entries, found.fork.entries]).toEqual([[], []]);
  });

  it("folds the equal beginning and marks what differs after it", () => {
    const fork = own(copy());
    const index = at("tool-result");
    const result = fork[index]!.parts![0] as { result: string };
    result.result = "a.txt is locked";
    const answer = fork[at("text")]!;
    answer.parts = JSON.parse(JSON.stringify(answer.parts).replace("One is gone", "None is gone"));
    fork.splice(index + 1, 0, {
      seq: 0,
      time: fork[index]!.time,
      kind: "forked",
      fact: { type: "forked", seq: index + 1 },
    });
    for (const [place, record] of fork.entries()) record.seq = place + 1;
    const { common, original, fork: side } = both(fork);
    expect(common).toBe(index);
    const said = (entries: typeof side.entries) => entries.map((entry) => [entry.text, entry.differs]);
    expect(said(original.entries)).toEqual([
      ["a.txt is gone", true],
      ["One is gone, one stays.", true],
    ]);
    expect(said(side.entries)).toEqual([
      ["a.txt is locked", true],
      ["None is gone, one stays.", true],
    ]);
    // Only the steps after the fork were paid for.
    expect([original.usage.input, side.usage.input]).toEqual([72, 36]);
  });

  it("does not mark what both have after the first difference", () => {
    const fork = copy();
    (fork[at("tool-result")]!.parts![0] as { result: string }).result = "a.txt is locked";
    const { original, fork: side } = both(fork);
    expect(original.entries.map((entry) => entry.differs)).toEqual([true, false]);
    expect(side.entries.map((entry) => entry.differs)).toEqual([true, false]);
  });
});
