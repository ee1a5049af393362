// What a component offers to keys and buttons elsewhere on the page: whoever owns an action registers it.
import { useEffect, useRef } from "react";

/** `search`: go to the search of conversations. `timeline`: open the last run's. `model`: go to the picker of models. */
export type Command = "search" | "timeline" | "model";

const offered = new Map<Command, (() => void)[]>();

/** Offers a command as long as the component is shown; null offers nothing. */
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

/** Runs a command, if a component offers it; of several, the last that began to. */
export function runCommand(name: Command): void {
  offered.get(name)?.at(-1)?.();
}
