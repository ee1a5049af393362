import { memo, useEffect, useId, useRef, useState } from "react";
import { Markdown } from "../markdown/render";
import { useFold } from "../tools/fold";
import { Icon } from "../ui/icons";
import { words } from "../words";

interface Props {
  text: string;
  isStreaming: boolean;
}

/** The model's reasoning: the last line while it thinks, collapsed afterwards. */
export const Reasoning = memo(function Reasoning({ text, isStreaming }: Props) {
  const isShown = text !== "" || isStreaming;
  const { isOpen, toggle, card } = useFold(false, isShown);
  const ms = useDuration(isStreaming);
  const body = useId();
  const last = text
    .trim()
    .split("\n")
    .at(-1)!
    .replace(/[*_#`]/g, "");
  if (!isShown) return null;
  return (
    <section className="card reasoning" ref={card}>
      <button type="button" className="card-head" aria-expanded={isOpen} aria-controls={body} onClick={toggle}>
        {isStreaming ? <span className="dot" /> : <Icon name="thought" />}
        <span className="card-title">{isStreaming ? words.thinkingNow : words.thoughtFor(ms)}</span>
        {isStreaming && !isOpen && (
          <span className="last-line" dir="auto">
            {last}
          </span>
        )}
        <span className="card-where" />
        {text && <Icon name={isOpen ? "down" : "right"} />}
      </button>
      <div id={body} className="card-body" hidden={!isOpen}>
        {isOpen && <Markdown text={text} isStreaming={isStreaming} />}
      </div>
    </section>
  );
});

/** Measure how long something lasted. Null if its start was not seen. */
function useDuration(isRunning: boolean): number | null {
  const start = useRef<number | null>(null);
  const [ms, setMs] = useState<number | null>(null);
  useEffect(() => {
    if (isRunning) start.current = performance.now();
    else if (start.current !== null) setMs(performance.now() - start.current);
  }, [isRunning]);
  return ms;
}
