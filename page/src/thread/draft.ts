import { type RefObject, useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";
import { type Draft, readDraft, readFiles, writeDraft, writeFiles } from "../chat/drafts";
import type { Attachment } from "../chat/uploads";
import type { Editing } from "./editing";

/** Manage a draft: text, settings and files, stored in the browser under a key. */
export function useDraft(key: string, editing: Editing | null, area: RefObject<HTMLTextAreaElement | null>) {
  const [draft, setDraft] = useState<Draft>(() => readDraft(key));
  const [files, setFiles] = useState<Attachment[]>([]);
  /** Draft from before an earlier question was edited. */
  const put = useRef<{ text: string; files: Attachment[] } | null>(null);
  const kept = useRef(key);

  // biome-ignore lint/correctness/useExhaustiveDependencies: only the key matters
  useEffect(() => {
    if (kept.current !== key) {
      // A new conversation got its URL, and takes the current draft with it.
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

  // The update of a passive effect is a task of its own, and a key pressed before it would be overwritten.
  // biome-ignore lint/correctness/useExhaustiveDependencies: the draft is put aside once, when editing begins
  useLayoutEffect(() => {
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
        // While a question is edited, keep the stored draft.
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

  /** Restore the draft from before a question was edited. */
  const restore = () => {
    const before = put.current ?? { text: "", files: [] };
    put.current = null;
    change({ text: before.text });
    changeFiles(() => before.files);
  };

  /**
   * Clear the field at once, but keep the stored draft until the server has answered. The returned function deletes the
   * stored draft, or restores it in the field. Text written meanwhile stays in the field.
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
