import { type RefObject, useCallback, useEffect, useMemo } from "react";
import type { Follower } from "../chat/follow";
import type { Session } from "../chat/session";
import type { PageMessage } from "../chat/types";
import { viewOf } from "../chat/view";
import { runCommand } from "../commands";
import { useKeys } from "../keys";
import { navigate } from "../router";
import { toggleCard } from "../tools/fold";
import { announce } from "../ui/announcer";
import type { Inspected } from "./context";

interface Options {
  session: Session;
  content: RefObject<HTMLElement | null>;
  follower: Follower;
  inspect: (change: (open: Inspected | null) => Inspected | null) => void;
  review: () => void;
  onHelp: () => void;
}

/** Binds the keys of a thread; `words.keyMap` says what they do. */
export function useThreadKeys({ session, content, follower, inspect, review, onHelp }: Options): void {
  const { toEnd } = follower;
  useKeys(
    useMemo(
      () => ({
        "/": () => runCommand("search"),
        n: () => navigate("/"),
        "g t": () => runCommand("timeline"),
        a: review,
        ".": () => inspect((open) => (open ? null : lastSources(session.chat.messages))),
        End: toEnd,
        "?": onHelp,
        o: toggleCard,
        "Alt+ArrowUp": () => step(content.current, -1),
        "Alt+ArrowDown": () => step(content.current, 1),
      }),
      [session, content, toEnd, inspect, review, onHelp],
    ),
  );
}

/** Returns what leads to the first call that waits. It is called too when a call begins to wait. */
export function useReview(content: RefObject<HTMLElement | null>, hasWaiting: boolean): () => void {
  const review = useCallback(() => {
    const card = content.current?.querySelector<HTMLElement>("[data-approval]");
    card?.scrollIntoView({ block: "center" });
    card?.focus({ preventScroll: true });
  }, [content]);
  // A call that begins to wait takes the focus from an empty composer, and from nothing else.
  useEffect(() => {
    const field = document.activeElement;
    if (hasWaiting && field instanceof HTMLTextAreaElement && field.value === "") review();
  }, [hasWaiting, review]);
  return review;
}

/** The sources of the last answer that has any. */
function lastSources(messages: PageMessage[]): Inspected | null {
  const found = messages.findLast((message) => message.role === "assistant" && viewOf(message).sources.length > 0);
  return found ? { kind: "sources", messageId: found.id, number: null } : null;
}

/** Moves the focus to the message before or after the focused one. */
function step(content: HTMLElement | null, by: number): void {
  const found = [...(content?.querySelectorAll<HTMLElement>(".message") ?? [])];
  const at = found.findIndex((message) => message.contains(document.activeElement));
  const next = found[at === -1 ? (by < 0 ? found.length - 1 : 0) : at + by];
  next?.focus();
  if (next) announce(next.querySelector("h2")?.textContent ?? "", "stage");
}
