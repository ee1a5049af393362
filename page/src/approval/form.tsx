import { useId, useMemo, useState } from "react";
import type { ApprovalData } from "../chat/types";
import { safeLink } from "../markdown/links";
import { Visible } from "./arguments";
import { type Entries, type Entry, type Field, fieldsOf, readEntries, startOf } from "./fields";
import { fieldWords, approvalWords as say } from "./words";

export interface FormState {
  fields: Field[];
  entries: Entries;
  problems: Record<string, string>;
  enter(name: string, entry: Entry): void;
  /** Return the values. If a field is invalid, show its problem and return null. */
  read(): Record<string, unknown> | null;
}

/** Return the state of an approval's form, or null if it has no fields. */
export function useForm(form: ApprovalData["form"]): FormState | null {
  const schema = JSON.stringify(form?.schema ?? null);
  const fields = useMemo(() => fieldsOf(JSON.parse(schema)), [schema]);
  const [typed, setTyped] = useState<Entries>({});
  const [problems, setProblems] = useState<Record<string, string>>({});
  if (!form || form.url !== undefined) return null;
  const entries = { ...startOf(fields), ...typed };
  return {
    fields,
    entries,
    problems,
    enter: (name, entry) => {
      setTyped({ ...typed, [name]: entry });
      setProblems({ ...problems, [name]: "" });
    },
    read: () => {
      const found = readEntries(fields, entries);
      setProblems(found.problems);
      return Object.keys(found.problems).length > 0 ? null : found.answers;
    },
  };
}

/** A URL that a server asks the user to visit. */
export function Visit({ url }: { url: string }) {
  const link = safeLink(url, "");
  return (
    <p className="form-address" dir="ltr">
      {link ? (
        <a href={link.href} target="_blank" rel="noopener noreferrer">
          {link.href}
        </a>
      ) : (
        <Visible text={url} />
      )}
      {link && <span className="muted"> {say.leadsTo(link.host)}</span>}
    </p>
  );
}

export function Fields({ form }: { form: FormState }) {
  return (
    <div className="form-fields">
      {form.fields.map((field) => (
        <FieldRow
          key={field.name}
          field={field}
          entry={form.entries[field.name] ?? ""}
          problem={form.problems[field.name] ?? ""}
          onEntry={(entry) => form.enter(field.name, entry)}
        />
      ))}
    </div>
  );
}

interface RowProps {
  field: Field;
  entry: Entry;
  problem: string;
  onEntry(entry: Entry): void;
}

function FieldRow({ field, entry, problem, onEntry }: RowProps) {
  const id = useId();
  const isGroup = field.kind === "choices";
  const described = [field.description && `${id}-d`, problem && `${id}-p`].filter(Boolean).join(" ") || undefined;
  const common = {
    id,
    "aria-describedby": described,
    "aria-invalid": problem !== "",
    "aria-required": field.isRequired,
  };
  const title = (
    <>
      <Visible text={field.title} /> {!field.isRequired && <span className="muted">{fieldWords.optional}</span>}
    </>
  );
  return (
    <div className="form-field" dir="auto">
      {field.kind === "boolean" ? (
        <label htmlFor={id} className="form-mark">
          <input
            {...common}
            type="checkbox"
            checked={entry === true}
            onChange={(event) => onEntry(event.target.checked)}
          />{" "}
          <Visible text={field.title} />
        </label>
      ) : isGroup ? (
        <Choices field={field} entry={entry} title={title} described={described} onEntry={onEntry} />
      ) : (
        <>
          <label htmlFor={id}>{title}</label>
          <Control field={field} entry={String(entry)} common={common} onEntry={onEntry} />
        </>
      )}
      {field.description && (
        <p id={`${id}-d`} className="meta">
          <Visible text={field.description} />
        </p>
      )}
      {problem && (
        <p id={`${id}-p`} className="form-problem">
          {problem}
        </p>
      )}
    </div>
  );
}

interface ControlProps {
  field: Field;
  entry: string;
  common: { id: string; "aria-describedby": string | undefined; "aria-invalid": boolean; "aria-required": boolean };
  onEntry(entry: Entry): void;
}

function Control({ field, entry, common, onEntry }: ControlProps) {
  if (field.kind === "choice") {
    return (
      <select {...common} value={entry} onChange={(event) => onEntry(event.target.value)}>
        <option value="">{fieldWords.choose}</option>
        {field.choices.map((choice, index) => (
          <option key={choice.value} value={String(index)}>
            {choice.label}
          </option>
        ))}
      </select>
    );
  }
  if (field.kind === "list") {
    return <textarea {...common} rows={3} value={entry} onChange={(event) => onEntry(event.target.value)} />;
  }
  const isNumber = field.kind === "number" || field.kind === "integer";
  return (
    <input
      {...common}
      type={isNumber ? "text" : field.type}
      inputMode={isNumber ? "decimal" : undefined}
      autoComplete="off"
      dir="auto"
      value={entry}
      onChange={(event) => onEntry(event.target.value)}
    />
  );
}

interface ChoicesProps {
  field: Field;
  entry: Entry;
  title: React.ReactNode;
  described: string | undefined;
  onEntry(entry: Entry): void;
}

function Choices({ field, entry, title, described, onEntry }: ChoicesProps) {
  const chosen = Array.isArray(entry) ? entry : [];
  return (
    <fieldset aria-describedby={described}>
      <legend>{title}</legend>
      {field.choices.map((choice, index) => (
        <label key={choice.value} className="form-mark">
          <input
            type="checkbox"
            checked={chosen.includes(index)}
            onChange={(event) =>
              onEntry(
                event.target.checked ? [...chosen, index].sort((a, b) => a - b) : chosen.filter((at) => at !== index),
              )
            }
          />{" "}
          <Visible text={choice.label} />
        </label>
      ))}
    </fieldset>
  );
}
