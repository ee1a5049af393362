import { memo, type ReactNode, useCallback, useContext, useMemo } from "react";
import type { Leaf } from "../api";
import { ApprovalCard, Decided } from "../approval/card";
import { versionsAt } from "../chat/branches";
import type { PageMessage } from "../chat/types";
import { type FileView, type MessageView, plainText, type Row, type Source, viewOf } from "../chat/view";
import { isShallowEqual } from "../equal";
import { duration } from "../format";
import type { Citation } from "../markdown/chips";
import { type ChipRenderer, Markdown } from "../markdown/render";
import { ErrorBlock } from "../parts/errors";
import { FileTile } from "../parts/files";
import { Reasoning } from "../parts/reasoning";
import { Chip, Footnotes } from "../parts/sources";
import { navigate } from "../router";
import { hasPanel } from "../routes";
import { isFinal, ToolCard, ToolGroup } from "../tools/card";
import { callOf, kindOf } from "../tools/describe";
import { CopyButton } from "../ui/copy";
import { Icon } from "../ui/icons";
import { Link } from "../ui/link";
import { Tip } from "../ui/tip";
import { words } from "../words";
import { Thread } from "./context";
import { useProvider } from "./models";
import { Waiting } from "./waiting";

interface Props {
  message: PageMessage;
  index: number;
  /** Whether the message may still grow. */
  isLive: boolean;
  isLast: boolean;
  chatId: string;
  leaf: number | null;
  leaves: Leaf[];
}

export const Message = memo(function Message(props: Props) {
  return props.message.role === "user" ? <Question {...props} /> : <Answer {...props} />;
});

function Question({ message, index, chatId, leaf, leaves }: Props) {
  const { edit } = useContext(Thread);
  const { rows } = viewOf(message);
  const text = rows.flatMap((row) => (row.kind === "text" ? [row.text] : [])).join("\n\n");
  return (
    <article className="message question" id={`m-${message.id}`} tabIndex={-1}>
      <h2 className="hidden">{words.you}</h2>
      <div className="bubble">
        {rows.map((row) => row.kind === "file" && <FileTile key={row.key} file={row.file} />)}
        {text && (
          <p className="said" dir="auto">
            {text}
          </p>
        )}
      </div>
      <div className="message-actions">
        <Branches chatId={chatId} leaf={leaf} leaves={leaves} place={index} />
        <span className="on-demand">
          <button
            type="button"
            className="button quiet icon"
            title={words.edit}
            aria-label={words.edit}
            onClick={() => edit(message.id)}
          >
            <Icon name="edit" />
          </button>
          <CopyButton text={() => text} />
        </span>
      </div>
    </article>
  );
}

function Branches({
  chatId,
  leaf,
  leaves,
  place,
}: {
  chatId: string;
  leaf: number | null;
  leaves: Leaf[];
  place: number;
}) {
  const versions = useMemo(() => (leaf === null ? null : versionsAt(leaves, leaf, place)), [leaves, leaf, place]);
  if (!versions) return null;
  const go = (to: number | null) => to !== null && navigate(`/c/${encodeURIComponent(chatId)}?leaf=${to}`);
  const label = words.branch(versions.index, versions.count);
  return (
    <span className="branches">
      <button
        type="button"
        className="button quiet icon"
        aria-label={words.previousBranch}
        disabled={versions.previous === null}
        onClick={() => go(versions.previous)}
      >
        <Icon name="left" />
      </button>
      <span className="meta">
        <span className="hidden">{label}</span>
        <span aria-hidden="true">
          {versions.index}/{versions.count}
        </span>
      </span>
      <button
        type="button"
        className="button quiet icon"
        aria-label={words.nextBranch}
        disabled={versions.next === null}
        onClick={() => go(versions.next)}
      >
        <Icon name="right" />
      </button>
    </span>
  );
}

