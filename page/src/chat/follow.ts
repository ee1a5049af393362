// Keep a view scrolled to its end, while the end is near and the user did not scroll up last.
import { type RefObject, useCallback, useEffect, useRef, useState } from "react";

const NEAR = 80;

export interface Follower {
  isFollowing: () => boolean;
  /** Whether there is new content below the view. */
  hasNew: boolean;
  /** Scroll to the end and stay there. */
  toEnd: () => void;
  /** Scroll to a position and stay there. */
  toPlace: (top: number) => void;
}

export function useFollower(view: RefObject<HTMLElement | null>, content: RefObject<HTMLElement | null>): Follower {
  const follows = useRef(true);
  const wentUp = useRef(false);
  const [hasNew, setNew] = useState(false);

  const toEnd = useCallback(() => {
    const element = view.current;
    if (!element) return;
    follows.current = true;
    wentUp.current = false;
    setNew(false);
    element.scrollTop = element.scrollHeight;
  }, [view]);

  const toPlace = useCallback(
    (top: number) => {
      if (!view.current) return;
      follows.current = false;
      wentUp.current = true;
      view.current.scrollTop = top;
    },
    [view],
  );

  useEffect(() => {
    const element = view.current;
    const inside = content.current;
    if (!element || !inside) return;
    const distance = () => element.scrollHeight - element.scrollTop - element.clientHeight;
    let last = element.scrollTop;
    const up = () => {
      wentUp.current = true;
      follows.current = false;
    };
    const onWheel = (event: WheelEvent) => event.deltaY < 0 && up();
    const onKey = (event: KeyboardEvent) => ["ArrowUp", "PageUp", "Home"].includes(event.key) && up();
    let touch = 0;
    const onTouchStart = (event: TouchEvent) => {
      touch = event.touches[0]?.clientY ?? 0;
    };
    const onTouch = (event: TouchEvent) => (event.touches[0]?.clientY ?? 0) > touch + 4 && up();
    const onScroll = () => {
      const isDown = element.scrollTop > last;
      last = element.scrollTop;
      if (distance() <= NEAR && (isDown || !wentUp.current)) {
        wentUp.current = false;
        follows.current = true;
        setNew(false);
      } else if (distance() > NEAR) {
        follows.current = false;
      }
    };
    let height = inside.offsetHeight;
    const growing = new ResizeObserver(() => {
      const grew = inside.offsetHeight > height;
      height = inside.offsetHeight;
      if (follows.current) element.scrollTop = element.scrollHeight;
      else if (grew && distance() > NEAR) setNew(true);
    });
    growing.observe(inside);
    growing.observe(element);
    element.addEventListener("wheel", onWheel, { passive: true });
    element.addEventListener("keydown", onKey);
    element.addEventListener("touchstart", onTouchStart, { passive: true });
    element.addEventListener("touchmove", onTouch, { passive: true });
    element.addEventListener("scroll", onScroll, { passive: true });
    return () => {
      growing.disconnect();
      element.removeEventListener("wheel", onWheel);
      element.removeEventListener("keydown", onKey);
      element.removeEventListener("touchstart", onTouchStart);
      element.removeEventListener("touchmove", onTouch);
      element.removeEventListener("scroll", onScroll);
    };
  }, [view, content]);

  const isFollowing = useCallback(() => follows.current, []);
  return { isFollowing, hasNew, toEnd, toPlace };
}
