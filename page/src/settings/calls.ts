// The calls of the settings: MCP servers, file indexes and keys.
import { get, type Json, post, put, remove } from "../api";

export type Entry = { [field: string]: Json };

export interface SignIn {
  state: "none" | "waiting" | "signed-in";
  issuer: string | null;
  /** Seconds since 1970. */
  expires: number | null;
  error: string | null;
}

/** A tool whose definition differs from the one that was accepted; it is not offered to models. */
export interface ToolChange {
  tool: string;
  /** A digest of the new definition: exactly that one is accepted. */
  pin: string;
  aspects: { name: string; old: Json; new: Json }[];
}

export interface McpServer {
  label: string;
  /** A process here, an address that is called from here, or one that the provider calls. */
  kind: "command" | "url" | "provider";
  enabled: boolean;
  /** Its fields in the file; null stands for a value that is set and not shown. */
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
  /** Whether it can be updated and removed here. */
  editable: boolean;
  files: number;
  passages: number;
  /** Seconds since 1970. */
  updated: number | null;
  problems: { path: string; problem: string }[];
  problemCount: number;
  /** How far it is read; null if it is not being read. */
  reading: { done: number; total: number } | null;
  error: string | null;
}

export interface FileIndex {
  /** Folders below which others can be added. */
  allowed: string[];
  unavailable: "off" | "shared" | null;
  /** Whether folders can be added here. */
  editable?: boolean;
  folders: IndexedFolder[];
  passages: number;
  /** How many passages can be found by their meaning. */
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
  /** Adds a folder, or reads what has changed in it. */
  add: (path: string) => post<{ path: string }>("/api/indexes", { path }),
  remove: (path: string) => remove(`/api/indexes?path=${encodeURIComponent(path)}`),
  search: (q: string) => get<{ passages: Passage[] }>("/api/indexes/search", { q }),
};

const at = (label: string, verb = "") => `/api/mcp/${encodeURIComponent(label)}${verb}`;

export const mcp = {
  list: () => get<McpServers>("/api/mcp"),
  /** Changes the fields that are given; null removes one. */
  change: (label: string, changes: Entry) => put<McpServer>(at(label), changes),
  remove: (label: string) => remove(at(label)),
  test: (label: string) => post<McpTest>(at(label, "/test")),
  accept: (label: string, tool: string, pin: string) => post<McpServer>(at(label, "/accept"), { tool, pin }),
  login: (label: string) => post<{ url: string | null; host: string | null }>(at(label, "/login")),
  logout: (label: string) => post(at(label, "/logout")),
};

export const testKey = (provider: string) => post<KeyTest>(`/api/keys/${encodeURIComponent(provider)}/test`);
