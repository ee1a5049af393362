import { expect, test } from "vitest";
import type { PageMessage, PagePart } from "./types";
import { plainText, viewOf } from "./view";

const message = (...parts: PagePart[]): PageMessage => ({ id: "m", role: "assistant", parts });
const text = (words: string, block: string, state: "streaming" | "done" = "done"): PagePart => ({
  type: "text",
  text: words,
  state,
  providerMetadata: { sidestream: { block } },
});
const source = (id: string, url: string, block?: string, end?: number, citedText?: string): PagePart => ({
  type: "source-url",
  sourceId: id,
  url,
  title: `About ${id}`,
  providerMetadata: { sidestream: JSON.parse(JSON.stringify({ block, end, citedText })) },
});

test("joins a block that was open at reload with its rest", () => {
  const view = viewOf(
    message(text("It lasts ", "t1", "streaming"), { type: "step-start" }, text("six minutes.", "t1", "streaming")),
  );
  expect(view.rows).toHaveLength(1);
  expect(view.rows[0]).toMatchObject({ kind: "text", text: "It lasts six minutes.", isStreaming: true });
});

test("replaces the streamed text with a different final text", () => {
  const part = {
    type: "text" as const,
    text: "helo",
    providerMetadata: { sidestream: { block: "t1", text: "hello" } },
  };
  expect(viewOf(message(part)).rows[0]).toMatchObject({ text: "hello" });
});

test("numbers sources in order of first use, once per page", () => {
  const view = viewOf(
    message(
      text("First. Second. Third.", "t1"),
      source("b", "https://b.example/", "t1", 14, "second"),
      source("a", "https://a.example/", "t1", 6, "first"),
      source("c", "https://b.example/", "t1", 21, "third"),
      source("d", "https://read.example/"),
    ),
  );
  expect(view.rows[0]).toMatchObject({
    citations: [
      { end: 6, number: 1 },
      { end: 14, number: 2 },
      { end: 21, number: 2 },
    ],
  });
  expect(view.sources.map(({ number, name }) => [number, name])).toEqual([
    [1, "a.example"],
    [2, "b.example"],
    [null, "read.example"],
  ]);
  expect(view.sources[1]!.quotes).toEqual(["second", "third"]);
  expect(plainText(view)).toBe(
    "First.[1] Second.[2] Third.[2]\n\n[1] About a: https://a.example/\n[2] About b: https://b.example/",
  );
});

test("replaces the model's link with a number and strips tracking parameters", () => {
  const words = "Oslo is the capital. ([a.example](https://a.example/?utm_source=openai)) More.";
  const [from, end] = [words.indexOf("(["), words.indexOf("))") + 2];
  const spans = { block: "t1", end, markerStart: from, markerEnd: end, claimStart: 0, claimEnd: 20 };
  const cited: PagePart = {
    type: "source-url",
    sourceId: "a",
    url: "https://a.example/?x=1&utm_source=openai#y",
    title: "About a",
    providerMetadata: { sidestream: spans },
  };
  const view = viewOf(message(text(words, "t1"), cited));
  expect(view.rows[0]).toMatchObject({ text: words, citations: [{ from, end, number: 1 }] });
  expect(plainText(view)).toBe("Oslo is the capital. [1] More.\n\n[1] About a: https://a.example/?x=1#y");
});

test("replaces an earlier source with the same id", () => {
  const view = viewOf(
    message(
      text("Words.", "t1"),
      source("a", "https://a.example/", "t1", 2),
      source("a", "https://a.example/", "t1", 6),
    ),
  );
  expect(view.rows[0]).toMatchObject({ citations: [{ end: 6, number: 1 }] });
});

test("includes citations that arrive with the end of a text", () => {
  const part: PagePart = {
    type: "text",
    text: "Words.",
    citations: [
      { source: { type: "source", sourceType: "url", id: "a", url: "https://a.example/" }, startIndex: 0, endIndex: 6 },
    ],
  };
  expect(viewOf(message(part, source("a", "https://a.example/"))).rows[0]).toMatchObject({
    citations: [{ end: 6, number: 1 }],
  });
});

test("gives tools their state and approvals, and the final error no row", () => {
  const view = viewOf(
    message(
      { type: "tool-departures", toolCallId: "c1", state: "approval-requested", input: {}, approval: { id: "a1" } },
      { type: "data-tool", id: "c1", data: { call: "c1", tool: "mcp", server: "timetable" } },
      { type: "data-approval", id: "a1", data: { approval: "a1", digest: "d" } },
      {
        type: "data-notice",
        id: "n1",
        data: { kind: "error", words: "no", error: { kind: "provider", message: "no" } },
      },
      { type: "data-notice", id: "n2", data: { kind: "retry", words: "Tried again after 503" } },
    ),
  );
  expect(view.rows.map((row) => row.kind)).toEqual(["tool", "notice"]);
  expect(view.rows[0]).toMatchObject({ data: { server: "timetable" }, approvals: [{ digest: "d" }] });
  expect(view.error?.words).toBe("no");
});

test("nests a subagent's calls under its own, at any depth", () => {
  const call = (id: string, parent: string): PagePart => ({
    type: "data-call",
    id,
    data: { call: id, parent, part: { type: "tool-add", toolCallId: id, state: "input-available", input: {} } },
  });
  const view = viewOf(
    message(
      { type: "tool-researcher", toolCallId: "c1", state: "input-available", input: {} },
      { type: "data-tool", id: "c1", data: { call: "c1", tool: "researcher", agent: { steps: 1 } } },
      call("c1/1", "c1"),
      { type: "data-tool", id: "c1/1", data: { call: "c1/1", tool: "add", parent: "c1", status: "running" } },
      call("c1/1/1", "c1/1"),
      call("c1/2", "c1"),
    ),
  );
  expect(view.rows).toMatchObject([
    {
      kind: "tool",
      nested: [
        { key: "c-c1/1", data: { status: "running" }, nested: [{ key: "c-c1/1/1", nested: [] }] },
        { key: "c-c1/2", data: null },
      ],
    },
  ]);
});

test("tells a policy decision from the user's", () => {
  const part = {
    type: "tool-times" as const,
    toolCallId: "c1",
    state: "approval-responded" as const,
    input: {},
    approval: { id: "a1", approved: true },
  };
  const decided = (automatic?: boolean): PagePart => ({
    type: "data-approval",
    id: "a1",
    data: { approval: "a1", approved: true, automatic },
  });
  for (const automatic of [true, undefined]) {
    expect(viewOf(message(part, decided(automatic))).rows[0]).toMatchObject({ isAutomatic: automatic === true });
  }
});
