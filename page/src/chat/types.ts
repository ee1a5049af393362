// Parts that the server adds to the AI SDK's stream. Any field may be missing, because the server
// may be older or newer than the page.
import type { DynamicToolUIPart, ToolUIPart, UIMessage } from "ai";

export interface RunData {
  run?: string;
  seq?: number;
  /** `running`, `waiting`, `complete`, `failed` or `cancelled`. */
  status?: string;
  /** Finish reason. */
  reason?: string;
  model?: string;
  provider?: string;
  cost?: number;
  limit?: string | number;
  ms?: number;
  /** Number of unknown provider events. */
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
  /** Portable name of the tool, the same for every provider. */
  tool: string;
  name?: string;
  /** Label of the call, the same as in the terminal. */
  label?: string;
  /** Provider that runs it, or `here`. */
  where?: string;
  status?: "started" | "running" | "waiting" | "completed" | "failed" | "unfinished";
  step?: number;
  stage?: "started" | "running" | "completed" | "failed";
  queries?: string[];
  /** Number of pages, passages or tools found. */
  pages?: number;
  snippet?: string;
  previews?: number;
  server?: string;
  /** Id of the remembered approval that it ran under. */
  grant?: string;
  exit?: number;
  error?: string;
  /** Usage of a subagent so far. Absent for other tools. */
  agent?: { steps?: number; cost?: number };
  /** Id of the subagent or program call that made this one. */
  parent?: string;
  ms?: number;
  /** Sequence number of its first record. */
  seq?: number;
}

export interface ApprovalData {
  approval: string;
  call?: string;
  tool?: string;
  input?: unknown;
  server?: string;
  digest?: string;
  /** Origin of the call, as a sentence. */
  origin?: string;
  checks?: unknown;
  /** True if the provider runs it. */
  remote?: boolean;
  /** URLs that the run has already read. */
  read?: string[];
  expires?: number;
  /** Form to fill in, or URL to visit. */
  form?: { message?: string; schema?: unknown; url?: string };
  /** Whether the tool can be allowed for the rest of the conversation. */
  remember?: boolean;
  /** Decision. Absent while the call waits. */
  approved?: boolean;
  /** Whether a policy decided instead of the user. */
  automatic?: boolean;
}

export interface SteerData {
  id: string;
  status: "accepted" | "applied" | "failed";
  text: string;
  /** Step number, from 0. */
  step?: number;
  reason?: string;
}

export interface NoticeData {
  kind: string;
  words: string;
  error?: ErrorData;
}

/** A wait of the run: for a retry, a rate limit, a worker or a summary. */
export interface WaitingData {
  reason: string;
  /** Start of the wait, in seconds since 1970. */
  since: number;
  /** End of the wait. Absent if it is unknown. */
  until?: number;
  message?: string;
  /** Status or error code that caused a retry. */
  cause?: string;
  attempt?: number;
  attempts?: number;
  over?: boolean;
}

export type PageData = {
  run: RunData;
  step: StepData;
  tool: ToolData;
  approval: ApprovalData;
  steer: SteerData;
  notice: NoticeData;
  waiting: WaitingData;
  /** A subagent's call. */
  call: { call: string; parent: string; part: ToolPart };
  /** Transient. Code that a tool call is writing. `whole` marks the full code so far. */
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

/** Metadata that our server adds to the AI SDK's parts. */
export interface SidestreamMetadata {
  block?: string;
  /** Full text, if it differs from what was streamed. */
  text?: string;
  start?: number;
  end?: number;
  /** Link that the model wrote as a citation. The source number replaces it. */
  markerStart?: number;
  markerEnd?: number;
  /** The sentence before that link. */
  claimStart?: number;
  claimEnd?: number;
  citedText?: string;
  /** What a comparison with the source established. Absent if it was not checked. */
  evidence?: {
    state: "quoted" | "supported" | "contradicted" | "not-found" | "unreachable";
    reason?: string;
    /** Opinion of a model, which establishes nothing. */
    judge?: string;
  };
  kind?: string;
  name?: string;
  call?: string;
  url?: string;
}

export function ours(metadata: unknown): SidestreamMetadata {
  return (metadata as { sidestream?: SidestreamMetadata } | undefined)?.sidestream ?? {};
}
