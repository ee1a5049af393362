import { expect, test } from "vitest";
import type { ToolData, ToolPart } from "../chat/types";
import { callOf, titleOf } from "./describe";

function line(tool: string, input: unknown, output: unknown = {}, data: Partial<ToolData> = {}): string {
  const part = { type: `tool-${tool}`, toolCallId: "c1", state: "output-available", input, output } as ToolPart;
  return titleOf(callOf(part, { call: "c1", tool, name: tool, ...data }, false));
}

test("a search in files whose passages nobody sent says what was searched, not that there were none", () => {
  const data = { queries: ["eclipse"] };
  expect(line("file_search", {}, { results: null }, data)).toBe("Searched “eclipse”");
  expect(line("file_search", {}, { results: [{ filename: "a.md" }, { filename: "a.md" }] }, data)).toBe(
    "2 passages in 1 file",
  );
});

test.each([
  ["view", "Read notes"],
  ["create", "Saved a note"],
  ["str_replace", "Saved a note"],
  ["delete", "Deleted a note"],
])("memory: %s", (command, words) => {
  expect(line("memory", { command, path: "/memories/a.md" })).toBe(words);
});

test.each([
  [{ actions: [{ type: "click", x: 412, y: 96 }] }, "Click 412, 96"],
  [{ actions: [{ type: "type", text: "Turku" }] }, "Type Turku"],
  [{ actions: [{ type: "keypress", keys: ["CTRL", "A"] }] }, "Keypress CTRL+A"],
  [{ action: "left_click", coordinate: [4, 5] }, "Left click 4, 5"],
  [{ action: { type: "screenshot" } }, "Screenshot"],
  [{ actions: [{ type: "click" }, { type: "type" }, { type: "wait" }] }, "3 actions"],
])("what was done on a screen: %j", (input, words) => {
  expect(line("computer_use", input)).toBe(words);
});

test("an agent is asked, and answers with its steps and its cost", () => {
  const part = (fields: { state: string; errorText?: string; output?: string }) =>
    ({ type: "tool-researcher", toolCallId: "c1", input: {}, ...fields }) as ToolPart;
  const said = (fields: Parameters<typeof part>[0], agent: ToolData["agent"], isLive = false) =>
    titleOf(callOf(part(fields), { call: "c1", tool: "researcher", agent }, isLive));
  const done = { state: "output-available", output: "Paris." };
  expect(said({ state: "input-available" }, { steps: 1 }, true)).toBe("Asking researcher…");
  expect(said(done, { steps: 4, cost: 0.02 })).toBe("researcher answered · 4 steps · $0.02");
  expect(said(done, { steps: 1 })).toBe("researcher answered · 1 step · price unknown");
  expect(said({ state: "output-error", errorText: "the model is gone" }, { steps: 1 })).toBe(
    "researcher: the model is gone",
  );
  expect(said({ state: "input-available" }, { steps: 1 })).toBe("researcher did not answer");
});

test("a call of an earlier attempt of an agent does not run any more", () => {
  const part = { type: "tool-add", toolCallId: "c1/1", state: "input-available", input: {} } as ToolPart;
  const data = { call: "c1/1", tool: "add", parent: "c1" };
  expect(callOf(part, { ...data, status: "running" }, true).state).toBe("running");
  expect(callOf(part, { ...data, status: "unfinished" }, true).state).toBe("unfinished");
});

test("a request of the provider that was allowed is told from the call that follows it", () => {
  const part = {
    type: "tool-times",
    toolCallId: "c1",
    state: "approval-responded",
    input: {},
    providerExecuted: true,
    approval: { id: "a1", approved: true },
  } as ToolPart;
  const data = { call: "c1", tool: "mcp", name: "times", server: "docs" };
  expect(titleOf(callOf(part, data, false))).toBe("Asked to call times on docs");
});
