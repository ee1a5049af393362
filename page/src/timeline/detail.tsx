// One part, with its raw event beside it.
import { useState } from "react";
import { type Json, url } from "../api";
import { visible } from "../approval/visible";
import { date, timeOfDay } from "../format";
import { Icon } from "../ui/icons";
import type { Item } from "./fold";
import { timelineWords as words } from "./words";

/** Longer text is cut until the user expands it. */
const LONG = 20_000;
/** Replace invisible and bidirectional characters by their names, such as `<U+202E>`. */
const shown = (text: string) =>
  visible(text)
    .map((piece) => piece.text)
    .join("");

interface Props {
  item: Item;
  began: number | null;
  showsRaw: boolean;
  /** Continue the run from this part. Null if it cannot be continued. */
  onFork: (() => void) | null;
}

export function Detail({ item, began, showsRaw, onFork }: Props) {
  const at = began ? date(began + item.time / 1000) : null;
  return (
    <div className={showsRaw ? "tl-detail raw-first" : "tl-detail"}>
      <section aria-label={words.part}>
        <h2>
          {item.type} <span className="meta">{words.number(item.seq)}</span>{" "}
          {at && <span className="meta">{timeOfDay(at)}</span>}
        </h2>
        {onFork && (
          <p>
            <button type="button" className="button" onClick={onFork}>
              <Icon name="right" /> {words.continueHere}
            </button>
          </p>
        )}
        <Blobs item={item} />
        <Value key={item.index} value={item.value} />
      </section>
      <section aria-label={words.raw}>
        <h2>{words.raw}</h2>
        {item.raw === undefined || item.raw === null ? (
          <p className="muted">{words.noRaw}</p>
        ) : (
          <Value key={item.index} value={item.raw} />
        )}
      </section>
    </div>
  );
}

function Value({ value }: { value: Json }) {
  const [isWhole, showWhole] = useState(false);
  const text = shown(JSON.stringify(value, null, 2));
  const isCut = text.length > LONG && !isWhole;
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <pre className="tl-json" dir="ltr" tabIndex={0}>
        {isCut ? text.slice(0, LONG) : text}
      </pre>
      {isCut && (
        <button type="button" className="button" onClick={() => showWhole(true)}>
          {words.showAll(text.length)}
        </button>
      )}
    </>
  );
}

function Blobs({ item }: { item: Item }) {
  const name = typeof item.value.name === "string" ? item.value.name : null;
  if (!item.blobs.length) return null;
  return (
    <ul className="tl-blobs">
      {item.blobs.map((digest) => (
        <li key={digest}>
          <a href={url(`/api/blobs/${digest}`, { name })} download>
            {words.blob} {name ?? digest.slice(0, 12)}
          </a>
        </li>
      ))}
    </ul>
  );
}
