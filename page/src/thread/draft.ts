import { type RefObject, useCallback, useEffect, useRef, useState } from "react";
import { type Draft, readDraft, readFiles, writeDraft, writeFiles } from "../chat/drafts";
import type { Attachment } from "../chat/uploads";
import type { Editing } from "./editing";

/** What is written and not sent: text, settings and files, kept by the browser under a key. */
export function useDraft(key: string, editing: Editing | null, area: RefObject<HTMLTextAreaElement | null>) {
  const [draft, setDraft] = useState<Draft>(() => readDraft(key));
  const [files, setFiles] = useState<Attachment[]>([]);
  /** What was written before an earlier question was edited. */
  const put = useRef<{ text: string; files: Attachment[] } | null>(null);
  const kept = useRef(key);

  // biome-ignore lint/correctness/useExhaustiveDependencies: it is about the key alone
  useEffect(() => {
    if (kept.current !== key) {
      // A new conversation got its address: what was written meanwhile belongs to it.
      writeDraft(key, draft);
      void writeFiles(key, files);
      writeDraft(kept.current, { ...draft, text: "" });
      void writeFiles(kept.current, []);
      kept.current = key;
      return;
    }
    let isCurrent = true;
    void readFiles(key).then((found) => isCurrent && found.length > 0 && setFiles(found));
    if (window.matchMedia("(pointer: fine)").matches) area.current?.focus();
    return () => {
      isCurrent = false;
    };
  }, [key]);

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
        writeDraft(key, put.current ? { ...next, text: put.current.text } : next);
        return next;
      });
    },
    [key],
  );

  const changeFiles = (change: (now: Attachment[]) => Attachment[]) =>
    setFiles((now) => {
      const next = change(now);
      if (!put.current) void writeFiles(key, next);
      return next;
    });

  /** Brings back what was written before a question was edited. */
  const restore = () => {
    const before = put.current ?? { text: "", files: [] };
    put.current = null;
    change({ text: before.text });
    changeFiles(() => before.files);
  };

  /**
   * Empties the field at once. Until the server has answered, the browser keeps what was in it: the returned function
   * clears that, or fills the field again. What is written meanwhile stays in the field.
   */
  const take = () => {
    const sent = { text: draft.text, files };
    const before = put.current;
    put.current = null;
    setDraft((now) => ({ ...now, text: before?.text ?? "" }));
    setFiles(before?.files ?? []);
    return (isTaken: boolean) => {
      if (isTaken) {
        change({});
        void writeFiles(key, before?.files ?? []);
        return;
      }
      setDraft((now) => (now.text && now.text !== before?.text ? now : { ...now, text: sent.text }));
      setFiles(sent.files);
    };
  };

  return { draft, files, change, changeFiles, restore, take };
}
