import { type ClipboardEvent, type KeyboardEvent, useCallback, useEffect, useRef, useState } from "react";
import type { Model } from "../api";
import { type Draft, readDraft, readFiles, writeDraft, writeFiles } from "../chat/drafts";
import { type Attachment, attach, MAX_FILE_BYTES } from "../chat/uploads";
import { size } from "../format";
import { look } from "../look";
import { announce } from "../ui/announcer";
import { Icon } from "../ui/icons";
import { words } from "../words";
import { useModels } from "./models";
import { Picker } from "./picker";

/** A question that is asked again in other words. */
export interface Editing {
  id: string;
  text: string;
  files: Attachment[];
}

interface Props {
  /** Where the draft is kept. */
  draftKey: string;
  isRunning: boolean;
  isStopping: boolean;
  model: string | null;
  editing: Editing | null;
  onCancelEdit: () => void;
  /** Resolves with true when the server has taken the message: only then the draft is cleared. */
  onSend: (text: string, files: Attachment[], settings: Omit<Draft, "text">) => Promise<boolean>;
  onSteer: (text: string) => Promise<void>;
  onQueue: (text: string) => void;
  onStop: () => void;
  onEditLast: () => void;
  /** What is chosen for the next message, whenever that changes. */
  onSettings: (settings: Omit<Draft, "text">) => void;
}

const STOP_AGAIN_MS = 2000;

