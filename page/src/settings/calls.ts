// API calls of the settings: MCP servers, file indexes and keys.
import { get, type Json, post, put, remove } from "../api";

export type Entry = { [field: string]: Json };

export interface SignIn {
  state: "none" | "waiting" | "signed-in";
  issuer: string | null;
  /** Expiry time, in seconds since 1970. */
  expires: number | null;
  error: string | null;
}

/** A tool whose definition differs from the accepted one. Models cannot use it. */
export interface ToolChange {
  tool: string;
  /** Digest of the new definition, which the acceptance is bound to. */
  pin: string;
  aspects: { name: string; old: Json; new: Json }[];
}

export interface McpServer {
  label: string;
  /** A local process, a URL called from this server, or a URL called by the provider. */
  kind: "command" | "url" | "provider";
  enabled: boolean;
  /** Fields in the configuration file. Null means a value that is set but hidden. */
  entry: Entry;
  problem: string | null;
  changes: ToolChange[];
  signIn: SignIn;
}

export interface McpServers {
  file: string | null;
  editable: boolean;
  servers: McpServer[];
  problem: string | null;
}

export interface McpTool {
  name: string;
  description: string;
  readOnly: boolean;
  sensitive: boolean;
}

export interface McpTest {
  stages: { name: "start" | "handshake" | "list"; ms: number }[];
  tools: McpTool[];
  warnings: string[];
  error: string | null;
  needsSignIn: boolean;
  changes: ToolChange[];
}

export interface KeyTest {
  ok: boolean;
  error?: string;
  models?: number;
  ms?: number;
}

export interface IndexedFolder {
  path: string;
  name: string;
  /** Whether the user can update and remove it. */
  editable: boolean;
  files: number;
  passages: number;
  /** Time of the last update, in seconds since 1970. */
  updated: number | null;
  problems: { path: string; problem: string }[];
  problemCount: number;
  /** Indexing progress. Null if it is not being indexed. */
  reading: { done: number; total: number } | null;
  error: string | null;
}

export interface FileIndex {
  /** Folders whose subfolders can be added. */
  allowed: string[];
  unavailable: "off" | "shared" | null;
  /** Whether the user can add folders. */
  editable?: boolean;
  folders: IndexedFolder[];
  passages: number;
  /** Number of passages that search by meaning covers. */
  vectors: number;
  problem?: string | null;
}

export interface Passage {
  filename: string;
  path: string;
  page: number | null;
  heading: string | null;
  text: string;
  score: number;
}

export const indexes = {
  list: () => get<FileIndex>("/api/indexes"),
  /** Add a folder, or update its index. */
  add: (path: string) => post<{ path: string }>("/api/indexes", { path }),
  remove: (path: string) => remove(`/api/indexes?path=${encodeURIComponent(path)}`),
  search: (q: string) => get<{ passages: Passage[] }>("/api/indexes/search", { q }),
};

const at = (label: string, verb = "") => `/api/mcp/${encodeURIComponent(label)}${verb}`;

export const mcp = {
  list: () => get<McpServers>("/api/mcp"),
  /** Change the given fields. Null removes a field. */
  change: (label: string, changes: Entry) => put<McpServer>(at(label), changes),
  remove: (label: string) => remove(at(label)),
  test: (label: string) => post<McpTest>(at(label, "/test")),
  accept: (label: string, tool: string, pin: string) => post<McpServer>(at(label, "/accept"), { tool, pin }),
  login: (label: string) => post<{ url: string | null; host: string | null }>(at(label, "/login")),
  logout: (label: string) => post(at(label, "/logout")),
};

export const testKey = (provider: string) => post<KeyTest>(`/api/keys/${encodeURIComponent(provider)}/test`);
