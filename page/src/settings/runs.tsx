// Runs in progress, in any process.
import { useEffect, useState } from "react";
import { api, type RunInProgress } from "../api";
import { date, timeOfDay } from "../format";
import { Link } from "../ui/link";
import { words as pageWords } from "../words";
import { useLoaded } from "./loaded";
import { Problem } from "./problem";
import { settingsWords as words } from "./words";

const REFRESH_MS = 3000;

export function RunsPanel() {
  const { value, error, reload } = useLoaded(api.runs);
  useEffect(() => {
    const timer = setInterval(reload, REFRESH_MS);
    return () => clearInterval(timer);
  }, [reload]);
  if (error) return <Problem text={error} onRetry={reload} />;
  if (!value) return <p className="muted">{pageWords.loading}</p>;
  return (
    <>
      <p className="muted">{words.runsIntro}</p>
      <p role="status">{value.runs.length === 0 ? words.runsNone : words.runsCount(countsOf(value.runs))}</p>
      <ul className="st-list">
        {value.runs.map((run) => (
          <RunRow key={run.id} value={run} onChange={reload} />
        ))}
      </ul>
    </>
  );
}

/** Count the listed runs by what they do now. */
export function countsOf(runs: RunInProgress[]): { running: number; queued: number; scheduled: number } {
  const counts = { running: 0, queued: 0, scheduled: 0 };
  for (const { driver, at } of runs) counts[driver ? "running" : at ? "scheduled" : "queued"] += 1;
  return counts;
}

function RunRow({ value, onChange }: { value: RunInProgress; onChange: () => void }) {
  const [problem, setProblem] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const since = date(value.since);
  const at = date(value.at);
  const act = (call: (run: string) => Promise<unknown>) => async () => {
    setBusy(true);
    setProblem(null);
    try {
      await call(value.id);
      onChange();
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
    setBusy(false);
  };
  return (
    <li className="st-item">
      <div className="st-row">
        <h3>
          <Link to={`/r/${encodeURIComponent(value.id)}`}>{value.model ?? value.id}</Link>{" "}
          <span className="meta">
            {words.runBy(value.driver, at && timeOfDay(at))}
            {since && ` · ${words.runSince(timeOfDay(since))}`}
            {value.forkedFrom && ` · ${words.runForked(value.forkedFrom.at)}`}
            {/* The cost is unknown until the first step ends. */}
            {value.cost !== 0 && ` · ${pageWords.cost(value.cost)}`}
          </span>
        </h3>
        {!value.driver && !at && (
          <button type="button" className="button" disabled={isBusy} onClick={act(api.resumeRun)}>
            {words.runResume}
            <span className="hidden"> {value.model}</span>
          </button>
        )}
        <button type="button" className="button" disabled={isBusy} onClick={act(api.stopRun)}>
          {words.runStop}
          <span className="hidden"> {value.model}</span>
        </button>
      </div>
      {problem && <Problem text={problem} />}
    </li>
  );
}
