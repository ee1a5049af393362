// Router. Settings are a sheet over the previous page.
import { useSyncExternalStore } from "react";
import { BASE } from "./base";

export interface Place {
  /** Path without the server's mount path. */
  path: string;
  query: URLSearchParams;
  hash: string;
  /** Page below a sheet. */
  below: string | null;
}

const listeners = new Set<() => void>();
let current = read();

function read(): Place {
  const { pathname, search, hash } = window.location;
  const path = pathname.startsWith(BASE) ? pathname.slice(BASE.length) || "/" : pathname;
  const below: unknown = window.history.state?.below;
  return { path, query: new URLSearchParams(search), hash, below: typeof below === "string" ? below : null };
}

function announce(): void {
  current = read();
  for (const listener of listeners) listener();
}

window.addEventListener("popstate", announce);

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function usePlace(): Place {
  return useSyncExternalStore(subscribe, place);
}

export function place(): Place {
  return current;
}

/** Open a URL of the page, such as `/c/abc?leaf=2`. */
export function navigate(to: string, options: { replace?: boolean; below?: string } = {}): void {
  const state = options.below ? { below: options.below } : {};
  if (options.replace) window.history.replaceState(state, "", BASE + to);
  else window.history.pushState(state, "", BASE + to);
  announce();
}

/** Open a sheet over the current page. */
export function openSheet(to: string): void {
  const { path, query, below } = current;
  const text = query.toString();
  navigate(to, { below: below ?? path + (text ? `?${text}` : "") });
}

export function closeSheet(): void {
  if (current.below) window.history.back();
  else navigate("/");
}

/** Match a path against a pattern (`/c/:id`). Returns decoded parameters, or null. */
export function match(form: string, path: string): Record<string, string> | null {
  const wanted = form.split("/");
  const given = path.split("/");
  if (wanted.length !== given.length) return null;
  const params: Record<string, string> = {};
  for (const [index, name] of wanted.entries()) {
    const value = given[index]!;
    if (!name.startsWith(":")) {
      if (name !== value) return null;
    } else if (value === "") {
      return null;
    } else {
      try {
        params[name.slice(1)] = decodeURIComponent(value);
      } catch {
        return null;
      }
    }
  }
  return params;
}
