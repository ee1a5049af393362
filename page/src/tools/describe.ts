// A call in words: what it is doing, did, or failed at. One row per kind of tool; the words are in words.ts.
import type { ToolData, ToolPart } from "../chat/types";
import { hostOf } from "../markdown/links";
import type { IconName } from "../ui/icons";
import { words } from "../words";
import { toolWords as say } from "./words";

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
  title: (call: Call) => string;
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
      if (data?.status === "done" || data?.status === "failed") return data.status;
      // An agent that begins again leaves the calls of its earlier attempt as they are.
      if (data?.status === "unfinished") return "unfinished";
      return isLive ? "running" : "unfinished";
  }
}

const text = (value: unknown) => (typeof value === "string" ? value : "");
export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function queryOf({ data, input }: Call): string | null {
  return data?.queries?.[0] ?? (text(input.query) || null);
}

function addressOf({ input }: Call): string {
  const action = isObject(input.action) ? input.action : input;
  return text(action.url) || text(input.url) || (Array.isArray(input.urls) ? text(input.urls[0]) : "");
}

function search(call: Call): string {
  const { state, data, input, error } = call;
  if (state === "failed") return say.searchFailed(error);
  const address = addressOf(call);
  const pattern = text(isObject(input.action) ? input.action.pattern : input.pattern);
  const isOver = state !== "running";
  if (address && pattern) return say.lookedFor(pattern, hostOf(address));
  if (address) return isOver ? say.opened(hostOf(address)) : say.opening(hostOf(address));
  return isOver ? say.searched(queryOf(call), data?.pages ?? 0) : say.searching(queryOf(call));
}

