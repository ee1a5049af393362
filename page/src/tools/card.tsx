import { memo, type ReactNode, useContext, useEffect, useId, useRef, useState } from "react";
import type { ToolData, ToolPart } from "../chat/types";
import { isShallowEqual } from "../equal";
import { Thread } from "../thread/context";
import { Icon } from "../ui/icons";
import { words } from "../words";
import { Body } from "./bodies";
import { callOf, kindOf, titleOf, whereOf } from "./describe";
import { toolWords } from "./words";
import "./tools.css";

interface Props {
  part: ToolPart;
  data: ToolData | null;
  /** True while the message of the call still grows. */
  isLive: boolean;
}

const SHOW_TIME_MS = 2000;

/** A call: one line, and what is behind it. It is open while it runs, and folds without moving what is read. */
export const ToolCard = memo(function ToolCard({ part, data, isLive }: Props) {
  const call = callOf(part, data, isLive);
  const kind = kindOf(call);
  const isOpenByItself = call.state === "running" || call.state === "failed" || kind.body === "mcp";
  const { isOpen, toggle, card } = useFold(isOpenByItself && kind.body !== "search");
  const body = useId();
  const where = whereOf(call);
  return (
    <section className={`card ${call.state}`} ref={card} id={`c-${part.toolCallId}`}>
      <button type="button" className="card-head" aria-expanded={isOpen} aria-controls={body} onClick={toggle}>
        {call.state === "running" ? (
          <span className="dot" />
        ) : (
          <Icon name={call.state === "failed" ? "warning" : kind.icon} />
        )}
        <span className="card-title" dir="auto">
          {titleOf(call)}
        </span>
        <span className="card-where meta">
          {where}
          {data?.ms !== undefined && data.ms >= SHOW_TIME_MS && ` · ${toolWords.took(data.ms)}`}
        </span>
        <Icon name={isOpen ? "down" : "right"} />
      </button>
      <div id={body} className="card-body" hidden={!isOpen && kind.body !== "image"}>
        {(isOpen || kind.body === "image") && <Body call={call} kind={kind.body} isOpen={isOpen} />}
      </div>
      {!isOpen && kind.body === "code" && call.state === "done" && <Body call={call} kind="code" isOpen={false} />}
    </section>
  );
}, isSame);

function isSame(before: Props, after: Props): boolean {
  return before.isLive === after.isLive && before.data === after.data && isShallowEqual(before.part, after.part);
}

/** Several finished calls as one line. */
export function ToolGroup({ count, ms, children }: { count: number; ms: number; children: ReactNode }) {
  const [isOpen, open] = useState(false);
  const body = useId();
  return (
    <section className="card tool-group">
      <button
        type="button"
        className="card-head"
        aria-expanded={isOpen}
        aria-controls={body}
        onClick={() => open(!isOpen)}
      >
        <Icon name="wrench" />
        <span className="card-title">{words.usedTools(count, ms)}</span>
        <span className="card-where" />
        <Icon name={isOpen ? "down" : "right"} />
      </button>
      <div id={body} className="tool-group-body" hidden={!isOpen}>
        {isOpen && children}
      </div>
    </section>
  );
}

/** Whether a card is open: as the person wants it, else while it has something to show. */
export function useFold(isOpenByItself: boolean) {
  const [wish, setWish] = useState<boolean | null>(null);
  const [isHeld, hold] = useState(false);
  const card = useRef<HTMLElement>(null);
  const { isFollowing } = useContext(Thread);
  const before = useRef(isOpenByItself);
  useEffect(() => {
    const wasOpen = before.current;
    before.current = isOpenByItself;
    if (!wasOpen || isOpenByItself || isFollowing()) return;
    // It would fold before the reader's eyes: it waits until it is off the screen.
    hold(true);
    const watching = new IntersectionObserver(([entry]) => {
      if (entry && !entry.isIntersecting) hold(false);
    });
    if (card.current) watching.observe(card.current);
    return () => watching.disconnect();
  }, [isOpenByItself, isFollowing]);
  const isOpen = wish ?? (isOpenByItself || isHeld);
  return { isOpen, toggle: () => setWish(!isOpen), card };
}
