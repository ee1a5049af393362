import { isObject } from "../tools/describe";
import { visible } from "./visible";
import "./approval.css";

/** Show an argument in full, key by key. With `previous`, cross out old values. */
export function Values({ value, previous }: { value: unknown; previous?: unknown }) {
  if (!isObject(value)) return <Value value={value} />;
  const before = isObject(previous) ? previous : null;
  const names = [...new Set([...Object.keys(value), ...(before ? Object.keys(before) : [])])];
  return (
    <dl className="values">
      {names.map((name) => (
        <div key={name}>
          <dt>
            <Visible text={name} />
          </dt>
          <dd>
            {name in value && <Value value={value[name]} />}
            {before && name in before && !isSame(value[name], before[name]) && (
              <del className={textOf(before[name]).includes("\n") ? "was block" : "was"}>
                <Value value={before[name]} />
              </del>
            )}
          </dd>
        </div>
      ))}
    </dl>
  );
}

const WIDTH = 80;
const textOf = (value: unknown) => (typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? ""));

/** Estimate how many lines the arguments take, counting wrapped lines. */
export function linesOf(value: unknown): number {
  if (isObject(value)) return Object.values(value).reduce<number>((sum, entry) => sum + linesIn(textOf(entry)), 0);
  return linesIn(textOf(value));
}

const linesIn = (text: string) =>
  text.split("\n").reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / WIDTH)), 0);

export const isSame = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);

function Value({ value }: { value: unknown }) {
  return (
    <span className="value" dir="ltr">
      <Visible text={textOf(value)} />
    </span>
  );
}

/** Show untrusted text, with invisible characters replaced by their names. */
export function Visible({ text }: { text: string }) {
  return visible(text).map((piece, index) =>
    piece.isHidden ? (
      <span key={index} className="hidden-character">
        {piece.text}
      </span>
    ) : (
      piece.text
    ),
  );
}
