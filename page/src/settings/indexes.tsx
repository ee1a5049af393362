import { type FormEvent, useEffect, useId, useState } from "react";
import { announce } from "../ui/announcer";
import { words as pageWords } from "../words";
import { type IndexedFolder, indexes, type Passage } from "./calls";
import { useLoaded } from "./loaded";
import { Problem } from "./problem";
import { ConfirmRemoval } from "./removal";
import { settingsWords as words } from "./words";

const LOOK_MS = 700;

/** The file index of the server's machine: folders, indexing progress, and a query to try. */
export function IndexesPanel() {
  const { value, error, reload } = useLoaded(indexes.list);
  const isBusy = Boolean(
    value?.folders.some((folder) => folder.reading) || (value && !value.problem && value.vectors < value.passages),
  );
  useEffect(() => {
    if (!isBusy) return;
    const timer = setInterval(reload, LOOK_MS);
    return () => clearInterval(timer);
  }, [isBusy, reload]);
  if (error) return <Problem text={error} onRetry={reload} />;
  if (!value) return <p className="muted">{pageWords.loading}</p>;
  if (value.unavailable) return <p className="muted">{words.indexUnavailable[value.unavailable]}</p>;
  return (
    <>
      <p className="muted">{words.indexIntro}</p>
      {value.folders.length === 0 && <p className="muted">{words.indexNone}</p>}
      <ul className="st-list">
        {value.folders.map((folder) => (
          <FolderRow key={folder.path} folder={folder} onChanged={reload} />
        ))}
      </ul>
      {value.passages > 0 && (
        <p className="meta" role="status">
          {value.problem ? words.indexWordsOnly(value.problem) : words.indexVectors(value.vectors, value.passages)}
        </p>
      )}
      {value.editable ? (
        <AddFolder allowed={value.allowed} onAdded={reload} />
      ) : (
        <p className="muted">{words.indexReadOnly}</p>
      )}
      {value.passages > 0 && <TryQuery />}
    </>
  );
}

function FolderRow({ folder, onChanged }: { folder: IndexedFolder; onChanged: () => void }) {
  const [isRemoving, askRemove] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const attempt = async (work: Promise<unknown>, said: string) => {
    setProblem(null);
    try {
      await work;
      announce(said);
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
    onChanged();
  };
  const { reading } = folder;
  return (
    <li className="st-item">
      <div className="st-row">
        <h3>
          <bdi>{folder.name}</bdi> <span className="meta">{words.indexHolds(folder.files, folder.passages)}</span>
        </h3>
        {folder.editable && (
          <div className="st-actions">
            {isRemoving ? (
              <ConfirmRemoval
                question={words.indexRemoveAsk(folder.name)}
                onKeep={() => askRemove(false)}
                onRemove={() => attempt(indexes.remove(folder.path), words.indexRemoved(folder.name))}
              />
            ) : (
              <>
                <button
                  type="button"
                  className="button"
                  disabled={Boolean(reading)}
                  onClick={() => attempt(indexes.add(folder.path), words.indexReading(folder.name))}
                >
                  {words.indexUpdate}
                  <span className="hidden"> {folder.name}</span>
                </button>
                <button type="button" className="button" onClick={() => askRemove(true)}>
                  {words.remove}
                  <span className="hidden"> {folder.name}</span>
                </button>
              </>
            )}
          </div>
        )}
      </div>
      <p className="meta st-path" dir="ltr">
        {folder.path}
      </p>
      {reading ? (
        <p className="meta">
          <progress max={reading.total || undefined} value={reading.total ? reading.done : undefined} />{" "}
          {words.indexProgress(reading.done, reading.total)}
        </p>
      ) : (
        <p className="meta">{folder.updated ? words.indexUpdated(folder.updated) : words.indexNotRead}</p>
      )}
      {(problem ?? folder.error) && <Problem text={(problem ?? folder.error)!} />}
      {folder.problemCount > 0 && (
        <details>
          <summary>{words.indexProblems(folder.problemCount)}</summary>
          <dl className="st-why">
            {folder.problems.map(({ path, problem: why }) => (
              <div key={path}>
                <dt dir="ltr">{path}</dt>
                <dd>{why}</dd>
              </div>
            ))}
          </dl>
        </details>
      )}
    </li>
  );
}

function AddFolder({ allowed, onAdded }: { allowed: string[]; onAdded: () => void }) {
  const id = useId();
  const [path, setPath] = useState(allowed[0] ?? "");
  const [problem, setProblem] = useState<string | null>(null);
  const add = async (event: FormEvent) => {
    event.preventDefault();
    setProblem(null);
    try {
      await indexes.add(path);
      announce(words.indexReading(path));
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
    onAdded();
  };
  return (
    <form className="st-form" onSubmit={add}>
      <label htmlFor={`${id}p`}>{words.indexFolder}</label>
      <input
        id={`${id}p`}
        className="st-code"
        dir="ltr"
        spellCheck={false}
        autoComplete="off"
        list={`${id}a`}
        value={path}
        onChange={({ target }) => setPath(target.value)}
        aria-describedby={`${id}h`}
      />
      <datalist id={`${id}a`}>
        {allowed.map((each) => (
          <option key={each} value={each} />
        ))}
      </datalist>
      <p className="meta" id={`${id}h`}>
        {words.indexAllowed(allowed)}
      </p>
      {problem && <Problem text={problem} />}
      <div>
        <button type="submit" className="button primary" disabled={!path.trim()}>
          {words.indexAdd}
        </button>
      </div>
    </form>
  );
}

function TryQuery() {
  const id = useId();
  const [query, setQuery] = useState("");
  const [found, setFound] = useState<Passage[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const search = async (event: FormEvent) => {
    event.preventDefault();
    setProblem(null);
    try {
      const { passages } = await indexes.search(query);
      setFound(passages);
      announce(words.indexFound(passages.length));
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <form className="st-form" onSubmit={search}>
      <label htmlFor={`${id}q`}>{words.indexTry}</label>
      <input id={`${id}q`} type="search" dir="auto" value={query} onChange={({ target }) => setQuery(target.value)} />
      <div>
        <button type="submit" className="button" disabled={!query.trim()}>
          {words.indexSearch}
        </button>
      </div>
      {problem && <Problem text={problem} />}
      {found && <p className="meta">{words.indexFound(found.length)}</p>}
      {found && found.length > 0 && (
        <ol className="st-list st-passages">
          {found.map((passage) => (
            <li className="st-item" key={`${passage.path}:${passage.page ?? ""}:${passage.text.slice(0, 80)}`}>
              <h3>
                <bdi>{passage.filename}</bdi>{" "}
                <span className="meta">{words.indexPlace(passage.page, passage.heading)}</span>
              </h3>
              <p dir="auto" className="st-quote">
                {passage.text}
              </p>
            </li>
          ))}
        </ol>
      )}
    </form>
  );
}
