import { useEffect, useState } from "react";
import { announce } from "../ui/announcer";
import { words as pageWords } from "../words";
import { type McpServer, type McpServers, type McpTest, mcp } from "./calls";
import { ChangedTool } from "./changed_tool";
import { useLoaded } from "./loaded";
import { McpForm } from "./mcp_form";
import { Problem } from "./problem";
import { ConfirmRemoval } from "./removal";
import { settingsWords as words } from "./words";

const LOOK_MS = 1000;

export function McpPanel() {
  const { value, error, reload, change } = useLoaded(mcp.list);
  const [tests, setTests] = useState<Record<string, McpTest | "running">>({});
  const [edited, edit] = useState<string | null>(null);
  if (error) return <Problem text={error} onRetry={reload} />;
  if (!value) return <p className="muted">{pageWords.loading}</p>;
  if (value.file === null) return <p className="muted">{words.mcpOff}</p>;

  const test = async (label: string) => {
    setTests((old) => ({ ...old, [label]: "running" }));
    let found: McpTest;
    try {
      found = await mcp.test(label);
    } catch (failure) {
      const text = failure instanceof Error ? failure.message : String(failure);
      found = { stages: [], tools: [], warnings: [], error: text, needsSignIn: false, changes: [] };
    }
    setTests((old) => ({ ...old, [label]: found }));
    if (!found.error) reload();
    announce(`${label}: ${health(found)}`);
  };
  const saved = (server: McpServer) => {
    edit(null);
    change((old) => replaced(old, server));
    announce(words.saved(server.label));
    if (server.enabled) void test(server.label);
  };
  const testOf = (label: string) =>
    tests[label] === "running" ? null : ((tests[label] as McpTest | undefined) ?? null);
  return (
    <>
      <p className="muted">{value.editable ? words.mcpIntro(value.file) : words.mcpReadOnly}</p>
      {value.problem && <Problem text={value.problem} onRetry={reload} />}
      {value.servers.length === 0 && !value.problem && <p className="muted">{words.mcpNone}</p>}
      <ul className="st-list">
        {value.servers.map((server) => (
          <li key={server.label} className={server.enabled ? "st-item" : "st-item off"}>
            {edited === server.label ? (
              <McpForm server={server} tested={testOf(server.label)} onSaved={saved} onCancel={() => edit(null)} />
            ) : (
              <ServerRow
                server={server}
                tested={tests[server.label] ?? null}
                isEditable={value.editable}
                onTest={() => test(server.label)}
                onEdit={() => edit(server.label)}
                onChanged={(changed) => change((old) => replaced(old, changed))}
                onReload={reload}
              />
            )}
          </li>
        ))}
      </ul>
      {value.editable &&
        (edited === "" ? (
          <McpForm server={null} tested={null} onSaved={saved} onCancel={() => edit(null)} />
        ) : (
          <button type="button" className="button primary" onClick={() => edit("")}>
            {words.add}
          </button>
        ))}
    </>
  );
}

function replaced(old: McpServers, server: McpServer): McpServers {
  const isKnown = old.servers.some((each) => each.label === server.label);
  const servers = isKnown
    ? old.servers.map((each) => (each.label === server.label ? server : each))
    : [...old.servers, server];
  return { ...old, servers };
}

/** Summarise the result of a test. */
export function health(test: McpTest): string {
  if (test.needsSignIn) return words.signInNeeded;
  if (test.error) return words.failed(test.error.split("\n")[0]!);
  return words.works(
    test.tools.length,
    test.stages.reduce((sum, stage) => sum + stage.ms, 0),
  );
}

interface RowProps {
  server: McpServer;
  tested: McpTest | "running" | null;
  isEditable: boolean;
  onTest: () => void;
  onEdit: () => void;
  onChanged: (server: McpServer) => void;
  onReload: () => void;
}

