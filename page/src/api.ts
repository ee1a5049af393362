// Typed client of the server's REST API. A refused request raises `ApiError` with the server's message.
import { BASE, SIGN_IN } from "./base";
import type { PageMessage } from "./chat/types";
import { words } from "./words";

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly type: string = "",
    readonly param: string | null = null,
    readonly code: string | null = null,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

/** Return the URL of a path on the server. */
export function url(path: string, query: Record<string, string | number | null | undefined> = {}): string {
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    value === null || value === undefined || value === "" ? [] : [[name, String(value)]],
  );
  const text = new URLSearchParams(pairs).toString();
  return BASE + path + (text ? `?${text}` : "");
}

/** Return the URL of a stored file. The server names files without its mount path. */
export const fileUrl = (address: string) => (address.startsWith("/api/") ? BASE + address : address);

/** Convert a refused response to an `ApiError`. */
export async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  // The server's message about a missing token is written for programs.
  if (response.status === 401) return new ApiError(401, SIGN_IN ? words.needsSignIn : words.needsToken);
  try {
    const { message, type, param, code } = JSON.parse(text).error;
    // A page with an old token exceeds the rate limit.
    if (code === "too_many_attempts") return new ApiError(401, words.needsToken);
    return new ApiError(response.status, String(message), type ?? "", param ?? null, code ?? null);
  } catch {
    return new ApiError(response.status, text.slice(0, 500) || response.statusText || `status ${response.status}`);
  }
}

