import { memo, type ReactNode, useContext, useEffect, useState } from "react";
import type { NoticeData, RunData } from "../chat/types";
import { runCommand } from "../commands";
import { hasPanel } from "../routes";
import { Thread } from "../thread/context";
import { usePanels, useProvider } from "../thread/models";
import { Icon } from "../ui/icons";
import { Link } from "../ui/link";
import { words } from "../words";
import { errorWords } from "./words";

interface Props {
  notice: NoticeData | null;
  run: RunData | null;
  messageId: string;
}

type Button = "retry" | "model" | "keys" | "raw" | "continue" | "edit";

/** Buttons, by kind of error. */
const BUTTONS: Record<string, Button[]> = {
  provider: ["retry", "model"],
  "rate-limit": ["retry", "model"],
  timeout: ["retry"],
  truncated: ["continue", "retry"],
  protocol: ["raw", "retry"],
  limit: ["continue"],
  length: ["continue"],
  "content-filter": ["edit"],
};

/** Explains why a run ended early, and offers what to do. */
export const ErrorBlock = memo(function ErrorBlock({ notice, run, messageId }: Props) {
  const { session, edit } = useContext(Thread);
  const error = notice?.error ?? null;
  const kind = error?.kind ?? run?.reason ?? "";
  const provider = useProvider(run?.provider);
  const text = errorWords(error, run, notice?.words ?? null, provider);
  const has = usePanels();
  const hasKeys = has("settings") && has("keys");
  const wait = useCountdown(error?.retryAfter ?? null);
  if (text === null || !session) return null;
  const isKey = error?.kind === "provider" && (error.status === 401 || error.status === 403);
  const names = isKey ? (["keys", "retry"] as Button[]) : (BUTTONS[kind] ?? ["retry"]);
  const buttons: Record<Button, ReactNode> = {
    retry: (
      <button key="retry" type="button" className="button" onClick={() => void session.retry(messageId)}>
        {words.retry}
      </button>
    ),
    model: has("models") && (
      <button key="model" type="button" className="button" onClick={() => runCommand("model")}>
        {words.otherModel}
      </button>
    ),
    continue: (
      <button key="continue" type="button" className="button" onClick={() => void session.send(words.continueText, [])}>
        {words.continue}
      </button>
    ),
    keys: hasKeys && (
      <Link key="keys" to="/settings/keys" isSheet className="button">
        {words.keysPanel}
      </Link>
    ),
    raw: hasPanel("timeline") && run?.run && (
      <Link key="raw" to={`/r/${encodeURIComponent(run.run)}`} className="button">
        {words.openRaw}
      </Link>
    ),
    edit: (
      <button key="edit" type="button" className="button" onClick={() => edit(messageId)}>
        {words.editQuestion}
      </button>
    ),
  };
  const isHard = kind !== "limit" && kind !== "length";
  return (
    <section className={`error-block ${isHard ? "hard" : ""}`} role={isHard ? "alert" : undefined}>
      <p dir="auto">
        <Icon name="warning" /> {text}
        {wait > 0 && ` ${words.waitSeconds(wait)}`}
      </p>
      <div className="error-actions">{names.map((name) => buttons[name])}</div>
    </section>
  );
});

function useCountdown(seconds: number | null): number {
  const [left, setLeft] = useState(seconds ?? 0);
  useEffect(() => {
    if (left <= 0) return;
    const timer = setTimeout(() => setLeft(left - 1), 1000);
    return () => clearTimeout(timer);
  }, [left]);
  return left;
}
