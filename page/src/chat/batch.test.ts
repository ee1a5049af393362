import { expect, test } from "vitest";
import { Batch, batched, chunksPerFrame } from "./batch";
import type { Chunk } from "./sse";

const text = (id: string, delta: string): Chunk => ({ type: "text-delta", id, delta });

async function read(stream: ReadableStream<Chunk>): Promise<Chunk[]> {
  const found: Chunk[] = [];
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return found;
    found.push(value);
  }
}

test("merges deltas of one block and keeps the order of other chunks", () => {
  const batch = new Batch();
  const chunks: Chunk[] = [
    { type: "text-start", id: "a" },
    text("a", "1"),
    { type: "tool-input-start", toolCallId: "c", toolName: "x" },
    text("a", "2"),
    { type: "tool-input-delta", toolCallId: "c", inputTextDelta: "{" },
    { type: "tool-input-delta", toolCallId: "c", inputTextDelta: "}" },
    { type: "text-end", id: "a" },
    { type: "text-start", id: "a" },
    text("a", "3"),
  ];
  for (const chunk of chunks) batch.add(chunk);
  expect(batch.take(100)).toEqual([
    { type: "text-start", id: "a" },
    text("a", "12"),
    { type: "tool-input-start", toolCallId: "c", toolName: "x" },
    { type: "tool-input-delta", toolCallId: "c", inputTextDelta: "{}" },
    { type: "text-end", id: "a" },
    { type: "text-start", id: "a" },
    text("a", "3"),
  ]);
});

test("keeps the last state of a data part and all transient ones", () => {
  const batch = new Batch();
  const data = (stage: string): Chunk => ({ type: "data-tool", id: "c", data: { stage } });
  const code = (delta: string): Chunk => ({ type: "data-code", data: { call: "c", delta }, transient: true });
  for (const chunk of [data("one"), code("a"), data("two"), code("b")]) batch.add(chunk);
  expect(batch.take(10)).toEqual([data("two"), code("a"), code("b")]);
});

test("does not merge into taken chunks or lose text in small frames", async () => {
  async function* source(): AsyncGenerator<Chunk> {
    for (let index = 0; index < 300; index += 1) {
      yield { type: "text-start", id: `t${index}` };
      for (const letter of "abc") yield text(`t${index}`, letter);
      yield { type: "text-end", id: `t${index}` };
      if (index % 7 === 0) await Promise.resolve();
    }
  }
  const found = await read(batched(source(), { parts: () => 50_000, frame: () => Promise.resolve() }));
  const texts = found.flatMap((chunk) => (chunk.type === "text-delta" ? [chunk.delta] : []));
  expect(texts.join("")).toBe("abc".repeat(300));
  expect(found.filter((chunk) => chunk.type === "text-end")).toHaveLength(300);
});

test("raises an error after the chunks before it", async () => {
  async function* source(): AsyncGenerator<Chunk> {
    yield text("a", "before");
    throw new Error("broken");
  }
  const reader = batched(source(), { parts: () => 1, frame: () => Promise.resolve() }).getReader();
  expect((await reader.read()).value).toEqual(text("a", "before"));
  await expect(reader.read()).rejects.toThrow("broken");
});

test("limits chunks per frame for a message with many parts", () => {
  expect(chunksPerFrame(1)).toBe(500);
  expect(chunksPerFrame(5000)).toBe(20);
  expect(chunksPerFrame(1_000_000)).toBe(8);
});
