import { useContext, useEffect, useState, useSyncExternalStore } from "react";
import type { WaitingData } from "../chat/types";
import { Icon } from "../ui/icons";
import { words } from "../words";
import { Thread } from "./context";

const never = () => () => undefined;

/** What a run waits for, with the seconds left and a button that stops it. */
export function Waiting({ data }: { data: WaitingData }) {
  const { session } = useContext(Thread);
  const isStopping = useSyncExternalStore(session?.subscribe ?? never, () => session?.state.isStopping ?? false);
  const left = useSecondsLeft(data);
  return (
    <p className="run-waiting" role="status">
      <span className="dot" />
      <span className="run-waiting-what" dir="auto">
        {words.waitsFor[data.reason] ?? data.message}
        {data.reason === "retry" && data.cause && ` (${data.cause})`}
      </span>
      {/* The seconds change too often to be announced. */}
      <span className="meta" aria-hidden="true">
        {leftWords(data, left)}
        {data.attempt && data.attempts ? ` · ${words.attempt(data.attempt, data.attempts)}` : null}
      </span>
      <button type="button" className="button quiet" disabled={isStopping} onClick={() => void session?.stop()}>
        <Icon name="stop" /> {words.stop}
      </button>
    </p>
  );
}

function leftWords({ reason }: WaitingData, left: number | null): string | null {
  if (left === null) return null;
  if (reason !== "retry") return left > 0 ? words.limitedFor(left) : null;
  return left > 0 ? words.secondsLeft(left) : words.retryingNow;
}

/** Return the whole seconds until the end of a wait, or null if it is unknown. The clocks may differ. */
export function secondsLeft({ since, until }: WaitingData, now: number): number | null {
  if (until === undefined) return null;
  return Math.max(0, Math.ceil(Math.min(until - now, until - since)));
}

function useSecondsLeft(data: WaitingData): number | null {
  const [now, setNow] = useState(() => Date.now() / 1000);
  const left = secondsLeft(data, now);
  useEffect(() => {
    setNow(Date.now() / 1000);
    if (data.until === undefined) return;
    const timer = setInterval(() => setNow(Date.now() / 1000), 250);
    return () => clearInterval(timer);
  }, [data.until]);
  return left;
}
