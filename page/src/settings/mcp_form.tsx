import { type FormEvent, useId, useState } from "react";
import { type McpServer, type McpTest, mcp } from "./calls";
import { type Approval, changesOf, EMPTY, type Form, formOf, type Pair } from "./mcp_changes";
import { Problem } from "./problem";
import { settingsWords as words } from "./words";

interface Props {
  /** Server to change. Null for a new one. */
  server: McpServer | null;
  /** Its last test result, which lists its tools. */
  tested: McpTest | null;
  onSaved: (server: McpServer) => void;
  onCancel: () => void;
}

export function McpForm({ server, tested, onSaved, onCancel }: Props) {
  const [form, set] = useState<Form>(server ? formOf(server) : EMPTY);
  const [problem, setProblem] = useState<string | null>(null);
  const [isSaving, setSaving] = useState(false);
  const id = useId();
  const change = (fields: Partial<Form>) => set((old) => ({ ...old, ...fields }));
  const isLocal = form.kind === "command";
  const save = async (event: FormEvent) => {
    event.preventDefault();
    setSaving(true);
    try {
      onSaved(await mcp.change(form.label.trim(), changesOf(form, server)));
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
      setSaving(false);
    }
  };
  const approvals: Approval[] = [
    "default",
    "always",
    "never",
    ...(form.approval === "custom" ? ["custom" as const] : []),
  ];
  return (
    <form className="st-form" onSubmit={save} aria-label={server ? `${words.edit} ${server.label}` : words.add}>
      <label htmlFor={`${id}-kind`}>{words.kind}</label>
      <select
        id={`${id}-kind`}
        value={form.kind}
        onChange={(event) => change({ kind: event.target.value as Form["kind"] })}
      >
        {Object.entries(words.kinds).map(([kind, name]) => (
          <option key={kind} value={kind}>
            {name}
          </option>
        ))}
      </select>
      <label htmlFor={`${id}-label`}>{words.label}</label>
      <input
        id={`${id}-label`}
        required
        maxLength={64}
        readOnly={server !== null}
        value={form.label}
        aria-describedby={`${id}-label-hint`}
        onChange={(event) => change({ label: event.target.value })}
      />
      <p className="meta" id={`${id}-label-hint`}>
        {words.labelHint}
      </p>
      {isLocal ? (
        <>
          <label htmlFor={`${id}-command`}>{words.command}</label>
          <input
            id={`${id}-command`}
            className="st-code"
            required
            dir="ltr"
            spellCheck={false}
            autoComplete="off"
            value={form.command}
            aria-describedby={`${id}-command-hint`}
            onChange={(event) => change({ command: event.target.value })}
          />
          <p className="meta" id={`${id}-command-hint`}>
            {words.commandHint}
          </p>
          <Pairs title={words.env} pairs={form.env} onChange={(env) => change({ env })} />
        </>
      ) : (
        <>
          <label htmlFor={`${id}-url`}>{words.url}</label>
          <input
            id={`${id}-url`}
            className="st-code"
            required
            dir="ltr"
            spellCheck={false}
            autoComplete="off"
            value={form.url}
            onChange={(event) => change({ url: event.target.value })}
          />
          {form.url.includes("[redacted]") && <p className="meta">{words.urlHidden}</p>}
          <Pairs title={words.headers} pairs={form.headers} onChange={(headers) => change({ headers })} />
        </>
      )}
      <label htmlFor={`${id}-allowed`}>{words.allowed}</label>
      <input
        id={`${id}-allowed`}
        value={form.allowed}
        placeholder={words.allowedAll}
        list={`${id}-tools`}
        aria-describedby={`${id}-allowed-hint`}
        onChange={(event) => change({ allowed: event.target.value })}
      />
      <p className="meta" id={`${id}-allowed-hint`}>
        {words.allowedHint}
      </p>
      {tested && (
        <fieldset className="st-tools">
          <legend className="hidden">{words.allowed}</legend>
          {tested.tools.map((tool) => (
            <label key={tool.name}>
              <input
                type="checkbox"
                checked={isAllowed(form.allowed, tool.name)}
                onChange={() => change({ allowed: toggled(form.allowed, tool.name) })}
              />{" "}
              {tool.name}
            </label>
          ))}
        </fieldset>
      )}
      <label htmlFor={`${id}-approval`}>{words.approval}</label>
      <select
        id={`${id}-approval`}
        value={form.approval}
        onChange={(event) => change({ approval: event.target.value as Approval })}
      >
        {approvals.map((approval) => (
          <option key={approval} value={approval}>
            {words.approvals[approval]}
          </option>
        ))}
      </select>
      {problem && <Problem text={problem} />}
      <div className="st-actions">
        <button type="button" className="button" onClick={onCancel}>
          {words.cancel}
        </button>
        <button type="submit" className="button primary" disabled={isSaving}>
          {words.save}
        </button>
      </div>
    </form>
  );
}

const namesIn = (allowed: string) =>
  allowed
    .split(",")
    .map((name) => name.trim())
    .filter(Boolean);
const isAllowed = (allowed: string, name: string) => namesIn(allowed).includes(name);

function toggled(allowed: string, name: string): string {
  const names = namesIn(allowed);
  return (names.includes(name) ? names.filter((each) => each !== name) : [...names, name]).join(", ");
}

function Pairs({ title, pairs, onChange }: { title: string; pairs: Pair[]; onChange: (pairs: Pair[]) => void }) {
  const edit = (index: number, fields: Partial<Pair>) =>
    onChange(pairs.map((pair, at) => (at === index ? { ...pair, ...fields } : pair)));
  return (
    <fieldset className="st-pairs">
      <legend>{title}</legend>
      {pairs.map((pair, index) => (
        <div key={index} className="st-pair">
          <input
            aria-label={words.name}
            placeholder={words.name}
            dir="ltr"
            autoComplete="off"
            value={pair.name}
            onChange={(event) => edit(index, { name: event.target.value })}
          />
          <input
            aria-label={`${words.value} ${pair.name}`}
            dir="ltr"
            autoComplete="off"
            placeholder={pair.value === null ? words.valueSet : words.value}
            value={pair.value ?? ""}
            onChange={(event) => edit(index, { value: event.target.value })}
          />
          <button
            type="button"
            className="button quiet"
            aria-label={words.removeRow(pair.name)}
            onClick={() => onChange(pairs.filter((_, at) => at !== index))}
          >
            ×
          </button>
        </div>
      ))}
      <button type="button" className="button" onClick={() => onChange([...pairs, { name: "", value: "" }])}>
        {words.addRow}
        <span className="hidden"> {title}</span>
      </button>
      <p className="meta">{words.valueHint}</p>
    </fieldset>
  );
}
