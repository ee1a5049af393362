import { useEffect } from "react";
import { APP } from "../base";
import type { Session } from "../chat/session";
import type { PageMessage } from "../chat/types";
import { onConversations } from "../rail/conversations";
import { textOf } from "./editing";

const MOST_TITLE = 200;

/** Load a conversation when it is opened, and reload it when the user returns to the window. */
export function useVisit(session: Session, isNew: boolean, leaf: number | null): void {
  useEffect(() => {
    if (isNew) return;
    if (session.state.phase === "new" && !session.isRunning) void session.load(leaf);
    else if (leaf !== null && leaf !== session.state.leaf) void session.load(leaf);
  }, [session, isNew, leaf]);

  useEffect(() => {
    // Another window may have changed it.
    const onVisible = () => {
      if (document.visibilityState === "visible" && !session.isRunning && session.state.phase === "open") {
        void session.refresh();
      }
    };
    document.addEventListener("visibilitychange", onVisible);
    const leave = onConversations((list) => session.listed(list));
    return () => {
      document.removeEventListener("visibilitychange", onVisible);
      leave();
    };
  }, [session]);
}

/** Return the title of a conversation, or its first question until it has one. Also sets the window title. */
export function useTitle(given: string, messages: PageMessage[]): string {
  // The server derives the title from the first question, and reports it when the answer ends.
  const first = messages.find((message) => message.role === "user");
  const title = given || (first && textOf(first).split("\n")[0]!.slice(0, MOST_TITLE)) || "";
  useEffect(() => {
    document.title = title ? `${title} · ${APP}` : APP;
  }, [title]);
  return title;
}
