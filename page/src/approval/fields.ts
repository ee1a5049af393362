// Convert an MCP server's JSON schema to form fields, and entries to values. The server validates them again.
import { isObject } from "../tools/describe";
import { fieldWords as say } from "./words";

export interface Choice {
  value: string | number;
  label: string;
}

export interface Field {
  name: string;
  title: string;
  description: string;
  kind: "text" | "number" | "integer" | "boolean" | "choice" | "choices" | "list";
  /** Type of the input element. */
  type: string;
  choices: Choice[];
  isRequired: boolean;
  default: unknown;
  min: number | null;
  max: number | null;
  pattern: string | null;
}

/** A user's entry: text, the indexes of chosen values, or a checkbox state. */
export type Entry = string | boolean | number[];
export type Entries = Record<string, Entry>;

const TYPES: Record<string, string> = { email: "email", uri: "url", date: "date" };

export function fieldsOf(schema: unknown): Field[] {
  if (!isObject(schema) || !isObject(schema.properties)) return [];
  const required = Array.isArray(schema.required) ? schema.required : [];
  return Object.entries(schema.properties).map(([name, given]) => {
    const field = isObject(given) ? given : {};
    const isList = field.type === "array";
    const choices = choicesOf(isList && isObject(field.items) ? field.items : field);
    return {
      name,
      title: text(field.title) || name,
      description: text(field.description),
      kind: kindOf(field.type, choices.length > 0),
      type: TYPES[text(field.format)] ?? "text",
      choices,
      isRequired: required.includes(name),
      default: field.default,
      min: number(field.minimum ?? field.minLength ?? field.minItems),
      max: number(field.maximum ?? field.maxLength ?? field.maxItems),
      pattern: text(field.pattern) || null,
    };
  });
}

function kindOf(type: unknown, hasChoices: boolean): Field["kind"] {
  if (type === "array") return hasChoices ? "choices" : "list";
  if (hasChoices) return "choice";
  return type === "boolean" || type === "integer" || type === "number" ? type : "text";
}

function choicesOf(options: Record<string, unknown>): Choice[] {
  if (Array.isArray(options.enum)) {
    const names = Array.isArray(options.enumNames) ? options.enumNames : [];
    return options.enum.filter(isValue).map((value, index) => ({ value, label: text(names[index]) || String(value) }));
  }
  const titled = options.oneOf ?? options.anyOf;
  if (!Array.isArray(titled)) return [];
  return titled.flatMap((option) =>
    isObject(option) && isValue(option.const)
      ? [{ value: option.const, label: text(option.title) || String(option.const) }]
      : [],
  );
}

const isValue = (value: unknown) => typeof value === "string" || typeof value === "number";
const text = (value: unknown) => (typeof value === "string" ? value : "");
const number = (value: unknown) => (typeof value === "number" ? value : null);

/** Return the initial entries of a form: its defaults. */
export function startOf(fields: Field[]): Entries {
  return Object.fromEntries(fields.map((field) => [field.name, entryOf(field)]));
}

function entryOf({ kind, choices, default: given }: Field): Entry {
  const at = (value: unknown) => choices.findIndex((choice) => choice.value === value);
  const values = Array.isArray(given) ? given : [];
  if (kind === "boolean") return given === true;
  if (kind === "choices") return values.map(at).filter((index) => index >= 0);
  if (kind === "choice") return at(given) < 0 ? "" : String(at(given));
  if (kind === "list") return values.map(String).join("\n");
  return given === undefined || given === null ? "" : String(given);
}

export interface Read {
  answers: Record<string, unknown>;
  /** Validation messages, by field name. */
  problems: Record<string, string>;
}

/** Convert entries to the types of the schema. Empty fields are left out. */
export function readEntries(fields: Field[], entries: Entries): Read {
  const answers: Record<string, unknown> = {};
  const problems: Record<string, string> = {};
  for (const field of fields) {
    const value = entered(field, entries[field.name] ?? "");
    // The server fills missing fields with defaults, so send a cleared text field as "".
    const isEmptied = value === undefined && field.kind === "text" && Boolean(field.default);
    const problem = problemWith(field, isEmptied ? "" : value);
    if (problem) problems[field.name] = problem;
    else if (value !== undefined || isEmptied) answers[field.name] = isEmptied ? "" : value;
  }
  return { answers, problems };
}

function entered({ kind, choices }: Field, entry: Entry): unknown {
  if (typeof entry === "boolean") return entry;
  if (Array.isArray(entry)) return entry.length > 0 ? entry.map((index) => choices[index]?.value) : undefined;
  if (entry.trim() === "") return undefined;
  if (kind === "choice") return choices[Number(entry)]?.value;
  if (kind === "integer" || kind === "number") return Number(entry);
  if (kind === "list") return entry.split("\n").filter((line) => line.trim());
  return entry;
}

function problemWith(field: Field, value: unknown): string | null {
  const { kind, min, max } = field;
  if (value === undefined) {
    const hasDefault = field.default !== undefined && field.default !== null && kind !== "text";
    return field.isRequired || hasDefault ? say.needed : null;
  }
  if (typeof value === "number" && kind !== "choice") {
    if (!Number.isFinite(value) || (kind === "integer" && !Number.isInteger(value))) return say.number(kind);
    return between(value, min, max) ? null : say.between(min, max, "");
  }
  if (Array.isArray(value)) return between(value.length, min, max) ? null : say.between(min, max, say.entries);
  if (kind !== "text" || typeof value !== "string") return null;
  if (field.isRequired && value === "") return say.needed;
  if (!between([...value].length, min, max)) return say.between(min, max, say.characters);
  if (field.type === "email" && !/^[^\s@]+@[^\s@]+$/.test(value)) return say.email;
  if (field.type === "url" && !URL.canParse(value)) return say.address;
  return field.pattern === null || matches(field.pattern, value) ? null : say.pattern;
}

const between = (value: number, min: number | null, max: number | null) =>
  (min === null || value >= min) && (max === null || value <= max);

function matches(pattern: string, value: string): boolean {
  // An untrusted pattern can backtrack without end on long text. Our server validates the answer anyway.
  if (value.length > 200 || pattern.length > 200) return true;
  try {
    return new RegExp(pattern, "u").test(value);
  } catch {
    return true;
  }
}
