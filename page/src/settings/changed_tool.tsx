import { useMemo } from "react";
import type { Json } from "../api";
import { Visible } from "../approval/arguments";
import type { ToolChange } from "./calls";
import { diffOf } from "./diff";
import { settingsWords as words } from "./words";

interface Props {
  change: ToolChange;
  isEditable: boolean;
  onAccept: () => void;
}

/** A changed tool: the accepted definition, the new one, and a button to accept it. */
export function ChangedTool({ change, isEditable, onAccept }: Props) {
  return (
    <section className="st-changed" aria-label={words.changed(change.tool)}>
      <p className="st-warn">
        <strong>{words.changed(change.tool)}</strong> {words.changedWhat}
      </p>
      {change.aspects.map((aspect) => (
        <div key={aspect.name}>
          <h4>{words.aspects[aspect.name] ?? aspect.name}</h4>
          <Diff before={textOf(aspect.old)} after={textOf(aspect.new)} />
        </div>
      ))}
      {isEditable && (
        <button type="button" className="button" onClick={onAccept}>
          {words.accept}
          <span className="hidden"> {change.tool}</span>
        </button>
      )}
    </section>
  );
}

function Diff({ before, after }: { before: string; after: string }) {
  const lines = useMemo(() => diffOf(before, after), [before, after]);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <div className="st-diff" dir="ltr" tabIndex={0}>
      {lines.map(({ kind, text }, index) =>
        kind === "old" ? (
          <del key={index}>
            <Visible text={text} />
          </del>
        ) : kind === "new" ? (
          <ins key={index}>
            <Visible text={text} />
          </ins>
        ) : (
          <span key={index}>
            <Visible text={text} />
          </span>
        ),
      )}
    </div>
  );
}

/** Format one aspect of a tool. Descriptions are text, the rest is JSON. */
function textOf(value: Json): string {
  if (value === null) return "";
  const isTexts = Array.isArray(value) && value.every((one) => one === null || typeof one === "string");
  if (isTexts) return value.filter((one) => one !== null).join("\n");
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}
