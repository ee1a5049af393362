// The words of tools, as PAGE.md section 3 has them: what a call is doing, did, or failed at.
import { duration, size, things } from "../format";

const quoted = (text: string) => `“${text}”`;

/** Command of a memory tool → what it did; the others save a note. */
const NOTES: Record<string, string> = { view: "Read notes", delete: "Deleted a note", rename: "Renamed a note" };

export const toolWords = {
  searching: (query: string | null) => (query ? `Searching ${quoted(query)}…` : "Searching…"),
  searched: (query: string | null, pages: number) =>
    `Searched${query ? ` ${quoted(query)}` : " the web"}${pages > 0 ? ` · ${things(pages, "page")}` : ""}`,
  opening: (host: string) => `Opening ${host}…`,
  opened: (host: string) => `Opened ${host}`,
  lookedFor: (text: string, host: string) => `Looked for ${quoted(text)} in ${host}`,
  searchFailed: (message: string) => `Search failed: ${message}`,
  fetching: (address: string) => `Fetching ${address}…`,
  fetched: (title: string, bytes: number | null) => `Fetched ${title}${bytes ? ` · ${size(bytes)}` : ""}`,
  notFetched: (message: string) => `Not fetched: ${message}`,
  searchingIndex: "Searching index…",
  passages: (passages: number, files: number) => `${things(passages, "passage")} in ${things(files, "file")}`,
  writingCode: "Writing code…",
  runningCode: "Running…",
  ranCode: (language: string) => `Ran ${language}`,
  raised: (error: string) => `Raised ${error}`,
  exit: (code: number) => `Exit ${code}`,
  ranShell: "Ran",
  makingImage: "Making an image…",
  preview: (index: number) => `Preview ${index}`,
  madeImage: "Made an image",
  imageFailed: "Preview only: not finished",
  patching: "Editing files…",
  patched: (files: number, plus: number, minus: number) => `Edited ${things(files, "file")}, +${plus} −${minus}`,
  patchFailed: (message: string) => `Patch did not apply: ${message}`,
  action: (name: string, what: string) =>
    `${name.charAt(0).toUpperCase()}${name.slice(1).replace(/_/g, " ")}${what ? ` ${what}` : ""}`,
  actions: (count: number) => things(count, "action"),
  listing: (server: string) => `Asking ${server} for its tools…`,
  listed: (server: string, tools: number) => `${server} offers ${things(tools, "tool")}`,
  listFailed: (server: string, message: string) => `${server} did not answer: ${message}`,
  calling: (tool: string, server: string) => `Calling ${tool} on ${server}…`,
  askedToCall: (tool: string, server: string) => `Asked to call ${tool} on ${server}`,
  called: (tool: string, server: string) => `${server}: ${tool}`,
  answeredError: (tool: string) => `${tool} answered with an error`,
  functionRunning: (title: string) => `${title}…`,
  notJson: "Not run: arguments are no JSON",
  asking: (agent: string) => `Asking ${agent}…`,
  answered: (agent: string) => `${agent} answered`,
  lookingForTool: "Looking for a tool…",
  foundTools: (count: number) => `Found ${things(count, "tool")}`,
  savedNote: (command: string) => NOTES[command] ?? "Saved a note",
  savingNote: "Saving a note…",
  remembering: "Reading notes…",
  took: (ms: number) => duration(ms),
  here: "here",
  granted: "allowed in this conversation",
  denied: (title: string) => `${title} was denied`,
} as const;
