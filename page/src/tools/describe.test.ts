import { expect, test } from "vitest";
import type { ToolData, ToolPart } from "../chat/types";
import { callOf, isRequestOnly, titleOf } from "./describe";

function title(state: string, data: Partial<ToolData>, isLive = false): string {
  const part = { type: "tool-researcher", toolCallId: "c1", input: {}, state } as ToolPart;
  return titleOf(callOf(part, { call: "c1", tool: "researcher", ...data }, isLive));
}

test("uses the server's label as the card title", () => {
  expect(title("input-available", { label: "Searching “rain”…", status: "running" }, true)).toBe("Searching “rain”…");
  expect(title("output-available", { label: "Searched “rain” · 2 pages", status: "completed" })).toBe(
    "Searched “rain” · 2 pages",
  );
  expect(title("output-available", {})).toBe("researcher");
});

test("marks calls of an interrupted run as not finished", () => {
  expect(title("input-available", { label: "Searching “rain”…", status: "running" })).toBe(
    "Searching “rain”: not finished",
  );
  const label = "researcher did not answer";
  expect(title("input-available", { label, status: "unfinished", agent: { steps: 1 } })).toBe(label);
});

test("shows the steps and cost of a finished subagent", () => {
  const label = "researcher answered";
  const said = (agent: ToolData["agent"]) => title("output-available", { label, status: "completed", agent });
  expect(said({ steps: 4, cost: 0.02 })).toBe("researcher answered · 4 steps · $0.02");
  expect(said({ steps: 1 })).toBe("researcher answered · 1 step · price unknown");
});

test("marks calls of a subagent's earlier attempt as unfinished", () => {
  const part = { type: "tool-add", toolCallId: "c1/1", state: "input-available", input: {} } as ToolPart;
  const data = { call: "c1/1", tool: "add", parent: "c1" };
  expect(callOf(part, { ...data, status: "running" }, true).state).toBe("running");
  expect(callOf(part, { ...data, status: "unfinished" }, true).state).toBe("unfinished");
});

test("tells an approved provider request from its call", () => {
  const part = {
    type: "tool-times",
    toolCallId: "c1",
    state: "approval-responded",
    input: {},
    providerExecuted: true,
    approval: { id: "a1", approved: true },
  } as ToolPart;
  const data = { call: "c1", tool: "mcp", name: "times", server: "docs" };
  expect(isRequestOnly(callOf(part, data, false))).toBe(true);
  const state = { state: "output-available", output: {} };
  expect(isRequestOnly(callOf({ ...part, ...state } as ToolPart, data, false))).toBe(false);
});
