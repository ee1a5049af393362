import { useEffect, useRef } from "react";
import type { PageMessage } from "../chat/types";
import { viewOf } from "../chat/view";
import { SourceLink } from "../parts/sources";
import { Icon } from "../ui/icons";
import { words } from "../words";
import type { Inspected } from "./context";

interface Props {
  what: Inspected;
  messages: PageMessage[];
  onClose: () => void;
}

/** Side panel with the full details of a card, or the sources of an answer. */
export function Inspector({ what, messages, onClose }: Props) {
  const title = what.kind === "text" ? what.title : words.sources;
  const close = useRef<HTMLButtonElement>(null);
  useEffect(() => close.current?.focus(), []);
  return (
    <aside className="inspector" aria-label={words.details} onKeyDown={(event) => event.key === "Escape" && onClose()}>
      <header className="inspector-head">
        <h2>{title}</h2>
        <button ref={close} type="button" className="button quiet icon" aria-label={words.close} onClick={onClose}>
          <Icon name="close" />
        </button>
      </header>
      <div className="inspector-body">
        {what.kind === "text" ? (
          <pre dir="auto">{what.text}</pre>
        ) : (
          <SourceDetails messages={messages} messageId={what.messageId} number={what.number} />
        )}
      </div>
    </aside>
  );
}

function SourceDetails({
  messages,
  messageId,
  number,
}: {
  messages: PageMessage[];
  messageId: string;
  number: number | null;
}) {
  const message = messages.find((one) => one.id === messageId);
  const current = useRef<HTMLLIElement>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: a new number is a new scroll target
  useEffect(() => {
    // Newer browsers return a promise, which React would mistake for a cleanup function.
    void current.current?.scrollIntoView({ block: "nearest" });
  }, [number]);
  if (!message) return null;
  const { sources } = viewOf(message);
  return (
    <ol className="source-list">
      {sources.map((source) => (
        <li
          key={source.key}
          ref={source.number !== null && source.number === number ? current : undefined}
          className={source.number !== null && source.number === number ? "current" : undefined}
        >
          <p>
            {source.number !== null && <strong>{source.number} </strong>}
            <SourceLink source={source} />
          </p>
          {source.url && <p className="meta address">{source.url}</p>}
          {source.quotes.map((quote) => (
            <blockquote key={quote} dir="auto">
              {quote}
            </blockquote>
          ))}
        </li>
      ))}
    </ol>
  );
}
