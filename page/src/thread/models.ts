// The models that the server offers, read once.
import { useEffect, useState } from "react";
import { type About, api, type Model } from "../api";

let models: Promise<Model[]> | null = null;
let about: Promise<About> | null = null;

function usePromise<T>(read: () => Promise<T>): T | null {
  const [value, setValue] = useState<T | null>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: it is read once
  useEffect(() => {
    let isMounted = true;
    read().then(
      (found) => isMounted && setValue(found),
      () => undefined, // Without it, the page still works with the server's default.
    );
    return () => {
      isMounted = false;
    };
  }, []);
  return value;
}

export function useModels(): Model[] {
  const found = usePromise(() => {
    models ??= api.models().then((answer) => answer.models);
    models.catch(() => {
      models = null;
    });
    return models;
  });
  return found ?? NONE;
}

const NONE: Model[] = [];

export function useAbout(): About | null {
  return usePromise(() => {
    about ??= api.about();
    about.catch(() => {
      about = null;
    });
    return about;
  });
}