function ServerRow({ server, tested, isEditable, onTest, onEdit, onChanged, onReload }: RowProps) {
  const [isRemoving, askRemove] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const test = tested === "running" ? null : tested;
  const attempt = (work: Promise<unknown>) => {
    setProblem(null);
    return work.catch((error: Error) => setProblem(error.message));
  };
  const state = !server.enabled
    ? words.off
    : server.problem
      ? words.failed(server.problem)
      : tested === "running"
        ? words.testing
        : test?.error && !test.needsSignIn
          ? words.failedShort // The full error is shown below.
          : test
            ? health(test)
            : words.notTested;
  const isBad = server.enabled && (server.problem !== null || test?.error);
  return (
    <>
      <div className="st-row">
        <h3>
          {server.label} <span className="meta">{words.kinds[server.kind]}</span>
        </h3>
        {isEditable && (
          <label className="st-switch">
            <input
              type="checkbox"
              checked={server.enabled}
              onChange={(event) =>
                attempt(mcp.change(server.label, { disabled: event.target.checked ? null : true }).then(onChanged))
              }
            />{" "}
            {words.enabled}
          </label>
        )}
      </div>
      {(isEditable || isBad || !server.enabled) && (
        <p className={isBad ? "st-bad" : test && !test.error ? "st-ok" : "muted"}>{state}</p>
      )}
      {isEditable && (
        <p className="st-code st-where" dir="ltr">
          {where(server)}
        </p>
      )}
      {server.kind !== "command" && server.enabled && (
        <SignInRow
          server={server}
          needed={test?.needsSignIn ?? false}
          isEditable={isEditable}
          onDone={onTest}
          onReload={onReload}
        />
      )}
      {server.changes.map((change) => (
        <ChangedTool
          key={change.tool}
          change={change}
          isEditable={isEditable}
          onAccept={() => attempt(mcp.accept(server.label, change.tool, change.pin).then(onChanged))}
        />
      ))}
      {test && <TestView test={test} />}
      {problem && <Problem text={problem} />}
      {isEditable && (
        <div className="st-actions">
          {isRemoving ? (
            <ConfirmRemoval
              question={words.removeAsk(server.label)}
              onKeep={() => askRemove(false)}
              onRemove={() => attempt(mcp.remove(server.label).then(onReload))}
            />
          ) : (
            <>
              <button type="button" className="button quiet" onClick={() => askRemove(true)}>
                {words.remove}
                <span className="hidden"> {server.label}</span>
              </button>
              <button type="button" className="button" onClick={onEdit}>
                {words.edit}
                <span className="hidden"> {server.label}</span>
              </button>
              <button
                type="button"
                className="button"
                disabled={!server.enabled || tested === "running" || server.problem !== null}
                onClick={onTest}
              >
                {words.test}
                <span className="hidden"> {server.label}</span>
              </button>
            </>
          )}
        </div>
      )}
    </>
  );
}

function where(server: McpServer): string {
  const { entry } = server;
  const args = Array.isArray(entry.args) ? entry.args : [];
  return server.kind === "command" ? [entry.command, ...args].join(" ") : String(entry.url ?? entry.server_url ?? "");
}

function TestView({ test }: { test: McpTest }) {
  return (
    <div className="st-test">
      {test.stages.length > 0 && (
        <ol className="st-stages">
          {test.stages.map((stage) => (
            <li key={stage.name}>{words.stage(words.stages[stage.name], stage.ms)}</li>
          ))}
        </ol>
      )}
      {test.error && !test.needsSignIn && <Problem text={test.error} />}
      {test.warnings.map((warning) => (
        <p key={warning} className="st-warn">
          {warning}
        </p>
      ))}
      {test.tools.length > 0 && (
        <details>
          <summary>{words.claims}</summary>
          <ul className="st-claims">
            {test.tools.map((tool) => (
              <li key={tool.name}>
                <strong>{tool.name}</strong> {tool.readOnly && <span className="st-mark">{words.readOnly}</span>}
                {tool.sensitive && <span className="st-mark warn">{words.sensitive}</span>}
                <p className="muted" dir="auto">
                  {tool.description}
                </p>
              </li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

interface SignInProps {
  server: McpServer;
  needed: boolean;
  isEditable: boolean;
  onDone: () => void;
  onReload: () => void;
}

function SignInRow({ server, needed, isEditable, onDone, onReload }: SignInProps) {
  const [pending, setPending] = useState<{ url: string; host: string } | null>(null);
  const [problem, setProblem] = useState<string | null>(server.signIn.error);
  const { label } = server;
  // biome-ignore lint/correctness/useExhaustiveDependencies: the parent's callbacks change on each render
  useEffect(() => {
    if (!pending) return;
    const timer = setInterval(async () => {
      const found = (await mcp.list().catch(() => null))?.servers.find((each) => each.label === label);
      if (!found || found.signIn.state === "waiting") return;
      setPending(null);
      setProblem(found.signIn.error);
      onReload();
      if (!found.signIn.error) onDone();
    }, LOOK_MS);
    return () => clearInterval(timer);
  }, [pending, label]);
  const start = async () => {
    setProblem(null);
    try {
      const { url, host } = await mcp.login(label);
      if (!url || !/^https?:/.test(url)) {
        setProblem(words.noSignIn);
        return;
      }
      setPending({ url, host: host ?? url });
      window.open(url, "_blank", "noopener,noreferrer");
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  const signOut = () => {
    setProblem(null);
    mcp.logout(label).then(onReload, (error: Error) => setProblem(error.message));
  };
  const isSignedIn = server.signIn.state === "signed-in";
  return (
    <>
      {pending ? (
        <p role="status">
          {words.signingIn(pending.host)}{" "}
          <a href={pending.url} target="_blank" rel="noopener noreferrer">
            {words.openTab(pending.host)}
          </a>
        </p>
      ) : (
        (isSignedIn || needed) && (
          <div className="st-row">
            <span>{isSignedIn ? words.signedIn(server.signIn.issuer) : words.signInNeeded}</span>
            {isEditable && (
              <span className="st-actions">
                {isSignedIn && (
                  <button type="button" className="button quiet" onClick={signOut}>
                    {words.signOut}
                  </button>
                )}
                <button type="button" className="button" onClick={start}>
                  {isSignedIn ? words.signInAgain : words.signIn}
                  <span className="hidden"> {label}</span>
                </button>
              </span>
            )}
          </div>
        )
      )}
      {problem && <Problem text={problem} />}
    </>
  );
}
