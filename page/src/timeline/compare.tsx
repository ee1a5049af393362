// Two timelines side by side: a fork and its original, with what they have in common folded.
import { useMemo } from "react";
import { Icon } from "../ui/icons";
import { Link } from "../ui/link";
import { words as pageWords } from "../words";
import { fold } from "./fold";
import { compare, type Entry, type Side } from "./forks";
import { ICONS } from "./rows";
import { type Source, useRun } from "./source";
import { timelineWords as words } from "./words";

const to = (run: string) => `/r/${encodeURIComponent(run)}`;

export function Comparing({ run, other }: { run: string; other: string }) {
  const original = useRun(other);
  const fork = useRun(run);
  const found = useMemo(
    () => compare([original.records, fork.records], [fold(original.records), fold(fork.records)]),
    [original.records, fork.records],
  );
  const problem = original.error ?? fork.error;
  const isLoading = original.isLoading || fork.isLoading;
  const origin = fork.forkedFrom;
  return (
    <div className="tl tl-compare">
      <header className="tl-head">
        <h1>{words.comparison}</h1>
        <Link className="button" to={to(run)}>
          <Icon name="left" /> {words.title}
        </Link>
      </header>
      {problem && (
        <p className="notice tl-problem" role="alert">
          {problem}
        </p>
      )}
      {isLoading && !problem ? (
        <p className="notice muted">{pageWords.loading}</p>
      ) : (
        <div className="tl-both">
          <p className="tl-common">
            {words.inCommon(found.common)}
            {origin && ` ${words.changedThere(words.changes(Object.keys(origin.changes)))}`}
          </p>
          <Column name={words.original} run={other} source={original} side={found.original} />
          <Column name={words.fork} run={run} source={fork} side={found.fork} isFork />
        </div>
      )}
    </div>
  );
}

interface Props {
  name: string;
  run: string;
  source: Source;
  side: Side;
  isFork?: boolean;
}

function Column({ name, run, source, side: { entries, usage }, isFork = false }: Props) {
  const used = `${words.tokens(usage.input, usage.output)} · ${pageWords.cost(usage.cost)}`;
  const first = entries.findIndex((entry) => entry.differs);
  return (
    <section aria-label={name} className="tl-side">
      <h2>
        <Link to={to(run)}>{name}</Link>
        {source.isLive && (
          <span className="tl-live">
            <span className="dot" /> {words.live}
          </span>
        )}
      </h2>
      <p className="meta">{isFork ? words.sinceFork(used) : used}</p>
      {entries.length === 0 && <p className="muted">{words.nothingMore}</p>}
      <ol>
        {entries.map((entry, index) => (
          <EntryView key={entry.row.id} entry={entry} isFirst={index === first} />
        ))}
      </ol>
    </section>
  );
}

/** Longer text is cut; the timeline has all of it. */
const LONG = 2000;

function EntryView({ entry: { row, text, differs }, isFirst }: { entry: Entry; isFirst: boolean }) {
  return (
    <li className={differs ? "tl-entry differs" : "tl-entry"}>
      <p className="tl-named">
        <Icon name={ICONS[row.kind]} /> <span dir="auto">{row.label}</span>{" "}
        {differs && <span className="tl-mark">{isFirst ? words.firstDifference : words.differs}</span>}
        <span className="hidden">{words.status[row.status]}</span>
      </p>
      {text && (
        <p className="tl-said" dir="auto">
          {text.length > LONG ? `${text.slice(0, LONG)}…` : text}
        </p>
      )}
    </li>
  );
}
