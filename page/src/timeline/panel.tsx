// Timeline of a run or a file, with the raw event beside each part.
import { type DragEvent, useCallback, useDeferredValue, useEffect, useMemo, useRef, useState } from "react";
import { type RunRecord, url } from "../api";
import { date, dateOf, timeOfDay } from "../format";
import { look } from "../look";
import { navigate } from "../router";
import type { PanelProps } from "../routes";
import { Icon } from "../ui/icons";
import { Link } from "../ui/link";
import { words as pageWords } from "../words";
import { Comparing } from "./compare";
import { Detail } from "./detail";
import { readLines } from "./files";
import { FILTERS, type Filter, itemAt, type Move, moved, shownRows } from "./filters";
import { fold, type Item, type Row } from "./fold";
import { ForkForm } from "./fork_form";
import type { Changeable, Origin } from "./forks";
import { Breaks, Minimap, Rows } from "./rows";
import { makeScale } from "./scale";
import { useRun, type Viewed, viewedFile } from "./source";
import { timelineWords as words } from "./words";
import "./timeline.css";

export default function TimelinePanel({ params, query }: PanelProps) {
  const seq = Number(query.get("seq")) || null;
  const other = query.get("with");
  if (params.run && other) return <Comparing key={other + params.run} run={params.run} other={other} />;
  if (params.run)
    return <RunTimeline key={params.run} run={params.run} seq={seq} place={`/r/${encodeURIComponent(params.run)}`} />;
  return <FileTimeline name={params.name ?? ""} run={query.get("run")} seq={seq} />;
}

function RunTimeline({
  run,
  seq,
  place,
  isFile = false,
}: {
  run: string;
  seq: number | null;
  place: string;
  isFile?: boolean;
}) {
  const { records, chat, changeable, forkedFrom, isLive, isLoading, error } = useRun(run);
  return (
    <Viewer
      records={records}
      title={run}
      chat={chat}
      run={isFile ? undefined : run}
      changeable={changeable}
      origin={forkedFrom}
      seq={seq}
      isLive={isLive}
      problem={error}
      isLoading={isLoading}
      onSeq={(next) => navigate(`${place}${place.includes("?") ? "&" : "?"}seq=${next}`, { replace: true })}
    />
  );
}

/** The file of `sidestream view`, or one that the user drops or chooses. */
function FileTimeline({ name, run, seq }: { name: string; run: string | null; seq: number | null }) {
  const [viewed, setViewed] = useState<Viewed | null>(null);
  const [picked, setPicked] = useState<{ name: string; records: RunRecord[] } | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    viewedFile().then(setViewed, (error: Error) => setProblem(error.message));
  }, []);
  const open = async (file: File | undefined) => {
    if (!file) return;
    try {
      setPicked({ name: file.name, records: readLines(await file.text()) });
      setProblem(null);
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  const onDrop = (event: DragEvent) => {
    event.preventDefault();
    void open(event.dataTransfer.files[0]);
  };
  const chosen = run ?? viewed?.runs[0]?.id ?? null;
  const place = `/view/${encodeURIComponent(name)}?run=${encodeURIComponent(chosen ?? "")}`;
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: the button below does the same
    <div className="tl-file" onDragOver={(event) => event.preventDefault()} onDrop={onDrop}>
      {viewed && viewed.runs.length > 1 && !picked && (
        <label className="tl-runs">
          {words.runsIn(viewed.file)}
          <select
            value={chosen ?? ""}
            onChange={(event) =>
              navigate(`/view/${encodeURIComponent(name)}?run=${encodeURIComponent(event.target.value)}`)
            }
          >
            {viewed.runs.map((each) => (
              <option key={each.id} value={each.id}>
                {[each.title || each.id, each.model, when(each.time)].filter(Boolean).join(" · ")}
              </option>
            ))}
          </select>
        </label>
      )}
      {!chosen && !picked && <h1 className="hidden">{words.title}</h1>}
      {!chosen && !picked && (
        <p className="notice">
          {words.drop}{" "}
          <label className="button">
            {words.pick}
            <input
              type="file"
              accept=".jsonl,.ndjson,application/x-ndjson"
              className="hidden"
              onChange={(event) => void open(event.target.files?.[0])}
            />
          </label>
        </p>
      )}
      {problem && (
        <p className="notice tl-problem" role="alert">
          {problem}
        </p>
      )}
      {picked ? (
        <Viewer records={picked.records} title={picked.name} seq={seq} />
      ) : (
        chosen && <RunTimeline key={chosen} run={chosen} seq={seq} place={place} isFile />
      )}
    </div>
  );
}

