// Shared list of conversations. It is reloaded when a run starts or ends.
import { useEffect, useState, useSyncExternalStore } from "react";
import { api, type Conversation } from "../api";
import { announceChange, onChange } from "../chat/windows";
import { date } from "../format";

export interface List {
  /** Search query. */
  search: string;
  conversations: Conversation[];
  next: string | number | null;
  isLoaded: boolean;
}

/** Reload interval while this page is idle, because other clients change the list too. */
const POLL_MS = 15_000;
const EMPTY: List = { search: "", conversations: [], next: null, isLoaded: false };
const listeners = new Set<() => void>();
const deleted = new Set<string>();
const readers = new Set<(list: List) => void>();
let version = 0;
onChange(refreshConversations);

/** Reload every list. */
export function refreshConversations(): void {
  version += 1;
  for (const listener of listeners) listener();
}

/** Remove a deleted conversation from every list. */
export function dropConversation(id: string): void {
  deleted.add(id);
  refreshConversations();
  announceChange(id);
}

/** Rename or pin a conversation, reload every list, and return its title. */
export async function changeConversation(id: string, change: { title?: string; pinned?: boolean }): Promise<string> {
  const { title } = await api.change(id, change);
  refreshConversations();
  announceChange(id);
  return title;
}

/** Merge a reloaded first page, and keep the later pages below it. */
export function withFurther(first: List, old: List): List {
  const last = first.conversations.findLast((row) => !row.pinned);
  if (!last || first.next === null || old.search !== first.search) return first;
  const known = new Set(first.conversations.map((row) => row.id));
  const further = old.conversations.filter(
    (row) => row.updated <= last.updated && !known.has(row.id) && !deleted.has(row.id),
  );
  if (further.length === 0) return first;
  return { ...first, conversations: [...first.conversations, ...further], next: old.next };
}

/** Return whether the list lacks a conversation that changed at this time. */
export function isMissing({ search, conversations, next }: List, id: string, updated: number): boolean {
  const isOnPage = next === null || updated > (conversations.findLast((row) => !row.pinned)?.updated ?? 0);
  return search === "" && isOnPage && !conversations.some((row) => row.id === id);
}

/** Subscribe to lists from the server. Returns a function to unsubscribe. */
export function onConversations(reader: (list: List) => void): () => void {
  readers.add(reader);
  return () => readers.delete(reader);
}

function useVersion(): number {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => version,
  );
}

export function useConversations(search: string): List & { more: () => void; error: Error | null } {
  const [list, setList] = useState<List>(EMPTY);
  const [error, setError] = useState<Error | null>(null);
  const version = useVersion();
  // biome-ignore lint/correctness/useExhaustiveDependencies: a new version must be read again
  useEffect(() => {
    const abort = new AbortController();
    const timer = setTimeout(
      () => {
        api.conversations({ search, limit: 50 }, abort.signal).then(
          (found) => {
            setError(null);
            const first = { ...found, search, isLoaded: true };
            setList((old) => withFurther(first, old));
            for (const reader of readers) reader(first);
          },
          (failure: Error) => abort.signal.aborted || setError(failure),
        );
      },
      search ? 150 : 0,
    );
    const again = setInterval(() => document.visibilityState === "visible" && refreshConversations(), POLL_MS);
    return () => {
      clearTimeout(timer);
      clearInterval(again);
      abort.abort();
    };
  }, [search, version]);
  const more = () => {
    api
      .conversations({ search, before: list.next, limit: 50 })
      .then(
        (found) => setList({ ...list, ...found, conversations: [...list.conversations, ...found.conversations] }),
        setError,
      );
  };
  return { ...list, more, error };
}

export type Age = "pinned" | "today" | "yesterday" | "older";

/** Group conversations by the day of their last change, pinned ones first. */
export function byAge(conversations: Conversation[], now = new Date()): [Age, Conversation[]][] {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const groups: Record<Age, Conversation[]> = { pinned: [], today: [], yesterday: [], older: [] };
  for (const conversation of conversations) {
    const time = date(conversation.updated)?.getTime() ?? 0;
    const age = time >= midnight ? "today" : time >= midnight - 86_400_000 ? "yesterday" : "older";
    groups[conversation.pinned ? "pinned" : age].push(conversation);
  }
  return (Object.entries(groups) as [Age, Conversation[]][]).filter(([, rows]) => rows.length > 0);
}
