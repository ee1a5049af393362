// Continues a run from one of its records, with one fact changed or none.
import { type FormEvent, useId, useMemo, useState } from "react";
import { api, type Json } from "../api";
import { refreshConversations } from "../rail/conversations";
import { navigate } from "../router";
import { useModels } from "../thread/models";
import { Dialog } from "../ui/dialog";
import { words as pageWords } from "../words";
import type { Item, Timeline } from "./fold";
import { type Change, type Changeable, changesAt, readValue } from "./forks";
import { timelineWords as words } from "./words";

interface Props {
  run: string;
  timeline: Timeline;
  item: Item;
  changeable: Changeable;
  onClose: () => void;
}

export function ForkForm({ run, timeline, item, changeable, onClose }: Props) {
  const models = useModels().filter((model) => model.available);
  const found = useMemo(() => changesAt(timeline, item, changeable), [timeline, item, changeable]);
  const changes = found.filter(({ kind }) => kind !== "model" || models.length > 1);
  const [chosen, choose] = useState(0);
  const change = changes[chosen] ?? changes[0]!;
  const [text, setText] = useState(() => shown(found[0]!));
  const [model, setModel] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [isSending, setSending] = useState(false);
  const id = useId();
  const send = async (event: FormEvent) => {
    event.preventDefault();
    setError(null);
    setSending(true);
    try {
      const { chat, run: next } = await api.fork(run, { at: change.at, ...factOf(change, text, model) });
      refreshConversations();
      onClose();
      navigate(next ? `/r/${encodeURIComponent(next)}` : `/c/${encodeURIComponent(chat)}`);
    } catch (failure) {
      setError(failure instanceof SyntaxError ? words.notJson : (failure as Error).message);
      setSending(false);
    }
  };
  return (
    <Dialog title={words.continueFrom(change.at)} onClose={onClose}>
      <form className="tl-fork" onSubmit={send}>
        <label htmlFor={`${id}-what`}>{words.change}</label>
        <select
          id={`${id}-what`}
          value={chosen}
          onChange={(event) => {
            const next = Number(event.target.value);
            choose(next);
            setText(shown(changes[next]!));
          }}
        >
          {changes.map((each, index) => (
            <option key={each.kind} value={index}>
              {words.kinds[each.kind](each.tool ?? "")}
            </option>
          ))}
        </select>
        {(change.kind === "result" || change.kind === "message") && (
          <>
            <label htmlFor={`${id}-text`}>{change.kind === "result" ? words.result : pageWords.composer}</label>
            <textarea
              id={`${id}-text`}
              rows={5}
              dir="auto"
              required={change.kind === "message"}
              value={text}
              onChange={(event) => setText(event.target.value)}
            />
          </>
        )}
        {change.kind === "model" && (
          <>
            <label htmlFor={`${id}-model`}>{pageWords.model}</label>
            <select id={`${id}-model`} required value={model} onChange={(event) => setModel(event.target.value)}>
              <option value="" />
              {models.map((each) => (
                <option key={each.name} value={each.name}>
                  {each.label}
                </option>
              ))}
            </select>
          </>
        )}
        <p className="meta">{words.copies(change.at)}</p>
        {error && <p role="alert">{error}</p>}
        <div className="dialog-actions">
          <button type="button" className="button" onClick={onClose}>
            {pageWords.cancel}
          </button>
          <button type="submit" className="button primary" disabled={isSending}>
            {pageWords.continue}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function shown({ kind, value }: Change): string {
  if (kind !== "result") return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

function factOf({ kind, call, value }: Change, text: string, model: string): Record<string, Json> {
  switch (kind) {
    case "result":
      return { results: { [call!]: readValue(text, value) } };
    case "deny":
      return { deny: [call!] };
    case "message":
      return { message: text };
    case "model":
      return { model };
    default:
      return {};
  }
}
