// Live region of the page: at most one `stage` in three seconds. Ends and errors are always announced.
import { useSyncExternalStore } from "react";

const PAUSE_MS = 3000;
const listeners = new Set<() => void>();
let text = "";
let last = Number.NEGATIVE_INFINITY;

/** Announce something to screen readers. A `stage` is skipped if another was announced recently. */
export function announce(words: string, kind: "stage" | "event" = "event"): void {
  const now = performance.now();
  if (kind === "stage" && now - last < PAUSE_MS) return;
  last = now;
  // Screen readers skip a repeated string, so append a space.
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
