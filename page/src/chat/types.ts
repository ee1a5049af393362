// What the server's stream holds beyond the AI SDK's own parts. Everything here may be missing: it comes from a server
// that may be older or newer than the page.
import type { DynamicToolUIPart, ToolUIPart, UIMessage } from "ai";

export interface RunData {
  run?: string;
  seq?: number;
  /** `running`, `waiting`, `complete`, `failed` or `cancelled`. */
  status?: string;
  /** Why it ended, in the words of our stream. */
  reason?: string;
  model?: string;
  provider?: string;
  cost?: number;
  limit?: string | number;
  ms?: number;
  /** Events that the server did not understand. */
  unknown?: number;
}

export interface ErrorData {
  kind: string;
  message: string;
  status?: number;
  code?: string;
  param?: string;
  retryable?: boolean;
  retryAfter?: number;
}

export interface Tokens {
  inputTokens?: number;
  outputTokens?: number;
  cachedInputTokens?: number;
  reasoningTokens?: number;
}

export interface StepData {
  step: number;
  usage?: Tokens;
  cost?: number;
  reason?: string;
  ms?: number;
}

export interface ToolData {
  call: string;
  /** The key of the tool, whatever name the model calls it by. */
  tool: string;
  name?: string;
  /** What it is doing, did, or failed at, in words; terminals show the same. */
  label?: string;
  /** The provider that runs it, or `here`. */
  where?: string;
  status?: "writing" | "running" | "waiting" | "done" | "failed" | "unfinished";
  step?: number;
  stage?: string;
  queries?: string[];
  /** How many pages, passages or tools it found. */
  pages?: number;
  snippet?: string;
  previews?: number;
  server?: string;
  /** The id of the grant that let it run without a question. */
  grant?: string;
  exit?: number;
  error?: string;
  /** What an agent that runs as a tool has taken so far; absent for other tools. */
  agent?: { steps?: number; cost?: number };
  /** The call of the agent or program that made this one. */
  parent?: string;
  ms?: number;
  /** The number of the record with which it began. */
  seq?: number;
}

export interface ApprovalData {
  approval: string;
  call?: string;
  tool?: string;
  input?: unknown;
  server?: string;
  digest?: string;
  /** Where the call comes from, in words. */
  origin?: string;
  checks?: unknown;
  /** True if the provider runs it. */
  remote?: boolean;
  /** Addresses that the run has read before. */
  read?: string[];
  expires?: number;
  /** What a server has the person fill in, or visit. */
  form?: { message?: string; schema?: unknown; url?: string };
  /** True if the tool can be allowed for the rest of the conversation. */
  remember?: boolean;
  /** What was decided; absent while it waits. */
  approved?: boolean;
  /** True if a policy decided, and not a person. */
  automatic?: boolean;
}

export interface SteerData {
  id: string;
  status: "accepted" | "applied" | "failed";
  text: string;
  /** From 0. */
  step?: number;
  reason?: string;
}

export interface NoticeData {
  kind: string;
  words: string;
  error?: ErrorData;
}

export type PageData = {
  run: RunData;
  step: StepData;
  tool: ToolData;
  approval: ApprovalData;
  steer: SteerData;
  notice: NoticeData;
  /** A call of an agent that runs as a tool. */
  call: { call: string; parent: string; part: ToolPart };
  /** Transient: code of a tool as it is written; `whole` if it is all that there is so far. */
  code: { call: string; delta: string; whole?: boolean };
};

export interface PageMetadata {
  createdAt?: number;
  model?: string;
  run?: string;
}

export type PageMessage = UIMessage<PageMetadata, PageData>;
export type PagePart = PageMessage["parts"][number];
export type ToolPart = ToolUIPart | DynamicToolUIPart;

/** What our server adds to a part of the AI SDK. */
export interface SidestreamMetadata {
  block?: string;
  /** The whole text, where it is another than what was streamed. */
  text?: string;
  start?: number;
  end?: number;
  /** The link that the model itself has written to cite the source; its number replaces it. */
  markerStart?: number;
  markerEnd?: number;
  /** The sentence before that link. */
  claimStart?: number;
  claimEnd?: number;
  citedText?: string;
  /** Whether the quote is in the source; absent if nobody has compared them. */
  verified?: boolean;
  kind?: string;
  name?: string;
  call?: string;
  url?: string;
}

export function ours(metadata: unknown): SidestreamMetadata {
  return (metadata as { sidestream?: SidestreamMetadata } | undefined)?.sidestream ?? {};
}
