// What the server's stream holds beyond the AI SDK's own parts. Everything here may be missing: it comes from a server
// that may be older or newer than the page.
import type { DynamicToolUIPart, ToolUIPart, UIMessage } from "ai";

export interface RunData {
  run: string;
  seq?: number;
  status?: string;
  model?: string | null;
  cost?: number | null;
  limit?: string | number | null;
  ms?: number | null;
  /** Set where the run failed. */
  error?: ErrorData | null;
}

export interface ErrorData {
  kind: string;
  message: string;
  status?: number | null;
  code?: string | null;
  provider?: string | null;
  variable?: string | null;
  retryAfter?: number | null;
  seconds?: number | null;
}

export interface Tokens {
  input?: { total?: number; cache_read?: number };
  output?: { total?: number; reasoning?: number };
}

export interface StepData {
  step: number;
  usage?: Tokens | null;
  cost?: number | null;
  reason?: string | null;
  model?: string | null;
  ms?: number | null;
}

export interface ToolData {
  call: string;
  tool: string;
  /** Who runs it: `hosted` with the provider's name, or `here`. */
  where?: string | null;
  stage?: string | null;
  queries?: string[] | null;
  pages?: { url: string; title?: string | null }[] | null;
  code?: string | null;
  output?: string | null;
  exit?: number | null;
  previews?: string[] | null;
  server?: string | null;
  ms?: number | null;
  seqs?: [number, number] | null;
  /** The call of a sub-agent to which this call belongs. */
  parent?: string | null;
}

export interface ApprovalData {
  approval: string;
  digest?: string | null;
  expires?: number | string | null;
  origin?: { server?: string | null; host?: string | null; kind?: string | null; description?: string | null } | null;
  /** What the run has read before. */
  read?: string[] | null;
  /** The arguments of the call before this one of the same tool. */
  previous?: unknown;
  decided?: { by?: string | null; at?: number | string | null; approved?: boolean; reason?: string | null } | null;
}

export interface NoticeData {
  kind: string;
  words?: string | null;
  action?: string | null;
}

export type PageData = {
  run: RunData;
  step: StepData;
  tool: ToolData;
  approval: ApprovalData;
  notice: NoticeData;
};

export interface PageMetadata {
  created?: number;
  model?: string;
}

export type PageMessage = UIMessage<PageMetadata, PageData>;
export type PagePart = PageMessage["parts"][number];
export type ToolPart = ToolUIPart | DynamicToolUIPart;

/** What our server adds to a part of the AI SDK. */
export interface SidestreamMetadata {
  block?: string;
  start?: number;
  end?: number;
  textId?: string;
  citedText?: string;
  mark?: "found" | "missing" | null;
  name?: string;
  bytes?: number;
  kind?: string;
}

export function ours(metadata: unknown): SidestreamMetadata {
  const found = (metadata as { sidestream?: SidestreamMetadata } | undefined)?.sidestream;
  return found ?? {};
}
