import { expect, test } from "vitest";
import type { ToolPart } from "../chat/types";
import type { CallView } from "../chat/view";
import { earlyOf } from "./card";

function calls(...states: string[]): CallView[] {
  return states.map((state, index) => {
    const part = { type: "tool-add", toolCallId: `c/${index}`, state, input: {}, output: 1 } as ToolPart;
    return { key: `c-${index}`, part, data: null, nested: [] };
  });
}

test("shows a subagent's last twelve calls, and all failed or running ones", () => {
  const done = (count: number) => Array.from({ length: count }, () => "output-available");
  expect(earlyOf(calls(...done(12)))).toBe(0);
  expect(earlyOf(calls(...done(14)))).toBe(0);
  expect(earlyOf(calls(...done(20)))).toBe(8);
  expect(earlyOf(calls(...done(5), "output-error", ...done(20)))).toBe(5);
  expect(earlyOf(calls("input-available", ...done(20)))).toBe(0);
});
