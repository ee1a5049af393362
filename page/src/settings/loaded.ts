// A value loaded from the server for a panel, with its loading and error states.
import { useCallback, useEffect, useRef, useState } from "react";

export interface Loaded<T> {
  value: T | null;
  error: string | null;
  reload: () => void;
  /** Change the loaded value, if there is one. */
  change: (change: (old: T) => T) => void;
}

export function useLoaded<T>(load: () => Promise<T>): Loaded<T> {
  const [value, set] = useState<T | null>(null);
  const [error, setError] = useState<string | null>(null);
  const changes = useRef(0);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the loader does not change while the panel is open
  const reload = useCallback(() => {
    const before = changes.current;
    load().then(
      (found) => {
        setError(null);
        // What was changed meanwhile may be newer than what the server has sent.
        if (changes.current === before) set(found);
        else reload();
      },
      (failure: Error) => setError(failure.message),
    );
  }, []);
  const change = useCallback((changed: (old: T) => T) => {
    changes.current += 1;
    set((old) => (old === null ? old : changed(old)));
  }, []);
  useEffect(reload, [reload]);
  return { value, error, reload, change };
}