export function Composer(props: Props) {
  const { draftKey, isRunning, isStopping, model, editing, onCancelEdit, onSend, onSteer, onQueue, onStop } = props;
  const [draft, setDraft] = useState<Draft>(() => readDraft(draftKey));
  const [files, setFiles] = useState<Attachment[]>([]);
  const [note, setNote] = useState<string | null>(null);
  const [isSending, setSending] = useState(false);
  const models = useModels();
  const area = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const escaped = useRef(0);
  /** What was written before an earlier question was edited. */
  const put = useRef<{ text: string; files: Attachment[] } | null>(null);

  const { model: chosen, thinking, tools } = draft;
  const { onSettings } = props;
  useEffect(() => onSettings({ model: chosen, thinking, tools }), [chosen, thinking, tools, onSettings]);

  const kept = useRef(draftKey);
  // biome-ignore lint/correctness/useExhaustiveDependencies: it is about the key alone
  useEffect(() => {
    if (kept.current !== draftKey) {
      // A new conversation got its address: what was written meanwhile belongs to it.
      writeDraft(draftKey, draft);
      void writeFiles(draftKey, files);
      writeDraft(kept.current, { ...draft, text: "" });
      void writeFiles(kept.current, []);
      kept.current = draftKey;
      return;
    }
    let isCurrent = true;
    void readFiles(draftKey).then((found) => isCurrent && found.length > 0 && setFiles(found));
    if (window.matchMedia("(pointer: fine)").matches) area.current?.focus();
    return () => {
      isCurrent = false;
    };
  }, [draftKey]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: what is written now is put aside once, when editing begins
  useEffect(() => {
    if (!editing) return;
    put.current ??= { text: draft.text, files };
    setDraft((before) => ({ ...before, text: editing.text }));
    setFiles(editing.files);
    area.current?.focus();
  }, [editing]);

  const change = useCallback(
    (part: Partial<Draft>) => {
      setDraft((before) => {
        const next = { ...before, ...part };
        // What is kept while a question is edited is what was written before.
        writeDraft(draftKey, put.current ? { ...next, text: put.current.text } : next);
        return next;
      });
    },
    [draftKey],
  );

  const changeFiles = (next: Attachment[]) => {
    setFiles(next);
    if (!put.current) void writeFiles(draftKey, next);
  };

  /** Ends editing: what was written before it is back. */
  const endEditing = () => {
    const before = put.current ?? { text: "", files: [] };
    put.current = null;
    change({ text: before.text });
    changeFiles(before.files);
    onCancelEdit();
  };

  const add = (list: Iterable<File>) => {
    const added: Attachment[] = [];
    setNote(null);
    for (const file of list) {
      if (file.size > MAX_FILE_BYTES) setNote(words.tooLarge(file.name, size(MAX_FILE_BYTES)));
      else added.push(attach(file, file.name));
    }
    if (added.length === 0) return;
    setFiles((now) => {
      const next = [...now, ...added];
      if (!put.current) void writeFiles(draftKey, next);
      return next;
    });
  };

  const send = async () => {
    const text = draft.text.trim();
    if ((!text && files.length === 0) || isSending) return;
    setSending(true);
    const { text: _, ...settings } = draft;
    // The field is emptied at once, and filled again if the server does not take the message. Until then the browser
    // keeps it; what is written meanwhile stays in the field.
    const sent = { text: draft.text, files };
    const before = put.current;
    put.current = null;
    setDraft((now) => ({ ...now, text: before?.text ?? "" }));
    setFiles(before?.files ?? []);
    const isTaken = await onSend(text, files, settings);
    setSending(false);
    if (isTaken) {
      change({});
      void writeFiles(draftKey, before?.files ?? []);
      return;
    }
    setDraft((now) => (now.text && now.text !== before?.text ? now : { ...now, text: sent.text }));
    setFiles(sent.files);
  };

  const steer = async () => {
    const text = draft.text.trim();
    if (!text) return;
    change({ text: "" });
    try {
      await onSteer(text);
    } catch {
      change({ text });
    }
  };

  const onKeyDown = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    if (event.nativeEvent.isComposing || event.keyCode === 229) return;
    if (event.key === "Enter") {
      const isWanted = event.ctrlKey || event.metaKey || (look().enter === "send" && !event.shiftKey);
      if (!isWanted) return;
      event.preventDefault();
      if (!isRunning) void send();
      else if (event.ctrlKey || event.metaKey) {
        if (draft.text.trim()) {
          onQueue(draft.text.trim());
          change({ text: "" });
        }
      } else void steer();
    } else if (event.key === "ArrowUp" && !event.altKey && draft.text === "" && !isRunning) {
      event.preventDefault();
      props.onEditLast();
    } else if (event.key === "Escape" && editing) {
      endEditing();
    } else if (event.key === "Escape" && isRunning) {
      if (Date.now() - escaped.current < STOP_AGAIN_MS) {
        setNote(null);
        onStop();
      } else {
        escaped.current = Date.now();
        setNote(words.escAgain);
        announce(words.escAgain);
        setTimeout(() => setNote((now) => (now === words.escAgain ? null : now)), STOP_AGAIN_MS);
      }
    }
  };

  const onPaste = (event: ClipboardEvent) => {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    add(event.clipboardData.files);
  };

  const [isOver, setOver] = useState(false);
  useDrop(add, setOver);

  return (
    <form
      className="composer"
      onSubmit={(event) => {
        event.preventDefault();
        if (isRunning) void steer();
        else void send();
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
      {files.length > 0 && (
        <ul className="attachments">
          {files.map((file) => (
            <li key={file.url}>
              {file.mediaType.startsWith("image/") && !file.mediaType.includes("svg") && <img src={file.url} alt="" />}
              <span dir="auto">{file.name}</span>{" "}
              {file.bytes !== null && <span className="meta">{size(file.bytes)}</span>}
              <button
                type="button"
                className="button quiet icon"
                aria-label={words.removeFile(file.name)}
                onClick={() => changeFiles(files.filter((one) => one !== file))}
              >
                <Icon name="close" />
              </button>
            </li>
          ))}
        </ul>
      )}
      <div className="composer-field">
        <textarea
          ref={area}
          rows={1}
          dir="auto"
          value={draft.text}
          placeholder={words.ask}
          aria-label={words.composer}
          data-key="composer"
          onChange={(event) => change({ text: event.target.value })}
          onKeyDown={onKeyDown}
          onPaste={onPaste}
        />
      </div>
      <div className="composer-bar">
        <button
          type="button"
          className="button quiet icon"
          title={words.attach}
          aria-label={words.attach}
          onClick={() => picker.current?.click()}
        >
          <Icon name="clip" />
        </button>
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          onChange={(event) => {
            add(event.target.files ?? []);
            event.target.value = "";
          }}
        />
        <Picker models={models} current={model} draft={draft} onChange={change} />
        {isRunning ? (
          <>
            {draft.text.trim() && (
              <button type="submit" className="button" title={words.steerHint}>
                {words.steer}
              </button>
            )}
            <button type="button" className="button send" disabled={isStopping} onClick={onStop}>
              <Icon name="stop" /> <span className="wide-word">{words.stop}</span>
            </button>
          </>
        ) : (
          <button
            type="submit"
            className="button primary send"
            disabled={isSending || (!draft.text.trim() && files.length === 0)}
          >
            <Icon name="send" /> <span className="wide-word">{words.send}</span>
          </button>
        )}
      </div>
    </form>
  );
}

/** Says that the next message goes to another model than the last. */
function Change({ models, current, chosen }: { models: Model[]; current: string | null; chosen: string | undefined }) {
  if (!current || !chosen || chosen === current) return null;
  const label = (name: string) => models.find((model) => model.name === name)?.label ?? name;
  return <p className="composer-note">{words.nextGoesTo(label(chosen), label(current))}</p>;
}

/** Files that are dropped anywhere on the page are attached. */
function useDrop(add: (files: Iterable<File>) => void, setOver: (isOver: boolean) => void): void {
  const adding = useRef(add);
  adding.current = add;
  useEffect(() => {
    const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
    const over = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(true);
    };
    const leave = (event: DragEvent) => event.relatedTarget === null && setOver(false);
    const drop = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(false);
      adding.current(event.dataTransfer!.files);
    };
    window.addEventListener("dragover", over);
    window.addEventListener("dragleave", leave);
    window.addEventListener("drop", drop);
    return () => {
      window.removeEventListener("dragover", over);
      window.removeEventListener("dragleave", leave);
      window.removeEventListener("drop", drop);
    };
  }, [setOver]);
}
