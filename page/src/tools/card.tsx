import { memo, type ReactNode, useId, useRef, useState } from "react";
import type { ToolData, ToolPart } from "../chat/types";
import type { CallView, FileView } from "../chat/view";
import { isShallowEqual } from "../equal";
import { duration } from "../format";
import { useProvider } from "../thread/models";
import { Icon } from "../ui/icons";
import { Link } from "../ui/link";
import { words } from "../words";
import { Body, hasBody } from "./bodies";
import { type Call, callOf, isRequestOnly, kindOf, titleOf, whereOf } from "./describe";
import { useFold, useFoldable } from "./fold";
import { Picture, Screenshot } from "./picture";
import "./tools.css";

interface Props {
  part: ToolPart;
  data: ToolData | null;
  /** Whether the call's message is still growing. */
  isLive: boolean;
  /** Images made by the call, if the card shows them. */
  files: FileView[];
  /** Nested calls of a subagent or a program. */
  nested: CallView[];
  run: string | null;
  /** Says that the model thought before this call, if that is not shown. */
  thought?: string | null;
}

const SHOW_TIME_MS = 2000;

/** Card of a call. It is open while the call runs, and collapses without shifting what the user reads. */
export const ToolCard = memo(function ToolCard({ part, data, isLive, files, nested, run, thought = null }: Props) {
  const call = callOf(part, data, isLive);
  const kind = kindOf(call);
  const isOpenByItself =
    call.state === "running" ||
    call.state === "failed" ||
    (call.state === "waiting" && kind.body === "agent") ||
    (kind.body === "mcp" && !isRequestOnly(call));
  const hasMore = hasBody(call, kind.body) || nested.length > 0 || (run !== null && data?.seq !== undefined);
  const isOpenNow = isOpenByItself && kind.body !== "search" && kind.body !== "image";
  const { isOpen, toggle, card } = useFold(isOpenNow, hasMore);
  const body = useId();
  const head = <Head call={call} isOpen={hasMore ? isOpen : null} thought={thought} />;
  return (
    <section className={`card ${kind.body}-card ${call.state}`} ref={card} id={`c-${part.toolCallId}`}>
      {hasMore ? (
        <button type="button" className="card-head" aria-expanded={isOpen} aria-controls={body} onClick={toggle}>
          {head}
        </button>
      ) : (
        <p className="card-head">{head}</p>
      )}
      {hasMore && (
        <div id={body} className="card-body" hidden={!isOpen}>
          {isOpen && (
            <>
              <Body
                call={call}
                kind={kind.body}
                isOpen
                nested={<NestedCalls calls={nested} isLive={isLive} run={run} />}
              />
              <TimelineLink run={run} seq={data?.seq} isShown={call.state !== "running"} />
            </>
          )}
        </div>
      )}
      {!isOpen && kind.body === "code" && call.state === "done" && <Body call={call} kind="code" isOpen={false} />}
      {kind.body === "computer" && call.state !== "waiting" && <Screenshot call={call} />}
      {kind.body === "image" && <Picture call={call} files={files} />}
    </section>
  );
}, isSame);

function isSame(before: Props, after: Props): boolean {
  return (
    before.isLive === after.isLive &&
    before.data === after.data &&
    before.run === after.run &&
    before.thought === after.thought &&
    areSame(before.nested, after.nested) &&
    before.files.length === after.files.length &&
    before.files.every((file, index) => isShallowEqual(file, after.files[index]!)) &&
    isShallowEqual(before.part, after.part)
  );
}

function areSame(before: CallView[], after: CallView[]): boolean {
  if (before === after) return true;
  if (before.length !== after.length) return false;
  return before.every((one, index) => {
    const other = after[index]!;
    return one.part === other.part && one.data === other.data && areSame(one.nested, other.nested);
  });
}

const NO_FILES: FileView[] = [];