function Answer({ message, isLive, isLast }: Props) {
  const { session } = useContext(Thread);
  const view = useMemo(() => viewOf(message), [message]);
  const provider = useProvider(view.run?.provider);
  const mayFinish = view.run?.status === "cancelled" && provider !== null && hasOpenHosted(view.rows);
  const isWaiting = view.rows.some((row) => row.kind === "tool" && row.approvals.length > 0);
  return (
    <article className="message answer" id={`m-${message.id}`} tabIndex={-1} aria-busy={isLive}>
      <h2 className="hidden">{words.answer}</h2>
      <Rows
        rows={view.rows}
        sources={view.sources}
        messageId={message.id}
        isLive={isLive}
        provider={provider?.label ?? null}
        run={view.run?.run ?? null}
      />
      {isLive && view.waiting && view.run?.status === "running" ? (
        <Waiting data={view.waiting} />
      ) : (
        isLive && view.rows.length === 0 && <span className="dot" />
      )}
      {!isLive && !isWaiting && <ErrorBlock notice={view.error} run={view.run} messageId={message.id} />}
      {!isLive && view.run?.status === "cancelled" && (
        <p className="quiet-line">
          {words.stopped(view.run.ms ?? null)}
          {mayFinish && `. ${words.mayFinish(provider.label)}.`}
        </p>
      )}
      <Footnotes sources={view.sources} messageId={message.id} isLive={isLive} />
      {!isLive && (
        <div className="message-actions">
          <Footer view={view} provider={provider?.label ?? null} />
          <span className="on-demand">
            <CopyButton text={() => plainText(view)} />
            {isLast && !isWaiting && (
              <button
                type="button"
                className="button quiet icon"
                title={words.retry}
                aria-label={words.retry}
                onClick={() => void session?.retry(message.id)}
              >
                <Icon name="retry" />
              </button>
            )}
            {hasPanel("timeline") && view.run?.run && (
              <Link to={`/r/${encodeURIComponent(view.run.run)}`} className="button quiet">
                <Icon name="bars" /> {words.timeline}
              </Link>
            )}
          </span>
        </div>
      )}
    </article>
  );
}

/** Model and time of an answer. A tooltip has the rest. */
function Footer({ view, provider }: { view: MessageView; provider: string | null }) {
  const { run, steps, rows } = view;
  if (!run) return null;
  const sum = (name: "inputTokens" | "outputTokens" | "cachedInputTokens") =>
    steps.reduce((total, step) => total + (step.usage?.[name] ?? 0), 0);
  const input = sum("inputTokens");
  const say = words.facts;
  const facts: [string, string | null][] = [
    [say.model, run.model ?? null],
    [say.by, provider],
    [say.time, run.ms === undefined ? null : duration(run.ms)],
    [say.steps, steps.length > 1 ? String(steps.length) : null],
    [
      say.tokens,
      input > 0 ? `${words.tokensIn(input, sum("cachedInputTokens"))}, ${words.tokensOut(sum("outputTokens"))}` : null,
    ],
    [say.cost, steps.length > 0 ? words.cost(run.cost) : null],
    [say.thinking, rows.some(isHiddenThought) ? words.hiddenThinking : null],
    [say.unknown, run.unknown ? String(run.unknown) : null],
  ];
  const short = [run.model, run.ms === undefined ? null : duration(run.ms)].filter(Boolean).join(" · ");
  if (!short) return null;
  return (
    <Tip label={short} className="facts meta">
      {facts.map(
        ([name, value]) =>
          value !== null && (
            <span key={name} className="fact">
              <span className="muted">{name}</span> <span dir="auto">{value}</span>
            </span>
          ),
      )}
    </Tip>
  );
}

/** Return whether the model thought without showing it. */
const isHiddenThought = (row: Row) => row.kind === "reasoning" && row.text === "" && !row.isStreaming;

/** Return whether a provider-side call was cut off. */
function hasOpenHosted(rows: Row[]): boolean {
  return rows.some(
    (row) =>
      row.kind === "tool" && row.part.providerExecuted && callOf(row.part, row.data, false).state === "unfinished",
  );
}

interface RowsProps {
  run: string | null;
  rows: Row[];
  sources: Source[];
  messageId: string;
  isLive: boolean;
  provider: string | null;
}

type ToolRowData = Extract<Row, { kind: "tool" }>;

const GROUPED = 3;
const NO_FILES: FileView[] = [];

/** The rows of an answer. Once it is finished, three or more consecutive finished calls become one line. */
function Rows({ rows, sources, messageId, isLive, provider, run }: RowsProps) {
  const shown: ReactNode[] = [];
  const pictures = picturesOf(rows);
  const filesOf = (row: ToolRowData) => pictures.get(row.part.toolCallId) ?? NO_FILES;
  let calls: ToolRowData[] = [];
  // Hidden thinking has no line of its own: the line of the next call notes it.
  const thoughtful = new Set<Row>();
  const card = (row: ToolRowData) => {
    const thought = thoughtful.has(row) ? words.notShown(provider ?? words.theProvider) : null;
    return <ToolRow key={row.key} row={row} isLive={isLive} files={filesOf(row)} run={run} thought={thought} />;
  };
  const flush = () => {
    const cards = calls.map(card);
    const ms = calls.reduce((total, row) => total + (row.data?.ms ?? 0), 0);
    if (calls.length >= GROUPED) {
      shown.push(
        <ToolGroup
          key={`g-${calls[0]!.key}`}
          count={calls.length}
          ms={ms}
          isGranted={calls.some((row) => row.data?.grant !== undefined)}
        >
          {cards}
        </ToolGroup>,
      );
    } else shown.push(...cards);
    calls = [];
  };
  for (const [index, row] of rows.entries()) {
    if (isHiddenThought(row) && !(isLive && index === rows.length - 1)) {
      const next = rows[index + 1];
      if (next) thoughtful.add(next);
      continue;
    }
    if (row.kind === "tool" && !isLive && isFoldable(row)) {
      calls.push(row);
      continue;
    }
    if (row.kind === "file" && row.file.call !== null && pictures.has(row.file.call)) continue;
    flush();
    shown.push(
      row.kind === "tool" ? (
        card(row)
      ) : (
        <OneRow key={row.key} row={row} sources={sources} messageId={messageId} isLive={isLive} />
      ),
    );
  }
  flush();
  return shown;
}

