import { useEffect } from "react";
import type { Session } from "../chat/session";
import type { PageMessage } from "../chat/types";
import { onConversations } from "../rail/conversations";
import { words } from "../words";
import { textOf } from "./editing";

const MOST_TITLE = 200;

/** Loads a conversation when it is opened, and what other windows wrote when the person returns to it. */
export function useVisit(session: Session, isNew: boolean, leaf: number | null): void {
  useEffect(() => {
    if (isNew) return;
    if (session.state.phase === "new" && !session.isRunning) void session.load(leaf);
    else if (leaf !== null && leaf !== session.state.leaf) void session.load(leaf);
  }, [session, isNew, leaf]);

  useEffect(() => {
    // Another window may have written meanwhile.
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

/** The title of a conversation, which the window has too: the server's, or the first question until it has one. */
export function useTitle(given: string, messages: PageMessage[]): string {
  // The server names a conversation by its first question, and says so when the answer ends.
  const first = messages.find((message) => message.role === "user");
  const title = given || (first && textOf(first).split("\n")[0]!.slice(0, MOST_TITLE)) || "";
  useEffect(() => {
    document.title = title ? `${title} · ${words.app}` : words.app;
  }, [title]);
  return title;
}
