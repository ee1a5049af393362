import { useCallback, useState } from "react";
import type { Session } from "../chat/session";
import type { PageMessage } from "../chat/types";
import type { Attachment } from "../chat/uploads";

/** An earlier question being edited. */
export interface Editing {
  id: string;
  text: string;
  files: Attachment[];
}

/** Track which earlier question is being edited. */
export function useEditing(session: Session) {
  const [editing, setEditing] = useState<Editing | null>(null);
  /** Edit a question, or the question of an answer. */
  const edit = useCallback(
    (messageId: string) => {
      const found = session.chat.messages;
      const at = found.findIndex((message) => message.id === messageId);
      const question = found.slice(0, at + 1).findLast((message) => message.role === "user");
      if (question) setEditing({ id: question.id, text: textOf(question), files: filesOf(question) });
    },
    [session],
  );
  const editLast = useCallback(() => {
    const last = session.chat.messages.findLast((message) => message.role === "user");
    if (last) edit(last.id);
  }, [session, edit]);
  const endEditing = useCallback(() => setEditing(null), []);
  return { editing, edit, editLast, endEditing };
}

function filesOf(message: PageMessage): Attachment[] {
  return message.parts.flatMap((part) =>
    part.type === "file" ? [{ url: part.url, name: part.filename ?? "", mediaType: part.mediaType, bytes: null }] : [],
  );
}

export function textOf(message: PageMessage): string {
  return message.parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n\n");
}
