// Server-sent events of the UI message stream: one JSON chunk in each `data:` line.
import type { UIMessageChunk } from "ai";

export type Chunk = UIMessageChunk;

/** Yield the chunks of a response body. Throws on invalid JSON, because the rest cannot be trusted. */
export async function* chunksOf(body: ReadableStream<Uint8Array>): AsyncGenerator<Chunk> {
  const reader = body.pipeThrough(new TextDecoderStream() as TransformStream<Uint8Array, string>).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop()!;
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const text = line.slice(5).trim();
        if (text !== "[DONE]") yield JSON.parse(text) as Chunk;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
