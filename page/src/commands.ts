// Commands that components register for keys and buttons elsewhere on the page.
import { useEffect, useRef } from "react";

/** `search` focuses the search, `timeline` opens the last run's timeline, `model` focuses the model picker. */
export type Command = "search" | "timeline" | "model";

const offered = new Map<Command, (() => void)[]>();

/** Register a command while the component is mounted. Null registers nothing. */
export function useCommand(name: Command, action: (() => void) | null): void {
  const newest = useRef(action);
  newest.current = action;
  const isOffered = action !== null;
  useEffect(() => {
    if (!isOffered) return;
    const run = () => newest.current?.();
    offered.set(name, [...(offered.get(name) ?? []), run]);
    return () => {
      offered.set(
        name,
        (offered.get(name) ?? []).filter((one) => one !== run),
      );
    };
  }, [name, isOffered]);
}

/** Run a command if it is registered. The latest registration wins. */
export function runCommand(name: Command): void {
  offered.get(name)?.at(-1)?.();
}