async function call<T>(method: string, address: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const response = await fetch(address, {
    method,
    headers: body === undefined ? undefined : { "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
  }).catch((error: unknown) => {
    // Browsers describe a lost connection differently, and not in words that help the user.
    throw error instanceof TypeError ? new TypeError(words.noAnswer) : error;
  });
  if (!response.ok) throw await errorOf(response);
  return response.status === 204 ? (undefined as T) : ((await response.json()) as T);
}

export const get = <T>(path: string, query = {}, signal?: AbortSignal) =>
  call<T>("GET", url(path, query), undefined, signal);
export const post = <T>(path: string, body: unknown = {}) => call<T>("POST", url(path), body);
export const put = <T>(path: string, body: unknown) => call<T>("PUT", url(path), body);
export const patch = <T>(path: string, body: unknown) => call<T>("PATCH", url(path), body);
export const remove = <T>(path: string) => call<T>("DELETE", url(path));

const id = encodeURIComponent;

export type RunStatus = "running" | "waiting" | "finished" | "failed" | "cancelled" | (string & {});

export interface Conversation {
  id: string;
  title: string | null;
  model: string | null;
  created: number;
  updated: number;
  status: RunStatus | null;
  pinned: boolean;
  /** Text around the words found. Null if only the title has them. Absent unless the list is a search's. */
  snippet?: string | null;
}

export interface Leaf {
  leaf: number;
  /** Parent branch, and the index of the message that this branch replaces. */
  parent: number | null;
  forkedAt: number | null;
  updated: number;
}

/** A tool that the user has allowed in a conversation. */
export interface Grant {
  id: string;
  tool: string;
  server: string | null;
  remote: boolean;
}

export interface Snapshot {
  id: string;
  title: string | null;
  /** Agent or model that answered last. It is the default for the next message. */
  model: string | null;
  seq: number;
  leaf: number;
  leaves: Leaf[];
  messages: PageMessage[];
  run: { id: string; status: RunStatus; seq: number } | null;
  grants: Grant[];
}

export interface Model {
  name: string;
  provider: string;
  label: string;
  available: boolean;
  /** Environment variable that holds its API key. */
  variable: string | null;
  thinking: string[];
  /** Where each tool runs (`hosted`, `here` …), or why it is unavailable. */
  tools: Record<string, string>;
  /** What the server's operator allows. */
  allows?: { checks?: boolean };
  price: { input: number; output: number } | null;
  context?: number | null;
  default?: boolean;
  isAgent?: boolean;
  providerLabel?: string;
}

/** A provider's display name, and the environment variable of its API key. */
export interface Provider {
  label: string;
  variable: string | null;
}

export interface RunRecord {
  seq: number;
  time: number;
  kind: string;
  parts?: Json[];
  fact?: Json;
  /** Digests of the files that it references. */
  blobs?: string[];
  /** Whether the record is unreadable. */
  damaged?: boolean;
}

export interface RunRecords {
  records: RunRecord[];
  run: { [key: string]: Json };
  done: boolean;
}

/** A run in progress, in any process. */
export interface RunInProgress {
  id: string;
  chat: string;
  model: string | null;
  /** Cost in US dollars. Null means that a price is unknown. */
  cost: number | null;
  /** Worker that executes it. Null while it is queued. */
  driver: string | null;
  /** Start time, in seconds since 1970. */
  since: number | null;
  at: number | null;
  /** Conversation and record that it was forked from. */
  forkedFrom?: { chat: string; at: number } | null;
}

export interface About {
  version: string;
  agents: string[];
  default: string;
  allowsModels: boolean;
  examples: string[];
  hasMcp: boolean;
  /** Heading of an empty conversation. */
  greeting?: string;
  /** Parts of the page that exist. A viewer has all. */
  panels?: string[];
  signOutUrl?: string | null;
  /** Name of the signed-in user, as far as the server knows it. */
  user?: string | null;
  /** Whether the user runs this server, which others use too. */
  isOwner?: boolean;
  /** Whether a small model on the server's machine answers by default. */
  isEmbedded?: boolean;
  /** File that `sidestream view` shows. A viewer has no conversations. */
  view?: string;
}

export interface Key {
  provider: string;
  variable: string;
  found: boolean;
  ends: string | null;
}

export const api = {
  conversations: (query: { search?: string; before?: string | number | null; limit?: number }, signal?: AbortSignal) =>
    get<{ conversations: Conversation[]; next: string | number | null }>("/api/conversations", query, signal),
  /** Rename or pin a conversation. An empty title restores the first question. */
  change: (chat: string, change: { title?: string; pinned?: boolean }) =>
    patch<{ title: string; pinned: boolean }>(`/api/conversations/${id(chat)}`, change),
  chat: (chat: string, leaf?: number | null, signal?: AbortSignal) =>
    get<Snapshot>(`/api/chat/${id(chat)}`, { leaf }, signal),
  stop: (chat: string, leaf?: number | null) =>
    call<{ stopped: boolean }>("POST", url(`/api/chat/${id(chat)}/stop`, { leaf }), {}),
  steer: (chat: string, text: string, leaf?: number | null) =>
    call<{ id: string }>("POST", url(`/api/chat/${id(chat)}/steer`, { leaf }), { text }),
  /** Have the server read the pages that an answer cites. Its messages then have the result. */
  checkEvidence: (chat: string, message: string, leaf?: number | null) =>
    call<{ checked: number }>("POST", url(`/api/chat/${id(chat)}/evidence`, { leaf }), { message }),
  grants: (chat: string, leaf?: number | null) => get<{ grants: Grant[] }>(`/api/chat/${id(chat)}/grants`, { leaf }),
  withdraw: (chat: string, grant: string) => remove(`/api/chat/${id(chat)}/grants/${id(grant)}`),
  forget: (chat: string) => remove(`/api/chat/${id(chat)}`),
  /** Return the records after a sequence number. With `wait`, wait up to that many seconds for one. */
  records: (run: string, after = 0, signal?: AbortSignal, wait = 0) =>
    get<RunRecords>(`/api/runs/${id(run)}/records`, { after, wait: wait || null }, signal),
  runs: () => get<{ runs: RunInProgress[] }>("/api/runs"),
  stopRun: (run: string) => call<{ stopped: boolean }>("POST", url(`/api/runs/${id(run)}/stop`), {}),
  resumeRun: (run: string) => call<{ resumed: boolean }>("POST", url(`/api/runs/${id(run)}/resume`), {}),
  /** Copy a run up to a record to a new conversation, with a fact changed, and continue it. */
  fork: (run: string, change: { at: number; [fact: string]: Json }) =>
    post<{ chat: string; run: string | null }>(`/api/runs/${id(run)}/fork`, change),
  models: () => get<{ models: Model[]; providers: Record<string, Provider> }>("/api/models"),
  keys: () => get<{ keys: Key[]; editable: boolean }>("/api/keys"),
  about: () => get<About>("/api/about"),
};

/** URLs for sending messages and tailing a run. */
export const chatUrl = () => url("/api/chat");
export const tailUrl = (chat: string, after: number, leaf: number | null, features: string[]) =>
  url(`/api/chat/${id(chat)}/stream`, { after, leaf, features: features.join(",") });
