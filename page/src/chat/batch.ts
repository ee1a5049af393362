// Batch chunks by frame, because `useChat` copies every part of a message for each chunk. Deltas of one
// block within a frame are merged, and the number of chunks per frame is limited.
import type { Chunk } from "./sse";

const WORK = 100_000;
const HIDDEN_MS = 250;

/** Return the key of chunks that may be merged, or null. */
function keyOf(chunk: Chunk): string | null {
  switch (chunk.type) {
    case "text-delta":
    case "reasoning-delta":
      return `${chunk.type} ${chunk.id}`;
    case "tool-input-delta":
      return `${chunk.type} ${chunk.toolCallId}`;
    default: {
      if (!chunk.type.startsWith("data-")) return null;
      const data = chunk as { id?: string; transient?: boolean };
      return data.id && !data.transient ? `${chunk.type} ${data.id}` : null;
    }
  }
}

/** Return the block that a chunk opens or closes. Chunks are not merged across it. */
function edgeOf(chunk: Chunk): string | null {
  switch (chunk.type) {
    case "text-start":
    case "text-end":
      return `text-delta ${chunk.id}`;
    case "reasoning-start":
    case "reasoning-end":
      return `reasoning-delta ${chunk.id}`;
    case "tool-input-start":
    case "tool-input-available":
    case "tool-input-error":
      return `tool-input-delta ${chunk.toolCallId}`;
    default:
      return null;
  }
}

/** Chunks queued for the next frame. */
export class Batch {
  private waiting: Chunk[] = [];
  private open = new Map<string, number>();

  get length(): number {
    return this.waiting.length;
  }

  add(chunk: Chunk): void {
    const edge = edgeOf(chunk);
    if (edge !== null) this.open.delete(edge);
    if (chunk.type === "reset-step" || chunk.type === "start") this.open.clear();
    const key = keyOf(chunk);
    const place = key === null ? undefined : this.open.get(key);
    if (place !== undefined) {
      this.waiting[place] = joined(this.waiting[place]!, chunk);
      return;
    }
    if (key !== null) this.open.set(key, this.waiting.length);
    this.waiting.push(chunk);
  }

  /** Remove and return the first `most` chunks. */
  take(most: number): Chunk[] {
    const taken = this.waiting.splice(0, most);
    this.open.clear();
    for (const [index, chunk] of this.waiting.entries()) {
      const edge = edgeOf(chunk);
      if (edge !== null) this.open.delete(edge);
      const key = keyOf(chunk);
      if (key !== null) this.open.set(key, index);
    }
    return taken;
  }
}

function joined(first: Chunk, second: Chunk): Chunk {
  if (first.type === "tool-input-delta" && second.type === "tool-input-delta") {
    return { ...first, inputTextDelta: first.inputTextDelta + second.inputTextDelta };
  }
  if (
    (first.type === "text-delta" && second.type === "text-delta") ||
    (first.type === "reasoning-delta" && second.type === "reasoning-delta")
  ) {
    return { ...first, delta: first.delta + second.delta };
  }
  return second;
}

/** Wait for the next frame. A hidden window has no frames, so wait 250 ms there. */
export function nextFrame(): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, HIDDEN_MS);
    const frame = document.hidden ? 0 : requestAnimationFrame(done);
    function done() {
      clearTimeout(timer);
      if (frame) cancelAnimationFrame(frame);
      resolve();
    }
  });
}

export interface BatchOptions {
  /** Number of parts in the growing message. */
  parts: () => number;
  frame?: () => Promise<void>;
}

/** Return how many chunks a frame can take, given the number of parts in the message. */
export const chunksPerFrame = (parts: number) => Math.min(Math.max(Math.floor(WORK / Math.max(parts, 1)), 8), 500);

/** Yield the chunks, one batch per frame. */
export function batched(
  source: AsyncGenerator<Chunk>,
  { parts, frame = nextFrame }: BatchOptions,
): ReadableStream<Chunk> {
  const batch = new Batch();
  let isDone = false;
  let failure: unknown = null;
  let wake: () => void = () => undefined;
  const pump = async () => {
    try {
      for await (const chunk of source) {
        batch.add(chunk);
        wake();
      }
    } catch (error) {
      failure = error ?? new Error("the stream broke off");
    }
    isDone = true;
    wake();
  };
  return new ReadableStream<Chunk>(
    {
      start() {
        void pump();
      },
      async pull(controller) {
        while (batch.length === 0) {
          if (failure !== null) return controller.error(failure);
          if (isDone) return controller.close();
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        }
        await frame();
        for (const chunk of batch.take(chunksPerFrame(parts()))) controller.enqueue(chunk);
      },
      async cancel() {
        await source.return(undefined);
      },
    },
    { highWaterMark: 1 },
  );
}