function fetched(call: Call): string {
  const { state, error } = call;
  const address = addressOf(call);
  const short = address.replace(/^https?:\/\//, "").slice(0, 80);
  if (state === "failed") return say.notFetched(error || short);
  return state === "running" ? say.fetching(short) : say.fetched(titleIn(call.output) || short, null);
}

function titleIn(output: unknown): string {
  if (!isObject(output)) return "";
  return text(output.title) || (isObject(output.content) ? text(output.content.title) : "");
}

function fileSearch(call: Call): string {
  const { state, data, output, error } = call;
  if (state === "failed") return say.searchFailed(error);
  if (state === "running") return say.searchingIndex;
  const results = isObject(output) && Array.isArray(output.results) ? output.results.filter(isObject) : [];
  // Providers keep the passages to themselves unless they are asked for them: nobody knows then how many there were.
  if (results.length === 0) return say.searched(queryOf(call) ?? "the files", 0);
  const files = new Set(results.map((result) => text(result.filename) || text(result.file_id)));
  return say.passages(data?.pages ?? results.length, files.size);
}

function code({ state, data, error }: Call): string {
  if (state === "failed") return say.raised(lastLine(error) || "an error");
  if (state === "running") return data?.status === "writing" ? say.writingCode : say.runningCode;
  return say.ranCode("Python");
}

export const lastLine = (words: string) => words.trim().split("\n").at(-1)!.trim().slice(0, 160);

export function commandOf({ input }: Call): string {
  const action = isObject(input.action) ? input.action : input;
  const given = action.commands ?? action.command ?? "";
  return Array.isArray(given) ? given.map(String).join(" && ") : text(given);
}

function shell(call: Call): string {
  const command = commandOf(call).split("\n")[0]!.slice(0, 120);
  if (call.state === "running") return `$ ${command}`;
  const exit = call.data?.exit;
  return exit === undefined ? `${say.ranShell} ${command}` : say.exit(exit);
}

function image({ state, data }: Call): string {
  if (state === "failed" || state === "unfinished") return say.imageFailed;
  if (state === "done") return say.madeImage;
  return data?.previews ? say.preview(data.previews) : say.makingImage;
}

function patch({ state, error, input }: Call): string {
  if (state === "failed") return say.patchFailed(lastLine(error));
  if (state === "running") return say.patching;
  const lines = diffIn(input).split("\n");
  return say.patched(
    1,
    lines.filter((line) => line.startsWith("+") && !line.startsWith("+++")).length,
    lines.filter((line) => line.startsWith("-") && !line.startsWith("---")).length,
  );
}

export function diffIn(input: Record<string, unknown>): string {
  const operation = isObject(input.operation) ? input.operation : input;
  return text(operation.diff) || text(operation.patch) || text(input.diff);
}

function mcp(call: Call): string {
  const { state, data, name, error } = call;
  const server = data?.server ?? "MCP";
  if (isRequestOnly(call)) return say.askedToCall(name, server);
  if (state === "failed") return `${say.answeredError(name)}${error ? `: ${lastLine(error)}` : ""}`;
  return state === "running" || state === "waiting" ? say.calling(name, server) : say.called(name, server);
}

/** True for the request of a provider that was allowed: the call itself follows, with a card of its own. */
export function isRequestOnly({ part }: Call): boolean {
  return part.state === "approval-responded" && part.approval.approved === true && part.providerExecuted === true;
}

function mcpList({ state, data, output, error }: Call): string {
  const server = data?.server ?? "MCP";
  if (state === "failed") return say.listFailed(server, error);
  if (state === "running") return say.listing(server);
  const tools = isObject(output) && Array.isArray(output.tools) ? output.tools.length : 0;
  return say.listed(server, data?.pages ?? tools);
}

function toolSearch({ state, data, error }: Call): string {
  if (state === "failed") return say.searchFailed(error);
  return state === "running" ? say.lookingForTool : say.foundTools(data?.pages ?? 0);
}

function own({ state, part, name, error }: Call): string {
  const title = (part.type === "dynamic-tool" ? part.title : undefined) ?? name;
  if (state === "failed") return `${title}: ${lastLine(error) || say.answeredError(title)}`;
  return state === "running" ? say.functionRunning(title) : title;
}

function memory(call: Call): string {
  const command = text(call.input.command);
  if (call.state === "failed") return own(call);
  if (call.state === "running") return command === "view" ? say.remembering : say.savingNote;
  return say.savedNote(command);
}

/** The actions of a call on a screen, in any provider's form. */
function actionsIn({ input }: Call): Record<string, unknown>[] {
  const given = Array.isArray(input.actions) ? input.actions : [isObject(input.action) ? input.action : input];
  return given.filter(isObject);
}

function computer(call: Call): string {
  const actions = actionsIn(call);
  if (call.state === "failed") return own(call);
  if (actions.length !== 1) return say.actions(actions.length);
  const [{ type, action, x, y, coordinate, text: typed, keys, key }] = actions as [Record<string, unknown>];
  const at = Array.isArray(coordinate) ? coordinate : x === undefined ? [] : [x, y];
  const what = typed ?? (Array.isArray(keys) ? keys.join("+") : keys) ?? key ?? at.join(", ");
  return say.action(text(type) || text(action), text(what).slice(0, 80));
}

function agent({ state, name, error, data }: Call): string {
  if (state === "failed") return `${name}: ${lastLine(error) || say.answeredError(name)}`;
  if (state === "running" || state === "waiting") return say.asking(name);
  if (state === "unfinished") return words.notAnswered(name);
  const { steps = 0, cost } = data?.agent ?? {};
  return `${say.answered(name)} · ${words.steps(steps)} · ${words.cost(cost)}`;
}

const KINDS: Record<string, Kind> = {
  web_search: { icon: "search", body: "search", title: search },
  x_search: { icon: "search", body: "search", title: search },
  google_search: { icon: "search", body: "search", title: search },
  maps: { icon: "globe", body: "search", title: search },
  web_fetch: { icon: "page", body: "search", title: fetched },
  url_context: { icon: "page", body: "search", title: fetched },
  file_search: { icon: "files", body: "search", title: fileSearch },
  code_interpreter: { icon: "code", body: "code", title: code },
  code_execution: { icon: "code", body: "code", title: code },
  programmatic_tool_calling: { icon: "code", body: "code", title: code },
  text_editor_code_execution: { icon: "code", body: "code", title: code },
  bash_code_execution: { icon: "shell", body: "shell", title: shell },
  shell: { icon: "shell", body: "shell", title: shell },
  local_shell: { icon: "shell", body: "shell", title: shell },
  image_generation: { icon: "image", body: "image", title: image },
  apply_patch: { icon: "patch", body: "patch", title: patch },
  computer_use: { icon: "computer", body: "computer", title: computer },
  mcp: { icon: "plug", body: "mcp", title: mcp },
  mcp_list_tools: { icon: "plug", body: "mcp", title: mcpList },
  tool_search: { icon: "wrench", body: "function", title: toolSearch },
  memory: { icon: "note", body: "function", title: memory },
};
const AGENT: Kind = { icon: "agent", body: "agent", title: agent };
const FUNCTION: Kind = { icon: "wrench", body: "function", title: own };

export function kindOf(call: Call): Kind {
  if (call.data?.agent) return AGENT;
  if (call.data?.server) return call.name === "mcp_list_tools" ? KINDS.mcp_list_tools! : KINDS.mcp!;
  return KINDS[call.tool] ?? KINDS[call.name] ?? FUNCTION;
}

/** The line of a card. */
export function titleOf(call: Call): string {
  if (
    call.part.state === "output-error" &&
    call.part.input === undefined &&
    "rawInput" in call.part &&
    call.part.rawInput !== undefined
  ) {
    return say.notJson;
  }
  const title = kindOf(call).title(call);
  return call.state === "denied" ? say.denied(call.name) : title;
}

/** Where it runs: the provider's name, or `here`. */
export function whereOf({ data, part }: Call): string {
  return data?.where ?? (part.providerExecuted ? "" : say.here);
}

/** The text that a tool gave back, as far as there is one; else its JSON. */
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

/** How the base64 text of an image begins, of each kind that is shown. */
const IMAGE_STARTS: [string, string][] = [
  ["iVBORw0KGgo", "image/png"],
  ["/9j/", "image/jpeg"],
  ["R0lGOD", "image/gif"],
  ["UklGR", "image/webp"],
];
const BASE64 = /^[A-Za-z0-9+/]{64,}={0,2}$/;

/** The type of an image whose base64 text this is; null for any other text. */
export function imageTypeOf(text: string): string | null {
  const found = IMAGE_STARTS.find(([start]) => text.startsWith(start));
  return found && BASE64.test(text) ? found[1] : null;
}

/** The last image in a value: the address of a file of our own server, or its bytes as base64. */
export function previewIn(value: unknown, depth = 6): string | null {
  if (depth === 0 || value === null || value === undefined) return null;
  if (typeof value === "string") return value.startsWith("/api/blobs/") || imageTypeOf(value) ? value : null;
  if (typeof value !== "object") return null;
  return Object.values(value).reduceRight<string | null>((found, entry) => found ?? previewIn(entry, depth - 1), null);
}

/** The pages that a search lists. */
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
