import { useId } from "react";
import type { Model } from "../api";
import type { Draft } from "../chat/drafts";
import { words } from "../words";

interface Props {
  models: Model[];
  /** The model that answers if none is chosen. */
  current: string | null;
  draft: Draft;
  onChange: (change: Partial<Draft>) => void;
}

/** Model, thinking and tools of the next message: what this model has, and why not what it has not. */
export function Picker({ models, current, draft, onChange }: Props) {
  const id = useId();
  if (models.length === 0) return null;
  const fallback =
    models.find((model) => model.name === current) ?? models.find((model) => model.default) ?? models[0]!;
  const chosen = models.find((model) => model.name === draft.model) ?? fallback;
  const tools = Object.entries(chosen.tools ?? {});
  const on = draft.tools ?? [];
  const toggle = (name: string) => {
    const next = on.includes(name) ? on.filter((one) => one !== name) : [...on, name];
    onChange({ tools: next.length > 0 ? next : undefined });
  };
  return (
    <div className="picker">
      <label className="pick" htmlFor={`${id}m`}>
        <span className="hidden">{words.model}</span>
        <select
          id={`${id}m`}
          value={chosen.name}
          onChange={({ target }) =>
            onChange({
              model: target.value === fallback.name ? undefined : target.value,
              thinking: undefined,
              tools: undefined,
            })
          }
        >
          {models.map((model) => (
            <option key={model.name} value={model.name} disabled={!model.available}>
              {model.label || model.name}
              {!model.available && model.variable ? ` (${words.noKey(model.variable)})` : ""}
            </option>
          ))}
        </select>
      </label>
      {chosen.thinking.length > 0 && (
        <label className="pick" htmlFor={`${id}t`}>
          <span>{words.thinking}</span>
          <select
            id={`${id}t`}
            value={draft.thinking ?? ""}
            onChange={({ target }) => onChange({ thinking: target.value || undefined })}
          >
            <option value="">{words.modelDefault}</option>
            {chosen.thinking.map((level) => (
              <option key={level} value={level}>
                {level}
              </option>
            ))}
          </select>
        </label>
      )}
      {tools.length > 0 && (
        <details className="pick-tools">
          <summary>{on.length > 0 ? words.toolsCount(on.length) : words.tools}</summary>
          <div className="pick-list">
            {tools.map(([name, where]) => {
              const isThere = where === "hosted" || where === "here" || where.startsWith("by ");
              return (
                <label key={name} className={isThere ? undefined : "muted"}>
                  <input
                    type="checkbox"
                    checked={on.includes(name)}
                    disabled={!isThere}
                    onChange={() => toggle(name)}
                  />
                  <span>{name.replace(/_/g, " ")}</span> <span className="meta">{where}</span>
                </label>
              );
            })}
            <p className="meta">{on.length === 0 ? words.defaultTools : ""}</p>
          </div>
        </details>
      )}
    </div>
  );
}
