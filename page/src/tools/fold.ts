// Open state of cards, and the key that toggles one.
import { type RefObject, useContext, useEffect, useRef, useState } from "react";
import { Thread } from "../thread/context";

interface Foldable {
  element: HTMLElement;
  toggle: () => void;
}

const shown = new Set<Foldable>();

/** Let the key toggle a card while the card has a body. */
export function useFoldable(card: RefObject<HTMLElement | null>, toggle: () => void, isFoldable = true): void {
  const newest = useRef(toggle);
  newest.current = toggle;
  useEffect(() => {
    if (!isFoldable || !card.current) return;
    const own = { element: card.current, toggle: () => newest.current() };
    shown.add(own);
    return () => void shown.delete(own);
  }, [card, isFoldable]);
}

/** Toggle the focused card, or else the last one. */
export function toggleCard(): void {
  const focused = document.activeElement;
  const around = [...shown].filter(({ element }) => element.contains(focused));
  // Of nested cards, the innermost is also the last.
  lastOf(around.length > 0 ? around : [...shown])?.toggle();
}

function lastOf(cards: Foldable[]): Foldable | undefined {
  return cards.reduce<Foldable | undefined>((last, card) => (last && isBefore(card, last) ? last : card), undefined);
}

function isBefore({ element }: Foldable, other: Foldable): boolean {
  return (element.compareDocumentPosition(other.element) & Node.DOCUMENT_POSITION_FOLLOWING) !== 0;
}

/** Return whether a card is open: the user's choice, or else while it has something to show. */
export function useFold(isOpenByItself: boolean, isFoldable = true) {
  const [wish, setWish] = useState<boolean | null>(null);
  const [isHeld, hold] = useState(false);
  const card = useRef<HTMLElement>(null);
  const { isFollowing } = useContext(Thread);
  const [before, setBefore] = useState(isOpenByItself);
  if (before !== isOpenByItself) {
    // Decide during render. An effect would let the card flicker.
    setBefore(isOpenByItself);
    hold(before && !isFollowing());
  }
  useEffect(() => {
    if (!isHeld || !card.current) return;
    const watching = new IntersectionObserver(([entry]) => {
      if (entry && !entry.isIntersecting) hold(false);
    });
    watching.observe(card.current);
    return () => watching.disconnect();
  }, [isHeld]);
  const isOpen = wish ?? (isOpenByItself || isHeld);
  const toggle = () => setWish(!isOpen);
  useFoldable(card, toggle, isFoldable);
  return { isOpen, toggle, card };
}
