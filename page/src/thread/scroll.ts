import { type RefObject, useEffect, useLayoutEffect, useRef } from "react";
import type { Follower } from "../chat/follow";

const PREFIX = "sidestream.scroll.";

/** Restore the scroll position of a conversation, or scroll to its end if it was there. */
export function useScrollMemory(
  id: string,
  view: RefObject<HTMLElement | null>,
  follower: Follower,
  isFilled: boolean,
): void {
  const isRestored = useRef(false);
  const { isFollowing, toEnd, toPlace } = follower;
  useLayoutEffect(() => {
    if (!isFilled || isRestored.current || !view.current) return;
    isRestored.current = true;
    const place = Number(sessionStorage.getItem(PREFIX + id) ?? "");
    if (place > 0) toPlace(place);
    else toEnd();
  }, [id, view, toEnd, toPlace, isFilled]);
  useEffect(() => {
    const element = view.current;
    if (!element) return;
    const keep = () => {
      if (!isRestored.current) return;
      try {
        if (isFollowing()) sessionStorage.removeItem(PREFIX + id);
        else sessionStorage.setItem(PREFIX + id, String(Math.round(element.scrollTop)));
      } catch {
        // Storage is disabled, so conversations open at their end.
      }
    };
    window.addEventListener("pagehide", keep);
    return () => {
      keep();
      window.removeEventListener("pagehide", keep);
    };
  }, [id, view, isFollowing]);
}
