// The models that the server offers, and what it says of itself: read once.
import { useEffect, useState } from "react";
import { type About, ApiError, api, type Model, type Provider } from "../api";

interface Offered {
  models: Model[];
  providers: Record<string, Provider>;
}

const RETRY_MS = 2000;
const NOTHING: Offered = { models: [], providers: {} };
let offered: Promise<Offered> | null = null;
let about: Promise<About> | null = null;

interface Found<T> {
  value: T | null;
  error: Error | null;
}

function usePromise<T>(read: () => Promise<T>): Found<T> {
  const [found, setFound] = useState<Found<T>>({ value: null, error: null });
  // biome-ignore lint/correctness/useExhaustiveDependencies: it is read once
  useEffect(() => {
    let isMounted = true;
    let timer: ReturnType<typeof setTimeout>;
    const attempt = () =>
      read().then(
        (value) => isMounted && setFound({ value, error: null }),
        (error: Error) => {
          if (!isMounted) return;
          setFound({ value: null, error });
          // A server that does not answer may be starting; what it refuses, it refuses again.
          if (!(error instanceof ApiError)) timer = setTimeout(attempt, RETRY_MS);
        },
      );
    void attempt();
    return () => {
      isMounted = false;
      clearTimeout(timer);
    };
  }, []);
  return found;
}

/** Without them, the page still works with the server's default. */
function useOffered(): Offered {
  const { value } = usePromise(() => {
    offered ??= api.models();
    offered.catch(() => {
      offered = null;
    });
    return offered;
  });
  return value ?? NOTHING;
}

export const useModels = (): Model[] => useOffered().models;

/** How a provider is called, and which variable holds its key; its own name if the server does not say. */
export function useProvider(name: string | null | undefined): Provider | null {
  const { providers } = useOffered();
  return name ? (providers?.[name] ?? { label: name, variable: null }) : null;
}

export function useAbout(): Found<About> {
  return usePromise(() => {
    about ??= api.about();
    about.catch(() => {
      about = null;
    });
    return about;
  });
}
