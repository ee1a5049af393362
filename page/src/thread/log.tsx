import type { RefObject } from "react";
import type { Session, SessionState } from "../chat/session";
import type { PageMessage } from "../chat/types";
import { words } from "../words";
import { Empty, SignIn } from "./empty";
import { Message } from "./message";

interface Props {
  session: Session;
  state: SessionState;
  messages: PageMessage[];
  isRunning: boolean;
  leaf: number | null;
  content: RefObject<HTMLDivElement | null>;
  /** Send an example with its tool. */
  onPick: (text: string, tool: string | null) => void;
}

/** The messages of a conversation, including unsent ones. */
export function ThreadLog({ session, state, messages, isRunning, leaf, content, onPick }: Props) {
  const isEmpty = messages.length === 0 && (state.phase === "new" || state.phase === "open");
  const last = messages.at(-1);
  return (
    <div ref={content} className="thread-content" role="log" aria-live="off" aria-label={words.conversation}>
      <Phase state={state} onRetry={() => void session.load(leaf)} />
      {isEmpty && <Empty onPick={onPick} />}
      {messages.map((message, index) => (
        <Message
          key={message.id}
          message={message}
          index={index}
          isLive={isRunning && message === last && message.role === "assistant"}
          isLast={index === messages.length - 1}
          chatId={session.id}
          leaf={state.leaf}
          leaves={state.leaves}
        />
      ))}
      {isRunning && last?.role === "user" && <span className="dot" />}
      <Steering session={session} state={state} />
    </div>
  );
}

/** Placeholder for a conversation that is loading, missing or failed to load. */
function Phase({ state, onRetry }: { state: SessionState; onRetry: () => void }) {
  switch (state.phase) {
    case "loading":
      return <p className="notice muted">{words.loading}</p>;
    case "missing":
      return <p className="notice">{words.noChat}</p>;
    case "failed":
      return (
        <div className="notice" role="alert">
          <p dir="auto">{state.refusal}</p>
          <SignIn message={state.refusal} />{" "}
          <button type="button" className="button" onClick={onRetry}>
            {words.retry}
          </button>
        </div>
      );
    default:
      return null;
  }
}

/** Messages written during an answer: steering messages and queued ones. */
function Steering({ session, state }: { session: Session; state: SessionState }) {
  return (
    <>
      {state.steering.map((one) => (
        <div key={one.id} className="steer">
          <p className="bubble said" dir="auto">
            {one.text}
          </p>
          <p className="meta">
            {words.steering[one.state]}{" "}
            {one.state === "missed" && (
              <button
                type="button"
                className="link"
                onClick={() => {
                  session.dropSteering(one.id);
                  void session.send(one.text, []);
                }}
              >
                {words.sendAsMessage}
              </button>
            )}
          </p>
        </div>
      ))}
      {state.queue !== null && (
        <div className="steer">
          <p className="bubble said" dir="auto">
            {state.queue}
          </p>
          <p className="meta">
            {words.queued}{" "}
            <button type="button" className="link" onClick={() => session.dropQueue()}>
              {words.cancel}
            </button>
          </p>
        </div>
      )}
    </>
  );
}
