// Transport between the AI SDK's `Chat` and our server. It sends the new message or decisions, never history.
import type { ChatTransport } from "ai";
import { ApiError, chatUrl, errorOf, tailUrl } from "../api";
import { batched } from "./batch";
import { type Chunk, chunksOf } from "./sse";
import type { PageMessage } from "./types";
import { dataUrl } from "./uploads";

export interface Decision {
  approvalId: string;
  approved: boolean;
  digest: string;
  reason?: string;
  /** Answers to the approval's form. */
  answers?: Record<string, unknown>;
  /** Whether to allow later calls to the tool too. */
  remember?: "conversation";
}

/** Options of a request, beside the message. */
export interface Want {
  /** Sequence number from which to tail the run. */
  tail?: number;
  decisions?: Decision[];
  leaf?: number | null;
  model?: string;
  thinking?: string;
  tools?: string[];
}

export interface TransportEvents {
  /** Handle an accepted message. `leaf` is its branch. */
  accepted(leaf: number | null): void;
  /** Handle a lost connection. The request is retried. `isSent` says whether the server has the message already. */
  lost(isSent: boolean): void;
  found(): void;
  /** Handle the end of a stream, complete or cut off. */
  ended(isComplete: boolean): void;
  parts(): number;
}

const FEATURES = ["steering-message"];
const PAUSES_MS = [1000, 2000, 4000, 8000, 15_000];
const ENDS = new Set(["finish", "abort", "error"]);

export class PageTransport implements ChatTransport<PageMessage> {
  readonly resumeStreamIsReplay = false;

  constructor(private readonly events: TransportEvents) {}

  async sendMessages(
    options: Parameters<ChatTransport<PageMessage>["sendMessages"]>[0],
  ): Promise<ReadableStream<Chunk>> {
    const { chatId, trigger, messageId, messages, abortSignal, body } = options;
    const want = (body ?? {}) as Want;
    if (want.tail !== undefined) return this.tail(chatId, want.tail, want.leaf ?? null, abortSignal);
    const common = { id: chatId, leaf: want.leaf ?? undefined, features: FEATURES };
    const last = messages.at(-1);
    const posted = want.decisions
      ? { ...common, decisions: want.decisions }
      : {
          ...common,
          trigger,
          messageId,
          message: trigger === "submit-message" && last ? await withBytes(last) : undefined,
          model: want.model,
          thinking: want.thinking,
          tools: want.tools,
        };
    const request = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(posted) };
    const response = await this.fetched(chatUrl(), { ...request, signal: abortSignal }, false);
    this.events.accepted(Number(response.headers.get("x-sidestream-leaf")) || null);
    return this.stream(response);
  }

  /** Not used: `sendMessages` with `tail` continues the message that the page has. */
  async reconnectToStream(): Promise<null> {
    return null;
  }

  private async tail(
    chat: string,
    after: number,
    leaf: number | null,
    signal: AbortSignal | undefined,
  ): Promise<ReadableStream<Chunk>> {
    const response = await this.fetched(tailUrl(chat, after, leaf, FEATURES), { signal }, true);
    if (response.status === 204) {
      this.events.ended(true);
      return new ReadableStream({ start: (controller) => controller.close() });
    }
    return this.stream(response);
  }

  /** Fetch, and retry while offline. Messages have ids, so the server accepts each once. */
  private async fetched(address: string, init: RequestInit, isSent: boolean): Promise<Response> {
    for (let attempt = 0; ; attempt += 1) {
      let response: Response;
      try {
        response = await fetch(address, init);
      } catch (error) {
        if (!(error instanceof TypeError) || init.signal?.aborted) throw error;
        this.events.lost(isSent);
        await pause(attempt, init.signal ?? undefined);
        continue;
      }
      this.events.found();
      if (!response.ok) throw await errorOf(response);
      if (!response.body && response.status !== 204) throw new ApiError(response.status, "the response has no body");
      return response;
    }
  }

  private stream(response: Response): ReadableStream<Chunk> {
    return batched(this.watched(response.body!), { parts: () => this.events.parts() });
  }

  private async *watched(body: ReadableStream<Uint8Array>): AsyncGenerator<Chunk> {
    let isComplete = false;
    try {
      for await (const chunk of chunksOf(body)) {
        if (ENDS.has(chunk.type)) isComplete = true;
        yield chunk;
      }
    } catch (error) {
      // A lost connection is not an error of the answer: the run continues and is rejoined.
      if (!(error instanceof TypeError)) throw error;
    } finally {
      this.events.ended(isComplete);
    }
  }
}

/** Wait before the next attempt, or until the browser is back online. */
export function pause(attempt: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const done = () => {
      clearTimeout(timer);
      window.removeEventListener("online", done);
      if (signal?.aborted) reject(new DOMException("aborted", "AbortError"));
      else resolve();
    };
    const timer = setTimeout(done, PAUSES_MS[Math.min(attempt, PAUSES_MS.length - 1)]);
    window.addEventListener("online", done);
    signal?.addEventListener("abort", done, { once: true });
  });
}

/** Return the message with its files inlined. The page itself keeps only their URLs. */
async function withBytes(message: PageMessage): Promise<unknown> {
  const parts = await Promise.all(
    message.parts.map(async (part) => (part.type === "file" ? { ...part, url: await dataUrl(part.url) } : part)),
  );
  return { id: message.id, role: message.role, parts };
}