/** Return the files that are shown in the card of their call. */
function picturesOf(rows: Row[]): Map<string, FileView[]> {
  const found = new Map<string, FileView[]>();
  for (const row of rows) {
    if (row.kind === "tool" && kindOf(callOf(row.part, row.data, false)).body === "image") {
      found.set(row.part.toolCallId, []);
    } else if (row.kind === "file" && row.file.call !== null) {
      found.get(row.file.call)?.push(row.file);
    }
  }
  return found;
}

/** Return whether a call's result may be collapsed: searches and functions, not code or images. */
function isFoldable({ part, data }: ToolRowData): boolean {
  const { body } = kindOf(callOf(part, data, false));
  return part.state === "output-available" && (body === "search" || body === "function");
}

interface OneRowProps extends Omit<RowsProps, "rows" | "run" | "provider"> {
  row: Exclude<Row, ToolRowData>;
}

function OneRow({ row, sources, messageId, isLive }: OneRowProps) {
  switch (row.kind) {
    case "text":
      return (
        <TextRow
          text={row.text}
          isStreaming={row.isStreaming && isLive}
          citations={row.citations}
          sources={sources}
          messageId={messageId}
        />
      );
    case "reasoning":
      return <Reasoning text={row.text} isStreaming={isLive && (row.isStreaming || row.text === "")} />;
    case "file":
      return <FileTile file={row.file} />;
    case "steer":
      return (
        <div className="steer">
          <p className="bubble said" dir="auto">
            {row.text}
          </p>
          {row.data?.step !== undefined && <p className="meta">{words.steerRead(row.data.step + 1)}</p>}
        </div>
      );
    case "notice":
      return (
        <p className={`quiet-line ${row.data.kind === "tool" ? "amber" : ""}`} dir="auto">
          {row.data.words}
        </p>
      );
    case "custom":
      return row.name.endsWith(".compaction") ? <p className="quiet-line">{words.summarised}</p> : null;
  }
}

interface ToolRowProps {
  row: ToolRowData;
  isLive: boolean;
  files: FileView[];
  run: string | null;
  /** Says that the model thought before this call, if that is not shown. */
  thought: string | null;
}

function ToolRow({ row, isLive, files, run, thought }: ToolRowProps) {
  const { part } = row;
  const name = row.data?.name ?? (part.type === "dynamic-tool" ? part.toolName : part.type.slice("tool-".length));
  const approvals = row.approvals.map((one) => <ApprovalCard key={one.approval} part={part} data={one} name={name} />);
  // Keep a subagent's progress visible while one of its calls needs approval.
  if (approvals.length > 0 && !row.data?.agent) return approvals;
  return (
    <>
      {/* A finished call ignores the end of its message, so that thousands of cards do not re-render. */}
      <ToolCard
        part={part}
        data={row.data}
        isLive={isLive && !isFinal(part)}
        files={files}
        nested={row.nested}
        run={run}
        thought={thought}
      />
      {approvals}
      <Decided part={part} data={row.data} isAutomatic={row.isAutomatic} />
    </>
  );
}

interface TextProps {
  text: string;
  isStreaming: boolean;
  citations: Citation[];
  sources: Source[];
  messageId: string;
}

const TextRow = memo(
  function TextRow({ text, isStreaming, citations, sources, messageId }: TextProps) {
    const chip: ChipRenderer = useCallback(
      (number, key) => {
        const source = sources.find((one) => one.number === number);
        return source && <Chip key={key} source={source} messageId={messageId} />;
      },
      [sources, messageId],
    );
    return <Markdown text={text} isStreaming={isStreaming} citations={citations} chip={chip} />;
  },
  (before, after) =>
    before.text === after.text &&
    before.isStreaming === after.isStreaming &&
    before.messageId === after.messageId &&
    before.citations.length === after.citations.length &&
    before.citations.every((one, index) => isShallowEqual(one, after.citations[index]!)),
);
