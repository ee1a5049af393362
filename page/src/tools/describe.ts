// View model of a call's card: state, kind, input and output.
import type { ToolData, ToolPart } from "../chat/types";
import type { IconName } from "../ui/icons";
import { words } from "../words";

export type CallState = "running" | "waiting" | "done" | "failed" | "denied" | "unfinished";
export type BodyKind = "search" | "code" | "shell" | "image" | "patch" | "mcp" | "computer" | "agent" | "function";

export interface Call {
  part: ToolPart;
  data: ToolData | null;
  state: CallState;
  name: string;
  tool: string;
  input: Record<string, unknown>;
  output: unknown;
  error: string;
}

interface Kind {
  icon: IconName;
  body: BodyKind;
}

export function callOf(part: ToolPart, data: ToolData | null, isLive: boolean): Call {
  const name = part.type === "dynamic-tool" ? part.toolName : part.type.slice("tool-".length);
  const output = part.state === "output-available" ? part.output : undefined;
  const error = part.state === "output-error" ? part.errorText : (data?.error ?? "");
  const input = isObject(part.input) ? part.input : {};
  return { part, data, state: stateOf(part, data, isLive), name, tool: data?.tool ?? name, input, output, error };
}

function stateOf(part: ToolPart, data: ToolData | null, isLive: boolean): CallState {
  switch (part.state) {
    case "approval-requested":
      return "waiting";
    case "output-denied":
      return "denied";
    case "output-error":
      return "failed";
    case "output-available":
      if (data?.status === "failed") return "failed";
      if (part.preliminary) return isLive ? "running" : "unfinished";
      return "done";
    default:
      if (data?.status === "completed") return "done";
      if (data?.status === "failed") return "failed";
      // A restarted subagent leaves the calls of its earlier attempt unfinished.
      if (data?.status === "unfinished") return "unfinished";
      return isLive ? "running" : "unfinished";
  }
}

const text = (value: unknown) => (typeof value === "string" ? value : "");
export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

export function commandOf({ input }: Call): string {
  const action = isObject(input.action) ? input.action : input;
  const given = action.commands ?? action.command ?? "";
  return Array.isArray(given) ? given.map(String).join(" && ") : text(given);
}

export function diffIn(input: Record<string, unknown>): string {
  const operation = isObject(input.operation) ? input.operation : input;
  return text(operation.diff) || text(operation.patch) || text(input.diff);
}

/** Return whether this is an approved provider request. Its call follows, with its own card. */
export function isRequestOnly({ part }: Call): boolean {
  return part.state === "approval-responded" && part.approval.approved === true && part.providerExecuted === true;
}

const KINDS: Record<string, Kind> = {
  web_search: { icon: "search", body: "search" },
  x_search: { icon: "search", body: "search" },
  google_maps: { icon: "globe", body: "search" },
  web_fetch: { icon: "page", body: "search" },
  file_search: { icon: "files", body: "search" },
  code_interpreter: { icon: "code", body: "code" },
  programmatic_tool_calling: { icon: "code", body: "code" },
  bash_code_execution: { icon: "shell", body: "shell" },
  shell: { icon: "shell", body: "shell" },
  local_shell: { icon: "shell", body: "shell" },
  image_generation: { icon: "image", body: "image" },
  apply_patch: { icon: "patch", body: "patch" },
  computer_use: { icon: "computer", body: "computer" },
  mcp: { icon: "plug", body: "mcp" },
  mcp_list_tools: { icon: "plug", body: "mcp" },
  tool_search: { icon: "wrench", body: "function" },
  memory: { icon: "note", body: "function" },
};
const AGENT: Kind = { icon: "agent", body: "agent" };
const FUNCTION: Kind = { icon: "wrench", body: "function" };

export function kindOf(call: Call): Kind {
  if (call.data?.agent) return AGENT;
  if (call.data?.server) return call.name === "mcp_list_tools" ? KINDS.mcp_list_tools! : KINDS.mcp!;
  // A provider may have several tools for one portable one, such as a shell beside its code interpreter.
  const own = call.part.providerExecuted ? KINDS[call.name] : undefined;
  return own ?? KINDS[call.tool] ?? KINDS[call.name] ?? FUNCTION;
}

/** Return the title of a card: the server's label, and the page's additions. */
export function titleOf({ data, name, state }: Call): string {
  const label = data?.label ?? name;
  if (data?.agent && state === "done") {
    return `${label} · ${words.steps(data.agent.steps ?? 0)} · ${words.cost(data.agent.cost)}`;
  }
  // An interrupted run does not report its calls as unfinished.
  const isLeft = state === "unfinished" && (data?.status === "started" || data?.status === "running");
  return isLeft ? words.notFinished(label) : label;
}

/** Return where a call runs: the provider's name, or `here`. */
export function whereOf({ data, part }: Call): string {
  return data?.where ?? (part.providerExecuted ? "" : words.here);
}

/** Return the text of a tool's output, or its JSON if it has none. */
export function outputText(output: unknown): string {
  if (output === undefined || output === null) return "";
  if (typeof output === "string") return output;
  const found: string[] = [];
  collect(output, found, 6);
  return found.length > 0 ? found.join("\n") : JSON.stringify(output, null, 2);
}

const TEXTS = ["stdout", "logs", "text", "output", "outputs", "content", "stderr", "results", "result"];

function collect(value: unknown, found: string[], depth: number): void {
  if (depth === 0) return;
  if (typeof value === "string") {
    if (value.trim() && !value.startsWith("/api/blobs/")) found.push(value);
  } else if (Array.isArray(value)) {
    for (const entry of value) collect(entry, found, depth - 1);
  } else if (isObject(value)) {
    for (const name of TEXTS) if (name in value) collect(value[name], found, depth - 1);
  }
}

/** Base64 prefixes of the supported image types. */
const IMAGE_STARTS: [string, string][] = [
  ["iVBORw0KGgo", "image/png"],
  ["/9j/", "image/jpeg"],
  ["R0lGOD", "image/gif"],
  ["UklGR", "image/webp"],
];
const BASE64 = /^[A-Za-z0-9+/]{64,}={0,2}$/;

/** Return the image type of a base64 string, or null. */
export function imageTypeOf(text: string): string | null {
  const found = IMAGE_STARTS.find(([start]) => text.startsWith(start));
  return found && BASE64.test(text) ? found[1] : null;
}

/** Return the last image in a value: the URL of a file on our server, or base64. */
export function previewIn(value: unknown, depth = 6): string | null {
  if (depth === 0 || value === null || value === undefined) return null;
  if (typeof value === "string") return value.startsWith("/api/blobs/") || imageTypeOf(value) ? value : null;
  if (typeof value !== "object") return null;
  return Object.values(value).reduceRight<string | null>((found, entry) => found ?? previewIn(entry, depth - 1), null);
}

/** Return the pages in a search result. */
export function pagesIn(output: unknown): { url: string; title: string }[] {
  const pages = new Map<string, string>();
  const walk = (value: unknown, depth: number): void => {
    if (depth === 0) return;
    if (Array.isArray(value)) for (const entry of value) walk(entry, depth - 1);
    else if (isObject(value)) {
      const url = text(value.url) || text(value.uri);
      if (/^https?:/.test(url)) pages.set(url, text(value.title) || pages.get(url) || "");
      for (const inner of Object.values(value)) if (typeof inner === "object") walk(inner, depth - 1);
    }
  };
  walk(output, 6);
  return [...pages].map(([url, title]) => ({ url, title }));
}
