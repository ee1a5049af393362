// A value of the server for a panel: loading, there, or an error with a way to try again.
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
  // biome-ignore lint/correctness/useExhaustiveDependencies: what is loaded does not change while the panel is open
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
