// Models and server information, loaded once.
import { useEffect, useMemo, useState } from "react";
import { type About, ApiError, api, type Model, type Provider } from "../api";
import type { Session } from "../chat/session";

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
  // biome-ignore lint/correctness/useExhaustiveDependencies: the value is read once
  useEffect(() => {
    let isMounted = true;
    let timer: ReturnType<typeof setTimeout>;
    const attempt = () =>
      read().then(
        (value) => isMounted && setFound({ value, error: null }),
        (error: Error) => {
          if (!isMounted) return;
          setFound({ value: null, error });
          // An unreachable server may be starting, so retry. A refusal is final.
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

/** Load the models. Without the list, the page still works with the server's default model. */
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

/** Return the models, with the thinking levels and tools that the page offers. */
export function useModels(): Model[] {
  const { models } = useOffered();
  const has = usePanels();
  return useMemo(
    () =>
      models.map((model) => ({
        ...model,
        thinking: has("thinking") ? model.thinking : [],
        tools: has("tools") ? model.tools : {},
      })),
    [models, has],
  );
}

/** Return whether the operator lets users check citations of the conversation's agent or model. */
export function useMayCheck(session: Session | null): boolean {
  const { models } = useOffered();
  const name = session?.settings.model ?? session?.state.model;
  const model = models.find((one) => one.name === name) ?? models.find((one) => one.default);
  return model?.allows?.checks === true;
}

const ALL = () => true;
const NONE = () => false;

/** Return whether the page has a panel. It has none until the server has said so. */
export function usePanels(): (panel: string) => boolean {
  const { value } = useAbout();
  return useMemo(() => {
    if (!value) return NONE;
    return value.panels ? (panel: string) => value.panels!.includes(panel) : ALL;
  }, [value]);
}

/** Return a provider's display name and key variable. Falls back to its id. */
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
