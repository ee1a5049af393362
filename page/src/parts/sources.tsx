import { memo, useContext, useId, useRef, useState } from "react";
import type { Source } from "../chat/view";
import { safeLink } from "../markdown/links";
import { Thread } from "../thread/context";
import { Icon } from "../ui/icons";
import { words } from "../words";

const OPEN_MS = 150;

function markWords({ evidence }: Source): string {
  return evidence ? words.evidence[evidence.state] : words.notChecked;
}

/** A citation chip. Its source appears on hover or focus. */
export function Chip({ source, messageId }: { source: Source; messageId: string }) {
  const { inspect } = useContext(Thread);
  const [isOpen, open] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const card = useId();
  const link = source.url ? safeLink(source.url, "") : null;
  const show = () => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => open(true), OPEN_MS);
  };
  const hide = () => {
    clearTimeout(timer.current);
    open(false);
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: the link in it does the same on focus
    <span className="chip-place" onMouseEnter={show} onMouseLeave={hide}>
      <a
        className={`chip ${source.mark ?? ""}`}
        href={link?.href ?? `#source-${messageId}-${source.number}`}
        target="_blank"
        rel="noopener noreferrer"
        aria-label={words.chip(source.number!, source.name, markWords(source))}
        aria-describedby={isOpen ? card : undefined}
        onFocus={show}
        onBlur={hide}
        onKeyDown={(event) => event.key === "Escape" && hide()}
        onClick={(event) => {
          if (event.ctrlKey || event.metaKey || event.shiftKey) return;
          event.preventDefault();
          hide();
          inspect({ kind: "sources", messageId, number: source.number });
        }}
      >
        {source.number} <span className="chip-name">{source.name}</span>
        {source.mark === "missing" && <Icon name="warning" />}
      </a>
      {isOpen && (
        <span id={card} role="tooltip" className="chip-card">
          <strong dir="auto">{source.title}</strong>
          <span className="meta">{source.name}</span>
          {source.quotes.slice(0, 2).map((quote) => (
            <q key={quote} dir="auto">
              {quote.slice(0, 400)}
            </q>
          ))}
          {source.quotes.length > 0 && <span className="meta">{markWords(source)}</span>}
          {source.evidence?.reason && <span className="meta">{source.evidence.reason}</span>}
        </span>
      )}
    </span>
  );
}

/** The cited sources below a message, and the number of pages only read. */
export const Footnotes = memo(function Footnotes({ sources, messageId }: { sources: Source[]; messageId: string }) {
  const { inspect } = useContext(Thread);
  if (sources.length === 0) return null;
  const read = sources.filter((source) => source.number === null);
  const cited = sources.filter((source) => source.number !== null);
  return (
    <section className="footnotes" aria-label={words.sources}>
      {cited.length > 0 && (
        <ol>
          {cited.map((source) => (
            <li key={source.key} value={source.number!} id={`source-${messageId}-${source.number}`}>
              <SourceLink source={source} />
              {source.mark && (
                <span className={`mark ${source.mark}`} title={source.evidence?.reason}>
                  {" "}
                  {markWords(source)}
                </span>
              )}
            </li>
          ))}
        </ol>
      )}
      {read.length > 0 && (
        <button
          type="button"
          className="link meta"
          onClick={() => inspect({ kind: "sources", messageId, number: null })}
        >
          {cited.length > 0 ? words.morePages(read.length) : words.pagesRead(read.length)}
        </button>
      )}
    </section>
  );
});

export function SourceLink({ source }: { source: Source }) {
  const link = source.url ? safeLink(source.url, "") : null;
  return (
    <>
      {link ? (
        <a href={link.href} target="_blank" rel="noopener noreferrer" dir="auto">
          {source.title}
        </a>
      ) : (
        <span dir="auto">{source.title}</span>
      )}
      {source.url && source.title !== source.name && <span className="meta"> {source.name}</span>}
    </>
  );
}
