import { type FocusEvent, type KeyboardEvent, type MouseEvent, type ReactNode, type Ref, useId, useRef } from "react";
import type { Model } from "../api";
import type { Draft } from "../chat/drafts";
import { useCommand } from "../commands";
import { isThere } from "../tools/places";
import { Icon, type IconName } from "../ui/icons";
import { words } from "../words";
import { usePanels } from "./models";

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

/** Pickers of the model, thinking and tools of the next message. They explain what is unavailable. */
export function Picker({ models, current, draft, onChange }: Props) {
  const choice = useRef<HTMLElement>(null);
  const hasModels = models.length > 0;
  const hasChoice = usePanels()("models");
  useCommand("model", hasModels && hasChoice ? () => choice.current?.focus() : null);
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
  const own = chosen.isAgent ? words.asAgent : words.asModel;
  return (
    <div className="picker">
      {hasChoice && (
        <Menu kind="model" title={words.model} value={chosen.label} label={choice}>
          {offered.map((model) => (
            <Option
              key={model.name}
              group="model"
              value={model.name}
              isChosen={model === chosen}
              isDisabled={!model.available}
              note={noteOf(model)}
              onChoose={() =>
                onChange({
                  model: model === fallback ? undefined : model.name,
                  thinking: undefined,
                  tools: undefined,
                })
              }
            >
              {model.label}
            </Option>
          ))}
        </Menu>
      )}
      {chosen.thinking.length > 0 && (
        <Menu kind="thinking" icon="thought" title={words.thinking} value={draft.thinking ?? null} none={own.one}>
          <Option
            group="thinking"
            value=""
            isChosen={draft.thinking === undefined}
            onChoose={() => onChange({ thinking: undefined })}
          >
            {own.one}
          </Option>
          {chosen.thinking.map((level) => (
            <Option
              key={level}
              group="thinking"
              value={level}
              isChosen={draft.thinking === level}
              onChoose={() => onChange({ thinking: level })}
            >
              {level}
            </Option>
          ))}
        </Menu>
      )}
      {tools.length > 0 && (
        <Menu
          kind="tools"
          icon="wrench"
          title={words.tools}
          value={on.length > 0 ? String(on.length) : null}
          none={own.many}
        >
          <Option group="tools" value="" isChosen={on.length === 0} onChoose={() => onChange({ tools: undefined })}>
            {own.many}
          </Option>
          {tools.map(([name, where]) => {
            const canRun = isThere(where);
            return (
              <label key={name} className={canRun ? "option" : "option muted"}>
                <input
                  type="checkbox"
                  value={name}
                  checked={on.includes(name)}
                  disabled={!canRun}
                  onChange={() => toggle(name)}
                />
                <span>{name.replace(/_/g, " ")}</span>{" "}
                <span className="meta" title={where}>
                  {where.split(SECOND)[0]}
                </span>
              </label>
            );
          })}
        </Menu>
      )}
    </div>
  );
}

/** Start of what follows the first part of an explanation. The title has the whole. */
const SECOND = /; |, e\.g\.|\. /;

function noteOf({ available, variable, isAgent, providerLabel }: Model): string {
  if (!available && variable) return words.noKey(variable);
  return (!isAgent && providerLabel) || "";
}

interface MenuProps {
  kind: string;
  icon?: IconName;
  title: string;
  /** The choice. Null means the default, which is not repeated in a narrow window. */
  value: string | null;
  /** The default in words. */
  none?: string;
  label?: Ref<HTMLElement>;
  children: ReactNode;
}

/** A button that opens a list of choices above it. */
function Menu({ kind, icon, title, value, none = "", label, children }: MenuProps) {
  const menu = useRef<HTMLDetailsElement>(null);
  const close = () => menu.current?.removeAttribute("open");
  const onLeave = (event: FocusEvent) => !event.currentTarget.contains(event.relatedTarget) && close();
  const closeAndReturn = () => {
    close();
    menu.current?.querySelector("summary")?.focus();
  };
  const onKey = (event: KeyboardEvent) => {
    if (!menu.current?.open || (event.target as Element).localName === "summary") {
      if (event.key !== "Escape" || !menu.current?.open) return;
    }
    if (event.key !== "Escape" && event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    closeAndReturn();
  };
  // The arrow keys also click a radio button, but without a pointer.
  const onClick = (event: MouseEvent) => {
    if (event.detail > 0 && (event.target as Element).matches('input[type="radio"]')) closeAndReturn();
  };
  return (
    <details ref={menu} className="pick" data-pick={kind} onBlur={onLeave} onKeyDown={onKey}>
      <summary ref={label} title={`${title}: ${value ?? none}`}>
        {icon && <Icon name={icon} />}
        <span className={icon ? "wide-word" : "hidden"}>{title}</span>
        {value !== null && <span className="pick-value">{value}</span>}
        <Icon name="down" />
      </summary>
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: the keys are handled above */}
      <fieldset className="pick-list" tabIndex={-1} onClick={onClick}>
        <legend>{title}</legend>
        {children}
      </fieldset>
    </details>
  );
}

interface OptionProps {
  group: string;
  value: string;
  isChosen: boolean;
  isDisabled?: boolean;
  note?: string;
  onChoose: () => void;
  children: ReactNode;
}

function Option({ group, value, isChosen, isDisabled = false, note, onChoose, children }: OptionProps) {
  const id = useId();
  return (
    <label className={isDisabled ? "option muted" : "option"}>
      <input
        type="radio"
        name={`pick-${group}`}
        value={value}
        checked={isChosen}
        disabled={isDisabled}
        aria-describedby={note ? id : undefined}
        onChange={onChoose}
      />
      <span>{children}</span>
      {note && (
        <span className="meta" id={id}>
          {note}
        </span>
      )}
    </label>
  );
}
