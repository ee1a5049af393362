import { type ClipboardEvent, type KeyboardEvent, useEffect, useRef, useState } from "react";
import type { Model } from "../api";
import type { Draft } from "../chat/drafts";
import type { Attachment } from "../chat/uploads";
import { look } from "../look";
import { announce } from "../ui/announcer";
import { Icon } from "../ui/icons";
import { words } from "../words";
import { AttachButton, Attachments, attachAll, useDrop } from "./attachments";
import { useDraft } from "./draft";
import type { Editing } from "./editing";
import { useModels } from "./models";
import { Picker } from "./picker";

interface Props {
  /** Storage key of the draft. */
  draftKey: string;
  isRunning: boolean;
  isStopping: boolean;
  model: string | null;
  editing: Editing | null;
  onCancelEdit: () => void;
  /** Resolves to true when the server has accepted the message. Only then is the draft cleared. */
  onSend: (text: string, files: Attachment[], settings: Omit<Draft, "text">) => Promise<boolean>;
  onSteer: (text: string) => Promise<void>;
  onQueue: (text: string) => void;
  onStop: () => void;
  onEditLast: () => void;
  /** Called when the settings of the next message change. */
  onSettings: (settings: Omit<Draft, "text">) => void;
}

const STOP_AGAIN_MS = 2000;

export function Composer(props: Props) {
  const { draftKey, isRunning, isStopping, model, editing, onSettings, onStop } = props;
  const area = useRef<HTMLTextAreaElement>(null);
  const kept = useDraft(draftKey, editing, area);
  const { draft, files, change, changeFiles } = kept;
  const [note, setNote] = useState<string | null>(null);
  const models = useModels();

  const { model: chosen, thinking, tools } = draft;
  useEffect(() => onSettings({ model: chosen, thinking, tools }), [chosen, thinking, tools, onSettings]);

  const add = (list: Iterable<File>) => {
    setNote(null);
    const added = attachAll(list, setNote);
    if (added.length > 0) changeFiles((now) => [...now, ...added]);
  };
  const isOver = useDrop(add);
  const onPaste = (event: ClipboardEvent) => {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    add(event.clipboardData.files);
  };

  /** End editing and restore the earlier draft. */
  const endEditing = () => {
    kept.restore();
    props.onCancelEdit();
  };
  const { submit, queue, isSending } = useSubmit(props, kept);
  const stopOnSecond = useStopOnSecond(onStop, setNote);
  const onKeyDown = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    if (event.nativeEvent.isComposing || event.keyCode === 229) return;
    if (event.key === "Enter") {
      const isControl = event.ctrlKey || event.metaKey;
      if (!isControl && (look().enter !== "send" || event.shiftKey)) return;
      event.preventDefault();
      if (isRunning && isControl) queue();
      else submit();
    } else if (event.key === "ArrowUp" && !event.altKey && draft.text === "" && !isRunning) {
      event.preventDefault();
      props.onEditLast();
    } else if (event.key === "Escape" && editing) endEditing();
    else if (event.key === "Escape" && isRunning) stopOnSecond();
  };

  return (
    <form
      className="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      {isOver && <div className="drop">{words.drop}</div>}
      {editing && (
        <p className="composer-note">
          {words.editing}{" "}
          <button type="button" className="link" onClick={endEditing}>
            {words.cancel}
          </button>
        </p>
      )}
      {note && <p className="composer-note">{note}</p>}
      <Change models={models} current={model} chosen={draft.model} />
      <Attachments files={files} onRemove={(file) => changeFiles(() => files.filter((one) => one !== file))} />
      <div className="composer-field">
        <textarea
          ref={area}
          rows={1}
          dir="auto"
          value={draft.text}
          placeholder={words.ask}
          aria-label={words.composer}
          onChange={(event) => change({ text: event.target.value })}
          onKeyDown={onKeyDown}
          onPaste={onPaste}
        />
      </div>
      <div className="composer-bar">
        <AttachButton onAdd={add} />
        <Picker models={models} current={model} draft={draft} onChange={change} />
        {isRunning ? (
          <RunButtons hasText={draft.text.trim() !== ""} isStopping={isStopping} onStop={onStop} />
        ) : (
          <SendButton isDisabled={isSending || (!draft.text.trim() && files.length === 0)} />
        )}
      </div>
    </form>
  );
}

/** Buttons that send, steer or stop. */
function useSubmit({ isRunning, onSend, onSteer, onQueue }: Props, kept: ReturnType<typeof useDraft>) {
  const { draft, files, change, take } = kept;
  const [isSending, setSending] = useState(false);
  const text = draft.text.trim();

  const send = async () => {
    if ((!text && files.length === 0) || isSending) return;
    setSending(true);
    const { text: _, ...settings } = draft;
    const settle = take();
    const isTaken = await onSend(text, files, settings);
    setSending(false);
    settle(isTaken);
  };

  const steer = async () => {
    if (!text) return;
    change({ text: "" });
    try {
      await onSteer(text);
    } catch {
      change({ text });
    }
  };

  const queue = () => {
    if (!text) return;
    onQueue(text);
    change({ text: "" });
  };

  return { submit: () => void (isRunning ? steer() : send()), queue, isSending };
}

/** Return a function that stops the run on its second call. The first call shows a hint. */
function useStopOnSecond(onStop: () => void, setNote: (change: (now: string | null) => string | null) => void) {
  const escaped = useRef(0);
  return () => {
    if (Date.now() - escaped.current < STOP_AGAIN_MS) {
      setNote(() => null);
      onStop();
      return;
    }
    escaped.current = Date.now();
    setNote(() => words.escAgain);
    announce(words.escAgain);
    setTimeout(() => setNote((now) => (now === words.escAgain ? null : now)), STOP_AGAIN_MS);
  };
}

function RunButtons({ hasText, isStopping, onStop }: { hasText: boolean; isStopping: boolean; onStop: () => void }) {
  return (
    <>
      {hasText && (
        <button type="submit" className="button" title={words.steerHint}>
          {words.steer}
        </button>
      )}
      <button type="button" className="button send" disabled={isStopping} onClick={onStop}>
        <Icon name="stop" /> <span className="wide-word">{words.stop}</span>
      </button>
    </>
  );
}

function SendButton({ isDisabled }: { isDisabled: boolean }) {
  return (
    <button type="submit" className="button primary send" disabled={isDisabled}>
      <Icon name="send" /> <span className="wide-word">{words.send}</span>
    </button>
  );
}

/** Notice that the next message goes to a different model. */
function Change({ models, current, chosen }: { models: Model[]; current: string | null; chosen: string | undefined }) {
  if (!current || !chosen || chosen === current) return null;
  const label = (name: string) => models.find((model) => model.name === name)?.label ?? name;
  return <p className="composer-note">{words.nextGoesTo(label(chosen), label(current))}</p>;
}
