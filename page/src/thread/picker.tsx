import { type FocusEvent, useId, useRef } from "react";
import type { Model } from "../api";
import type { Draft } from "../chat/drafts";
import { useCommand } from "../commands";
import { isThere } from "../tools/places";
import { words } from "../words";

interface Props {
  models: Model[];
  /** Model that answers if none is chosen. */
  current: string | null;
  draft: Draft;
  onChange: (change: Partial<Draft>) => void;
}

/** Entry for a model that answered earlier but is no longer listed. */
function unlisted(name: string): Model {
  const nothing = { variable: null, thinking: [], tools: {}, price: null };
  return { name, label: name, provider: name.split(":")[0]!, available: true, ...nothing };
}

/** Picker of the model, thinking and tools of the next message. It explains what is unavailable. */
export function Picker({ models, current, draft, onChange }: Props) {
  const id = useId();
  const list = useRef<HTMLDetailsElement>(null);
  const choice = useRef<HTMLSelectElement>(null);
  const hasModels = models.length > 0;
  useCommand("model", hasModels ? () => choice.current?.focus() : null);
  const close = () => list.current?.removeAttribute("open");
  const onLeave = (event: FocusEvent) => !event.currentTarget.contains(event.relatedTarget) && close();
  if (!hasModels) return null;
  const offered = current && !models.some((model) => model.name === current) ? [...models, unlisted(current)] : models;
  const fallback =
    offered.find((model) => model.name === current) ?? models.find((model) => model.default) ?? models[0]!;
  const chosen = offered.find((model) => model.name === draft.model) ?? fallback;
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
          ref={choice}
          value={chosen.name}
          onChange={({ target }) =>
            onChange({
              model: target.value === fallback.name ? undefined : target.value,
              thinking: undefined,
              tools: undefined,
            })
          }
        >
          {offered.map((model) => (
            <option key={model.name} value={model.name} disabled={!model.available}>
              {model.isAgent || !model.providerLabel ? model.label : `${model.label} · ${model.providerLabel}`}
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
            aria-label={words.thinking}
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
        <details
          ref={list}
          className="pick-tools"
          onBlur={onLeave}
          onKeyDown={(event) => {
            if (event.key !== "Escape" || !list.current?.open) return;
            event.stopPropagation();
            close();
            list.current.querySelector("summary")?.focus();
          }}
        >
          <summary>{on.length > 0 ? words.toolsCount(on.length) : words.tools}</summary>
          <div className="pick-list" tabIndex={-1}>
            {tools.map(([name, where]) => {
              const canRun = isThere(where);
              return (
                <label key={name} className={canRun ? undefined : "muted"}>
                  <input type="checkbox" checked={on.includes(name)} disabled={!canRun} onChange={() => toggle(name)} />
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
