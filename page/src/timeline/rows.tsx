// Virtualised rows of a timeline: a label and a bar each.
import { memo, useEffect, useLayoutEffect, useRef, useState } from "react";
import { duration } from "../format";
import { Icon, type IconName } from "../ui/icons";
import type { Row, RowKind } from "./fold";
import type { Scale } from "./scale";
import { timelineWords as words } from "./words";

export const ICONS: Record<RowKind, IconName> = {
  message: "agent",
  run: "bars",
  step: "circle",
  reasoning: "thought",
  text: "note",
  tool: "wrench",
  stage: "dash",
  wait: "stop",
  file: "page",
  note: "note",
  unknown: "warning",
  error: "warning",
};

interface Props {
  rows: Row[];
  scale: Scale;
  end: number;
  /** False for a file without timestamps, whose durations are unknown. */
  isTimed: boolean;
  selected: Row | null;
  isFollowing: boolean;
  onSelect: (row: Row) => void;
  onScroll: () => void;
}

/** Number of rows to render above and below the view. */
const MARGIN = 12;

export function Rows({ rows, scale, end, isTimed, selected, isFollowing, onSelect, onScroll }: Props) {
  const box = useRef<HTMLElement>(null);
  const [top, setTop] = useState(0);
  const [size, setSize] = useState({ row: 28, view: 600 });
  const index = selected ? rows.indexOf(selected) : -1;
  useLayoutEffect(() => {
    const element = box.current!;
    const measure = () => {
      const row = element.querySelector(".tl-row")?.clientHeight || 28;
      setSize({ row, view: element.clientHeight || 600 });
    };
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    const element = box.current!;
    if (index < 0) return;
    const at = index * size.row;
    if (at < element.scrollTop) element.scrollTop = at;
    else if (at + size.row > element.scrollTop + element.clientHeight) {
      element.scrollTop = at + size.row - element.clientHeight;
    }
  }, [index, size]);
  useEffect(() => {
    if (isFollowing && rows.length) box.current!.scrollTop = rows.length * size.row;
  }, [isFollowing, rows.length, size]);
  const first = Math.max(0, Math.floor(top / size.row) - MARGIN);
  const last = Math.min(rows.length, Math.ceil((top + size.view) / size.row) + MARGIN);
  return (
    <section
      ref={box}
      className="tl-rows"
      aria-label={words.rows}
      onWheel={onScroll}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
    >
      <div style={{ blockSize: rows.length * size.row, paddingBlockStart: first * size.row }}>
        {rows.slice(first, last).map((row) => (
          <RowView
            key={row.id}
            row={row}
            scale={scale}
            end={end}
            isTimed={isTimed}
            // An open row is mutated in place, so its identity does not change.
            version={`${row.end}.${row.status}.${row.label}`}
            isSelected={row === selected}
            onSelect={onSelect}
          />
        ))}
      </div>
    </section>
  );
}

interface RowProps {
  row: Row;
  scale: Scale;
  end: number;
  isTimed: boolean;
  version: string;
  isSelected: boolean;
  onSelect: (row: Row) => void;
}

const RowView = memo(function RowView({ row, scale, end, isTimed, isSelected, onSelect }: RowProps) {
  const start = scale.at(row.start);
  const width = Math.max(0, scale.at(row.end ?? end) - start);
  const ms = (row.end ?? end) - row.start;
  const where = row.kind === "tool" ? (row.isHosted ? words.hosted : words.here) : "";
  const took = isTimed && ms >= 50 ? duration(ms) : "";
  const beside = besideBar(start, start + width);
  return (
    <button
      type="button"
      className={`tl-row ${row.kind} ${row.status}${row.isHosted ? " hosted" : ""}`}
      aria-pressed={isSelected}
      onClick={() => onSelect(row)}
    >
      <span className="tl-label" data-depth={Math.min(row.depth, 8)}>
        <Icon name={ICONS[row.kind]} />
        <span className="tl-name" dir="auto">
          {(row.kind === "stage" && words.stages[row.label]) || row.label}
        </span>
        <span className="hidden">
          {[words.kind[row.kind], where, words.status[row.status], took].filter(Boolean).join(", ")}
        </span>
      </span>
      <span className="tl-track" aria-hidden="true">
        <span
          className="tl-bar"
          style={{ insetInlineStart: `${start * 100}%`, inlineSize: `max(2px, ${width * 100}%)` }}
        />
        {took && beside && (
          <span className="tl-took" style={beside}>
            {took}
          </span>
        )}
      </span>
    </button>
  );
});

/** Fraction of the width that a duration label takes. */
const ROOM = 0.15;

/** Place the duration after the bar, before it, or nowhere if the bar fills the track. */
function besideBar(start: number, end: number) {
  if (end <= 1 - ROOM) return { insetInlineStart: `${end * 100}%` };
  return start >= ROOM ? { insetInlineEnd: `${(1 - start) * 100}%` } : null;
}

/** Marks for the waits that the scale skips. */
export function Breaks({ rows, scale }: { rows: Row[]; scale: Scale }) {
  return (
    <div className="tl-breaks">
      {scale.breaks.map((gap) => {
        const isWait = rows.some(
          (row) =>
            row.kind === "wait" && row.start <= gap.from + 1 && (row.end ?? Number.POSITIVE_INFINITY) >= gap.to - 1,
        );
        const ms = gap.to - gap.from;
        return (
          <span
            key={gap.from}
            className="tl-break"
            style={{ insetInlineStart: `${gap.start * 100}%`, inlineSize: `${(gap.end - gap.start) * 100}%` }}
            title={isWait ? words.waited(ms) : words.silent(ms)}
          >
            <span>{isWait ? words.waited(ms) : words.silent(ms)}</span>
          </span>
        );
      })}
    </div>
  );
}

const MOST_MARKS = 600;

/** Overview of the whole run. */
export function Minimap({ rows, scale, end }: { rows: Row[]; scale: Scale; end: number }) {
  const every = Math.max(1, Math.ceil(rows.length / MOST_MARKS));
  const marks = rows.filter((row, index) => index % every === 0 || row.status === "failed");
  const height = Math.max(1, marks.length);
  return (
    <svg className="tl-map" viewBox={`0 0 1000 ${height}`} preserveAspectRatio="none" role="img" aria-label={words.map}>
      {marks.map((row, index) => {
        const x = scale.at(row.start) * 1000;
        const width = Math.max(3, scale.at(row.end ?? end) * 1000 - x);
        return <rect key={row.id} className={`${row.kind} ${row.status}`} x={x} y={index} width={width} height={1} />;
      })}
    </svg>
  );
}
