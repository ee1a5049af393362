// View model of a message: rows in order, numbered sources, and the footer.
import { isToolUIPart } from "ai";
import { fileUrl } from "../api";
import { type Citation, marked, pieces } from "../markdown/chips";
import { hostOf, withoutTracking } from "../markdown/links";
import {
  type ApprovalData,
  type NoticeData,
  ours,
  type PageMessage,
  type PagePart,
  type RunData,
  type SidestreamMetadata,
  type SteerData,
  type StepData,
  type ToolData,
  type ToolPart,
  type WaitingData,
} from "./types";

export interface Source {
  key: string;
  /** Number in the order of first use. Null for a source that was read but not cited. */
  number: number | null;
  name: string;
  title: string;
  url: string | null;
  /** Whether the text cites it as a file, which the server can read. */
  isCitedFile: boolean;
  quotes: string[];
  mark: "found" | "missing" | null;
  /** Evidence of its weakest citation. Null if none was checked. */
  evidence: NonNullable<SidestreamMetadata["evidence"]> | null;
}

export interface FileView {
  key: string;
  url: string;
  name: string;
  mediaType: string;
  /** Id of the call that made it. */
  call: string | null;
}

/** A call with its state and its nested calls. */
export interface CallView {
  key: string;
  part: ToolPart;
  data: ToolData | null;
  nested: CallView[];
}

export type Row =
  | { kind: "text"; key: string; text: string; isStreaming: boolean; citations: Citation[] }
  | { kind: "reasoning"; key: string; text: string; isStreaming: boolean }
  | (CallView & { kind: "tool"; approvals: ApprovalData[]; isAutomatic: boolean })
  | { kind: "file"; key: string; file: FileView }
  | { kind: "steer"; key: string; text: string; data: SteerData | null }
  | { kind: "notice"; key: string; data: NoticeData }
  | { kind: "custom"; key: string; name: string };

export interface MessageView {
  rows: Row[];
  sources: Source[];
  run: RunData | null;
  steps: StepData[];
  /** Error that ended the run. */
  error: NoticeData | null;
  /** What the run waits for. */
  waiting: WaitingData | null;
}

interface Span {
  source: string;
  end: number | null;
  /** Start of the link that the number replaces. */
  from?: number;
}

/** Return what a call needs from the user: one decision, or several questions from its server. */
function waitingFor(part: ToolPart, approvals: ApprovalData[]): ApprovalData[] {
  if (part.state !== "approval-requested") return [];
  const { id, signature } = part.approval;
  const waiting = approvals.filter(
    (one) => one.approved === undefined && (one.approval === id || one.call === part.toolCallId),
  );
  return waiting.length > 0 ? waiting : [{ approval: id, digest: signature }];
}

/** Return whether a policy, not the user, decided on the call. */
function isAutomatic(part: ToolPart, approvals: ApprovalData[]): boolean {
  const { id, isAutomatic = false } = ("approval" in part && part.approval) || {};
  return isAutomatic || approvals.some((one) => one.approval === id && one.automatic === true);
}

/** Return the pending approvals of the last message. */
export function pendingApprovals(messages: PageMessage[]): ApprovalData[] {
  const last = messages.at(-1);
  return last ? viewOf(last).rows.flatMap((row) => (row.kind === "tool" ? row.approvals : [])) : [];
}

type SourcePart = Extract<PagePart, { type: "source-url" | "source-document" }>;
type TextPart = Extract<PagePart, { type: "text" }>;

const views = new WeakMap<PageMessage, MessageView>();

/** Return the view of a message, cached for each state of the message. */
export function viewOf(message: PageMessage): MessageView {
  const known = views.get(message);
  if (known) return known;
  const view = madeView(message);
  views.set(message, view);
  return view;
}

