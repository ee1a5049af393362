// A value loaded from the server for a panel, with its loading and error states.
import { useCallback, useEffect, useState } from "react";

export interface Loaded<T> {
  value: T | null;
  error: string | null;
  reload: () => void;
  set: (value: T) => void;
}

export function useLoaded<T>(load: () => Promise<T>): Loaded<T> {
  const [value, set] = useState<T | null>(null);
  const [error, setError] = useState<string | null>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the loader does not change while the panel is open
  const reload = useCallback(() => {
    load().then(
      (found) => {
        set(found);
        setError(null);
      },
      (failure: Error) => setError(failure.message),
    );
  }, []);
  useEffect(reload, [reload]);
  return { value, error, reload, set };
}
