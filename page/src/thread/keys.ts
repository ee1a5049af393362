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

/** Bind the keyboard shortcuts of a thread, which `words.keyMap` describes. */
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

/** Return a function that focuses the first pending call. It also runs when a call becomes pending. */
export function useReview(content: RefObject<HTMLElement | null>, hasWaiting: boolean): () => void {
  const review = useCallback(() => {
    const card = content.current?.querySelector<HTMLElement>("[data-approval]");
    card?.scrollIntoView({ block: "center" });
    card?.focus({ preventScroll: true });
  }, [content]);
  // A new pending call takes the focus only from an empty composer.
  useEffect(() => {
    const field = document.activeElement;
    if (hasWaiting && field instanceof HTMLTextAreaElement && field.value === "") review();
  }, [hasWaiting, review]);
  return review;
}

/** Return the sources of the last answer that has any. */
function lastSources(messages: PageMessage[]): Inspected | null {
  const found = messages.findLast((message) => message.role === "assistant" && viewOf(message).sources.length > 0);
  return found ? { kind: "sources", messageId: found.id, number: null } : null;
}

/** Move the focus to the previous or next message. */
function step(content: HTMLElement | null, by: number): void {
  const found = [...(content?.querySelectorAll<HTMLElement>(".message") ?? [])];
  const at = found.findIndex((message) => message.contains(document.activeElement));
  const next = found[at === -1 ? (by < 0 ? found.length - 1 : 0) : at + by];
  next?.focus();
  if (next) announce(next.querySelector("h2")?.textContent ?? "", "stage");
}