function madeView({ parts }: PageMessage): MessageView {
  const tools = new Map<string, ToolData>();
  const approvals: ApprovalData[] = [];
  const steers = new Map<string, SteerData>();
  const steps: StepData[] = [];
  const found = new Map<string, SourcePart>();
  const made = new Map<string, ToolPart[]>();
  let run: RunData | null = null;
  let waiting: WaitingData | null = null;
  for (const part of parts) {
    if (part.type === "data-tool") tools.set(part.data.call, part.data);
    else if (part.type === "data-call") {
      const siblings = made.get(part.data.parent);
      if (siblings) siblings.push(part.data.part);
      else made.set(part.data.parent, [part.data.part]);
    } else if (part.type === "data-approval") approvals.push(part.data);
    else if (part.type === "data-steer") steers.set(part.data.id, part.data);
    else if (part.type === "data-step") steps.push(part.data);
    else if (part.type === "data-run") run = part.data;
    else if (part.type === "data-waiting") waiting = part.data.over ? null : part.data;
    else if (part.type === "source-url" || part.type === "source-document") found.set(part.sourceId, part);
  }
  const sources = new SourceList(found);
  const rows: Row[] = [];
  const blocks = new Map<string, Extract<Row, { kind: "text" | "reasoning" }>>();
  const texts = new Map<Row, { block: string; parts: TextPart[] }>();
  let error: NoticeData | null = null;
  for (const [index, part] of parts.entries()) {
    const key = `p${index}`;
    if (part.type === "text" || part.type === "reasoning") {
      const { block, text } = ours(part.providerMetadata);
      const name = `${part.type} ${block ?? key}`;
      const isStreaming = part.state === "streaming";
      const known = blocks.get(name);
      if (known) {
        known.text = text ?? known.text + part.text;
        known.isStreaming = isStreaming;
        if (part.type === "text") texts.get(known)?.parts.push(part);
        continue;
      }
      const row: Extract<Row, { kind: "text" | "reasoning" }> =
        part.type === "text"
          ? { kind: "text", key, text: text ?? part.text, isStreaming, citations: [] }
          : { kind: "reasoning", key, text: text ?? part.text, isStreaming };
      blocks.set(name, row);
      rows.push(row);
      if (part.type === "text") texts.set(row, { block: block ?? key, parts: [part] });
    } else if (isToolUIPart(part)) {
      rows.push({
        kind: "tool",
        ...callView(part, tools, made),
        approvals: waitingFor(part, approvals),
        isAutomatic: isAutomatic(part, approvals),
      });
    } else if (part.type === "file") {
      rows.push({ kind: "file", key, file: fileOf(part, key) });
    } else if (part.type === "steering-message") {
      const text = part.parts.map((one) => (one.type === "text" ? one.text : "")).join(" ");
      rows.push({ kind: "steer", key, text, data: steers.get(part.id) ?? null });
    } else if (part.type === "data-notice") {
      if (part.data.kind === "error") error = part.data;
      else rows.push({ kind: "notice", key, data: part.data });
    } else if (part.type === "custom") {
      rows.push({ kind: "custom", key, name: part.kind });
    }
  }
  for (const [row, { block, parts: pieces }] of texts) {
    if (row.kind === "text") row.citations = sources.citationsOf(spansOf(block, pieces, found));
  }
  return { rows, sources: sources.list(), run, steps, error, waiting };
}

const NO_CALLS: CallView[] = [];

function callView(part: ToolPart, tools: Map<string, ToolData>, made: Map<string, ToolPart[]>): CallView {
  const { toolCallId } = part;
  const nested = made.get(toolCallId)?.map((one) => callView(one, tools, made)) ?? NO_CALLS;
  return { key: `c-${toolCallId}`, part, data: tools.get(toolCallId) ?? null, nested };
}

