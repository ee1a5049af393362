import { memo, useContext, useId, useRef, useState } from "react";
import type { Source } from "../chat/view";
import { safeLink } from "../markdown/links";
import { Thread } from "../thread/context";
import { useMayCheck } from "../thread/models";
import { Icon } from "../ui/icons";
import { Tip } from "../ui/tip";
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
          {source.evidence?.judge && <span className="meta">{source.evidence.judge}</span>}
        </span>
      )}
    </span>
  );
}

/** The button that has the server check the citations of an answer. It is there while some are not checked. */
function CheckCitations({ sources, messageId }: { sources: Source[]; messageId: string }) {
  const { session } = useContext(Thread);
  const mayCheck = useMayCheck(session);
  const [isChecking, setChecking] = useState(false);
  const open = sources.filter((source) => source.evidence === null && (source.url !== null || source.isCitedFile));
  const known = sources.filter((source) => source.evidence !== null);
  const check = async () => {
    setChecking(true);
    await session?.checkEvidence(messageId);
    setChecking(false);
  };
  const canCheck = mayCheck && (open.length > 0 || isChecking);
  if (!canCheck && known.length === 0) return null;
  return (
    <p className="check-citations meta">
      {canCheck && (
        <button type="button" className="link meta" disabled={isChecking} onClick={() => void check()}>
          {isChecking ? words.checking(open.length) : words.checkCitations}
        </button>
      )}
      <span role="status">
        {!isChecking &&
          known.length > 0 &&
          words.checked(known.filter((source) => source.mark === "found").length, known.length)}
      </span>
    </p>
  );
}

interface FootnotesProps {
  sources: Source[];
  messageId: string;
  /** Whether the answer may still grow. */
  isLive: boolean;
}

/** The cited sources below a message, and the number of pages only read. */
export const Footnotes = memo(function Footnotes({ sources, messageId, isLive }: FootnotesProps) {
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
                <>
                  {" "}
                  <Tip label={markWords(source)} className={`mark ${source.mark}`}>
                    {source.evidence?.reason && <span dir="auto">{source.evidence.reason}</span>}
                    {source.evidence?.judge && <span dir="auto">{source.evidence.judge}</span>}
                  </Tip>
                </>
              )}
            </li>
          ))}
        </ol>
      )}
      {cited.length > 0 && !isLive && <CheckCitations sources={cited} messageId={messageId} />}
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