/** Nested calls of a subagent or a program. Their files are shown outside the card. */
function NestedCalls({ calls, isLive, run }: { calls: CallView[]; isLive: boolean; run: string | null }) {
  if (calls.length === 0) return null;
  const cards = calls.map(({ key, part, data, nested }) => (
    <ToolCard
      key={key}
      part={part}
      data={data}
      isLive={isLive && !isFinal(part)}
      files={NO_FILES}
      nested={nested}
      run={run}
    />
  ));
  const early = earlyOf(calls);
  if (early === 0) return <div className="nested">{cards}</div>;
  const ms = calls.slice(0, early).reduce((total, { data }) => total + (data?.ms ?? 0), 0);
  return (
    <div className="nested">
      <ToolGroup count={early} ms={ms} isGranted={calls.slice(0, early).some(({ data }) => data?.grant !== undefined)}>
        {cards.slice(0, early)}
      </ToolGroup>
      {cards.slice(early)}
    </div>
  );
}

const SHOWN_CALLS = 12;
const GROUPED = 3;

/** Return how many of the first calls to merge into one line, so that the last stay visible. */
export function earlyOf(calls: CallView[]): number {
  const most = calls.length - SHOWN_CALLS;
  const open = calls.findIndex(({ part }) => part.state !== "output-available" || part.preliminary);
  const early = open < 0 ? most : Math.min(most, open);
  return early < GROUPED ? 0 : early;
}

/** Return whether a call is finished, whether or not its message is. */
export function isFinal(part: ToolPart): boolean {
  if (part.state === "output-available") return !part.preliminary;
  return part.state === "output-error" || part.state === "output-denied";
}

function Head({ call, isOpen, thought }: { call: Call; isOpen: boolean | null; thought: string | null }) {
  const where = whereOf(call);
  const provider = useProvider(where);
  const ms = call.data?.ms;
  return (
    <>
      {call.state === "running" ? (
        <span className="dot" />
      ) : (
        <Icon name={call.state === "failed" ? "warning" : kindOf(call).icon} />
      )}
      <span className="card-title" dir="auto">
        <Title text={titleOf(call)} />
      </span>
      <span className="card-where meta">
        {thought && (
          <span className="after-thought" title={thought}>
            <Icon name="thought" />
            <span className="hidden">{thought}</span>
          </span>
        )}
        {where === words.here ? where : provider?.label}
        {ms !== undefined && ms >= SHOW_TIME_MS && ` · ${duration(ms)}`}
      </span>
      {isOpen !== null && <Icon name={isOpen ? "down" : "right"} />}
    </>
  );
}

/** Title of a card. The result count (`· 3 pages`) stays visible however long the query is. */
function Title({ text }: { text: string }) {
  const at = text.lastIndexOf(" · ");
  if (at < 0) return text;
  return (
    <>
      <span className="card-main">{text.slice(0, at)}</span>
      <span className="card-found">{text.slice(at)}</span>
    </>
  );
}

/** Link from a card to its first record. */
function TimelineLink({ run, seq, isShown }: { run: string | null; seq: number | undefined; isShown: boolean }) {
  if (!isShown || run === null || seq === undefined) return null;
  return (
    <p className="meta">
      <Link to={`/r/${encodeURIComponent(run)}?seq=${seq}`}>{words.openTimeline}</Link>
    </p>
  );
}

interface GroupProps {
  count: number;
  ms: number;
  /** Whether a remembered approval covered one of them. */
  isGranted: boolean;
  children: ReactNode;
}

/** Several finished calls in one line. */
export function ToolGroup({ count, ms, isGranted, children }: GroupProps) {
  const [isOpen, open] = useState(false);
  const card = useRef<HTMLElement>(null);
  const toggle = () => open(!isOpen);
  useFoldable(card, toggle);
  const body = useId();
  return (
    <section className="card tool-group" ref={card}>
      <button type="button" className="card-head" aria-expanded={isOpen} aria-controls={body} onClick={toggle}>
        <Icon name="wrench" />
        <span className="card-title">{words.usedTools(count, ms)}</span>
        <span className="card-where meta">{isGranted && words.granted}</span>
        <Icon name={isOpen ? "down" : "right"} />
      </button>
      <div id={body} className="tool-group-body" hidden={!isOpen}>
        {isOpen && children}
      </div>
    </section>
  );
}
