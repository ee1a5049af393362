// The one polite voice of the page: at most one stage in three seconds; ends and errors are always said.
import { useSyncExternalStore } from "react";

const PAUSE_MS = 3000;
const listeners = new Set<() => void>();
let text = "";
let last = Number.NEGATIVE_INFINITY;

/** Says something to screen readers; a `stage` is left out if another was said a moment ago. */
export function announce(words: string, kind: "stage" | "event" = "event"): void {
  const now = performance.now();
  if (kind === "stage" && now - last < PAUSE_MS) return;
  last = now;
  // The same words twice would not be read again: a space makes them others.
  text = words === text ? `${words} ` : words;
  for (const listener of listeners) listener();
}

export function Announcer() {
  const said = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => text,
  );
  return (
    <div className="hidden" role="status" aria-live="polite">
      {said}
    </div>
  );
}
