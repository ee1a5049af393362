// Form of an MCP server. Only changed fields are sent, so that hidden values are kept.
import type { Json } from "../api";
import type { Entry, McpServer } from "./calls";

export type Approval = "default" | "always" | "never" | "custom";

export interface Pair {
  name: string;
  /** Null means that the hidden value is kept. */
  value: string | null;
}

export interface Form {
  kind: McpServer["kind"];
  label: string;
  command: string;
  url: string;
  headers: Pair[];
  env: Pair[];
  allowed: string;
  approval: Approval;
}

export const EMPTY: Form = {
  kind: "command",
  label: "",
  command: "",
  url: "",
  headers: [],
  env: [],
  allowed: "",
  approval: "default",
};

/** Form values, by the configuration file's approval values. */
const ASK: Record<string, Approval> = { ask: "always", run: "never", always: "always", never: "never" };

export function formOf(server: McpServer): Form {
  const { entry, kind, label } = server;
  const policy = entry.approval ?? entry.require_approval;
  return {
    kind,
    label,
    command: joined([entry.command, ...(Array.isArray(entry.args) ? entry.args : [])].flatMap(given)),
    url: String(entry.url ?? entry.server_url ?? ""),
    headers: pairs(entry.headers),
    env: pairs(entry.env),
    allowed: Array.isArray(entry.allowed_tools) ? entry.allowed_tools.join(", ") : "",
    approval: policy === undefined ? "default" : typeof policy === "string" ? (ASK[policy] ?? "custom") : "custom",
  };
}

const given = (value: Json | undefined) => (typeof value === "string" ? [value] : []);

function pairs(value: Json | undefined): Pair[] {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [];
  return Object.entries(value).map(([name, inner]) => ({ name, value: typeof inner === "string" ? inner : null }));
}

/** Return the fields to send: all of a new server, or those that changed. */
export function changesOf(form: Form, server: McpServer | null): Entry {
  const before = server ? formOf(server) : EMPTY;
  const changes: Entry = {};
  const isLocal = form.kind === "command";
  const isMoved = !server || form.kind !== before.kind;
  if (isLocal && (isMoved || form.command !== before.command)) {
    const [command = "", ...args] = split(form.command);
    changes.command = command;
    changes.args = args.length ? args : null;
  }
  if (!isLocal && (isMoved || form.url !== before.url)) {
    changes[server && "server_url" in server.entry ? "server_url" : "url"] = form.url.trim();
  }
  if (isMoved && form.kind === "provider") changes.execution = "provider";
  if (isMoved && server) {
    if (form.kind === "url") changes.execution = null;
    const gone = isLocal
      ? ["url", "headers", "authorization", "require_approval", "execution"]
      : ["command", "args", "env", "cwd", "approval"];
    if (isLocal || before.kind === "command")
      for (const field of gone) if (field in server.entry) changes[field] = null;
  }
  const field = isLocal ? "env" : "headers";
  const secrets = changedPairs(isLocal ? form.env : form.headers, isMoved ? [] : isLocal ? before.env : before.headers);
  if (Object.keys(secrets).length) changes[field] = secrets;
  if (form.allowed !== before.allowed) {
    const names = form.allowed.split(",").map((name) => name.trim());
    const given = names.filter(Boolean);
    changes.allowed_tools = given.length ? given : null;
  }
  if (form.approval !== "custom" && (isMoved ? form.approval !== "default" : form.approval !== before.approval)) {
    const policy = { default: null, always: isLocal ? "ask" : "always", never: isLocal ? "run" : "never" };
    changes[isLocal ? "approval" : "require_approval"] = policy[form.approval];
  }
  return changes;
}

function changedPairs(now: Pair[], before: Pair[]): Entry {
  const changes: Entry = {};
  for (const { name } of before) if (!now.some((pair) => pair.name === name)) changes[name] = null;
  for (const { name, value } of now) {
    const old = before.find((pair) => pair.name === name);
    if (name.trim() && value !== null && old?.value !== value) changes[name.trim()] = value;
  }
  return changes;
}

const PLAIN = /^[^\s"']+$/;

/** Join words into one line that `split` can parse. */
export function joined(words: string[]): string {
  return words.map((word) => (PLAIN.test(word) ? word : `"${word.replaceAll('"', `"'"'"`)}"`)).join(" ");
}

/** Split a line into words, honouring quotes. */
export function split(line: string): string[] {
  const words: string[] = [];
  for (const match of line.matchAll(/(?:[^\s"']+|"[^"]*"|'[^']*')+/g)) {
    words.push(match[0].replace(/"([^"]*)"|'([^']*)'/g, (_, double, single) => double ?? single ?? ""));
  }
  return words;
}