function when(time: number): string {
  const found = time ? date(time) : null;
  return found ? `${dateOf(found)} ${timeOfDay(found)}` : "";
}

interface ViewerProps {
  records: RunRecord[];
  title: string;
  chat?: string | null;
  /** Run on the server. Absent for a file. */
  run?: string;
  changeable?: Changeable;
  origin?: Origin | null;
  seq: number | null;
  isLive?: boolean;
  isLoading?: boolean;
  problem?: string | null;
  onSeq?: (seq: number) => void;
}

const MOVES: Record<string, Move> = {
  j: "next",
  k: "previous",
  "]": "next-step",
  "[": "previous-step",
  e: "next-error",
};

function Viewer(props: ViewerProps) {
  const { records, title, chat, run, changeable = null, origin, seq, isLive, isLoading, problem, onSeq } = props;
  const timeline = useMemo(() => fold(records), [records]);
  const [isLinear, setLinear] = useState(false);
  const [filter, setFilter] = useState<Filter | null>(null);
  const [text, setText] = useState("");
  const search = useDeferredValue(text);
  const [chosen, choose] = useState<number | null>(null);
  const [showsRaw, showRaw] = useState(false);
  const [isFollowing, follow] = useState(true);
  const [height, setHeight] = useState(40);
  const [isForking, fork] = useState(false);
  const input = useRef<HTMLInputElement>(null);

  const scale = useMemo(() => makeScale(timeline.times, isLinear), [timeline, isLinear]);
  const rows = useMemo(() => shownRows(timeline.rows, filter, search), [timeline, filter, search]);
  const item = chosen !== null ? (timeline.items[chosen] ?? null) : seq !== null ? itemAt(timeline, seq) : null;

  const select = useCallback(
    (next: Item | null) => {
      if (!next) return;
      choose(next.index);
      follow(false);
      onSeq?.(next.seq);
    },
    [onSeq],
  );
  const selectRow = useCallback((row: Row) => select(row.items[0] ?? row.children[0]?.items[0] ?? null), [select]);

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      const isTyping = target.closest("input, textarea, select, [contenteditable]");
      if (isTyping || document.querySelector("dialog[open]")) return;
      if (event.ctrlKey || event.metaKey || event.altKey || look().letters === "off") return;
      const move = MOVES[event.key];
      if (move) select(moved(timeline, item, move));
      else if (event.key === "r") showRaw((shows) => !shows);
      else if (event.key === "/") input.current?.focus();
      else return;
      event.preventDefault();
      event.stopPropagation();
    };
    document.addEventListener("keydown", onKey, true);
    return () => document.removeEventListener("keydown", onKey, true);
  }, [timeline, item, select]);

  return (
    <div className="tl">
      <header className="tl-head">
        <h1>
          {words.title} <span className="meta">{title}</span>
          {isLive && (
            <span className="tl-live">
              <span className="dot" /> {words.live}
            </span>
          )}
        </h1>
        <span className="tl-links">
          {chat && (
            <Link className="button" to={`/c/${encodeURIComponent(chat)}`}>
              <Icon name="left" /> {words.back}
            </Link>
          )}
          {run && (
            <span className="tl-export">
              <span className="muted">{words.export}</span>
              <a
                className="button"
                href={url(`/api/runs/${encodeURIComponent(run)}/export`, { format: "parts" })}
                download
              >
                <Icon name="download" /> {words.exportParts}
              </a>
              <a
                className="button"
                href={url(`/api/runs/${encodeURIComponent(run)}/export`, { format: "markdown" })}
                download
              >
                <Icon name="download" /> {words.exportMarkdown}
              </a>
            </span>
          )}
        </span>
      </header>
      {run && origin && <ForkedFrom run={run} origin={origin} />}
      {problem && (
        <p className="notice tl-problem" role="alert">
          {problem}
        </p>
      )}
      {records.length === 0 ? (
        !problem && <p className="notice muted">{isLoading ? pageWords.loading : words.empty}</p>
      ) : (
        <>
          <div className="tl-tools">
            <input
              ref={input}
              type="search"
              className="tl-search"
              placeholder={words.search}
              aria-label={words.search}
              value={text}
              onChange={(event) => setText(event.target.value)}
            />
            <fieldset className="tl-filters">
              <legend className="hidden">{words.filters}</legend>
              {FILTERS.map((each) => (
                <button
                  key={each}
                  type="button"
                  className="button"
                  aria-pressed={filter === each}
                  onClick={() => setFilter(filter === each ? null : each)}
                >
                  {words[each]}
                </button>
              ))}
            </fieldset>
            {timeline.began !== null && (
              <label>
                <input type="checkbox" checked={isLinear} onChange={(event) => setLinear(event.target.checked)} />{" "}
                {words.linear}
              </label>
            )}
            <span className="meta tl-keys">{words.keys}</span>
          </div>
          <Steps rows={timeline.steps} total={timeline.usage} onSelect={selectRow} />
          {timeline.began === null && <p className="meta tl-untimed">{words.untimed}</p>}
          <Minimap rows={timeline.rows} scale={scale} end={timeline.end} />
          <Breaks rows={timeline.rows} scale={scale} />
          {rows.length === 0 ? (
            <p className="notice muted">{words.nothing}</p>
          ) : (
            <Rows
              rows={rows}
              scale={scale}
              end={timeline.end}
              isTimed={timeline.began !== null}
              selected={item?.row ?? null}
              isFollowing={isLive === true && isFollowing}
              onSelect={selectRow}
              onScroll={() => follow(false)}
            />
          )}
          {item && (
            <>
              <Split height={height} onHeight={setHeight} />
              <div className="tl-below" style={{ blockSize: `${height}%` }}>
                <Detail
                  item={item}
                  began={timeline.began}
                  showsRaw={showsRaw}
                  onFork={run && changeable !== null ? () => fork(true) : null}
                />
              </div>
            </>
          )}
          {isForking && run && item && (
            <ForkForm run={run} timeline={timeline} item={item} changeable={changeable} onClose={() => fork(false)} />
          )}
        </>
      )}
    </div>
  );
}