/** Return a text's citations: from sources that name its block, and from its end part. */
function spansOf(block: string, parts: TextPart[], found: Map<string, SourcePart>): Span[] {
  const spans: Span[] = [];
  for (const source of found.values()) {
    const metadata = ours(source.providerMetadata);
    if (metadata.block === block) spans.push(spanOf(source.sourceId, metadata, metadata.end));
  }
  for (const part of parts) {
    for (const { source, endIndex } of part.citations ?? []) {
      if (!spans.some((span) => span.source === source.id))
        spans.push(spanOf(source.id, ours(source.providerMetadata), endIndex));
    }
  }
  return spans.sort((a, b) => (a.end ?? Number.MAX_SAFE_INTEGER) - (b.end ?? Number.MAX_SAFE_INTEGER));
}

function spanOf(source: string, { markerStart, markerEnd }: SidestreamMetadata, end: number | undefined): Span {
  if (markerStart === undefined || markerEnd === undefined) return { source, end: end ?? null };
  return { source, end: markerEnd, from: markerStart };
}

/** Numbers sources in order of first use. The same source keeps its number. */
class SourceList {
  private readonly cited: Source[] = [];
  private readonly used = new Set<string>();

  constructor(private readonly found: Map<string, SourcePart>) {}

  citationsOf(spans: Span[]): Citation[] {
    const citations: Citation[] = [];
    for (const { source: id, end, from } of spans) {
      const part = this.found.get(id);
      if (!part) continue;
      this.used.add(id);
      const source = this.numbered(part);
      if (end !== null) citations.push({ end, number: source.number!, ...(from === undefined ? {} : { from }) });
    }
    return citations;
  }

  /** Return the cited sources, then those that were only read. */
  list(): Source[] {
    const keys = new Set(this.cited.map((source) => source.key));
    const read = new Map<string, Source>();
    for (const [id, part] of this.found) {
      const source = sourceOf(part, null);
      if (!this.used.has(id) && !keys.has(source.key)) read.set(source.key, source);
    }
    return [...this.cited, ...read.values()];
  }

  private numbered(part: SourcePart): Source {
    const made = sourceOf(part, this.cited.length + 1);
    const known = this.cited.find((source) => source.key === made.key);
    if (!known) {
      this.cited.push(made);
      return made;
    }
    for (const quote of made.quotes) if (!known.quotes.includes(quote)) known.quotes.push(quote);
    if (made.mark === "missing" || known.mark === null) {
      known.mark = made.mark;
      known.evidence = made.evidence;
    }
    return known;
  }
}

function sourceOf(part: SourcePart, number: number | null): Source {
  const { citedText, evidence = null, kind, url: at } = ours(part.providerMetadata);
  const mark = evidence && (evidence.state === "quoted" || evidence.state === "supported" ? "found" : "missing");
  const given = part.type === "source-url" ? part.url : (at ?? null);
  const url = given && withoutTracking(given);
  const title = part.title || url || part.sourceId;
  const name = url ? hostOf(url) : title;
  const isCitedFile = kind === "document" && number !== null;
  const quotes = citedText ? [citedText] : [];
  return { key: url ?? title, number, name, title, url, isCitedFile, quotes, mark, evidence };
}

function fileOf(part: Extract<PagePart, { type: "file" }>, key: string): FileView {
  const { name, call = null } = ours(part.providerMetadata);
  const shown = part.filename ?? name ?? nameIn(part.url);
  return { key, url: fileUrl(part.url), name: shown, mediaType: part.mediaType, call };
}

function nameIn(url: string): string {
  try {
    const address = new URL(url, "http://x");
    return address.searchParams.get("name") ?? "";
  } catch {
    return "";
  }
}

/** Return a message's text for copying, with citations as `[1]` and a list of sources. */
export function plainText(view: MessageView): string {
  const texts = view.rows.flatMap((row) => {
    if (row.kind !== "text") return [];
    return [
      pieces(marked(row.text, row.citations))
        .map((one) => (typeof one === "number" ? `[${one}]` : one))
        .join(""),
    ];
  });
  const notes = view.sources.flatMap((source) =>
    source.number === null ? [] : [`[${source.number}] ${source.title}${source.url ? `: ${source.url}` : ""}`],
  );
  return [...texts, ...(notes.length > 0 ? [notes.join("\n")] : [])].join("\n\n");
}
