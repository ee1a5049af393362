import { useState } from "react";
import { api, type Key } from "../api";
import { words as pageWords } from "../words";
import { testKey } from "./calls";
import { useLoaded } from "./loaded";
import { Problem } from "./problem";
import { settingsWords as words } from "./words";

export function KeysPanel() {
  const { value, error, reload } = useLoaded(api.keys);
  if (error) return <Problem text={error} onRetry={reload} />;
  if (!value) return <p className="muted">{pageWords.loading}</p>;
  return (
    <>
      <p className="muted">{words.keysIntro}</p>
      <ul className="st-list">
        {value.keys.map((key) => (
          <KeyRow key={key.provider} value={key} isEditable={value.editable} />
        ))}
      </ul>
    </>
  );
}

function KeyRow({ value, isEditable }: { value: Key & { label?: string }; isEditable: boolean }) {
  const [outcome, setOutcome] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [isTesting, setTesting] = useState(false);
  const test = async () => {
    setTesting(true);
    setOutcome(null);
    setProblem(null);
    try {
      const found = await testKey(value.provider);
      if (found.ok) setOutcome(words.keyWorks(found.models ?? 0, found.ms ?? 0));
      else setProblem(found.error ?? "");
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
    setTesting(false);
  };
  return (
    <li className={value.found ? "st-item" : "st-item off"}>
      <div className="st-row">
        <h3>
          {value.label ?? value.provider}{" "}
          <span className="meta">
            {value.found ? words.found(value.variable, value.ends) : words.notSet(value.variable)}
          </span>
        </h3>
        {value.found && isEditable && (
          <button type="button" className="button" disabled={isTesting} onClick={test}>
            {isTesting ? words.testing : words.test}
            <span className="hidden"> {value.label ?? value.provider}</span>
          </button>
        )}
      </div>
      {outcome && (
        <p className="st-ok" role="status">
          {outcome}
        </p>
      )}
      {problem && <Problem text={problem} />}
    </li>
  );
}