/** Where the run was forked from, and what was changed there. */
function ForkedFrom({ run, origin }: { run: string; origin: Origin }) {
  const { run: other, at, changes } = origin;
  return (
    <p className="tl-origin">
      <span>{words.forkedAt(at, words.changes(Object.keys(changes)))}</span>
      {other && (
        <>
          <Link className="button" to={`/r/${encodeURIComponent(other)}?seq=${at}`}>
            {words.originalRun}
          </Link>
          <Link className="button" to={`/r/${encodeURIComponent(run)}?with=${encodeURIComponent(other)}`}>
            {words.compare}
          </Link>
        </>
      )}
    </p>
  );
}

const LEAST = 15;
const MOST = 80;

/** Divider between rows and details, moved by dragging or with the arrow keys. */
function Split({ height, onHeight }: { height: number; onHeight: (height: number) => void }) {
  const set = (value: number) => onHeight(Math.min(MOST, Math.max(LEAST, value)));
  return (
    // biome-ignore lint/a11y/useSemanticElements: a movable divider is not an <hr>
    <div
      className="tl-split"
      role="separator"
      tabIndex={0}
      aria-orientation="horizontal"
      aria-label={words.split}
      aria-valuemin={LEAST}
      aria-valuemax={MOST}
      aria-valuenow={Math.round(height)}
      onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
      onPointerMove={(event) => {
        if (!event.currentTarget.hasPointerCapture(event.pointerId)) return;
        const box = event.currentTarget.parentElement!.getBoundingClientRect();
        set(((box.bottom - event.clientY) / box.height) * 100);
      }}
      onKeyDown={(event) => {
        const step = { ArrowUp: 5, ArrowDown: -5 }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        set(height + step);
      }}
    />
  );
}

function Steps({ rows, total, onSelect }: { rows: Row[]; total: Row["usage"]; onSelect: (row: Row) => void }) {
  const known = rows.filter((row) => row.usage);
  if (known.length === 0) return null;
  return (
    <ul className="tl-steps" aria-label={words.steps}>
      {known.map((row) => (
        <li key={row.id}>
          <button type="button" className="tl-step" onClick={() => onSelect(row)}>
            <strong>{row.label}</strong> {words.tokens(row.usage!.input, row.usage!.output)} ·{" "}
            {pageWords.cost(row.usage!.cost)}
          </button>
        </li>
      ))}
      {total && known.length > 1 && (
        <li className="tl-step">
          <strong>{words.total}</strong> {words.tokens(total.input, total.output)} · {pageWords.cost(total.cost)}
        </li>
      )}
    </ul>
  );
}
