// Drafts, by conversation: text and settings in localStorage, files in IndexedDB. A draft is cleared
// only when the server has accepted the message.
import { type Attachment, attach, blobOf } from "./uploads";

export interface Draft {
  text: string;
  model?: string;
  thinking?: string;
  tools?: string[];
}

const PREFIX = "sidestream.draft.";
const DATABASE = "sidestream";
const STORE = "attachments";

export const NEW = "new";

export function readDraft(id: string): Draft {
  try {
    const found = JSON.parse(localStorage.getItem(PREFIX + id) ?? "null");
    if (found && typeof found.text === "string") return found;
  } catch {
    // Ignore an unreadable draft.
  }
  return { text: "" };
}

export function writeDraft(id: string, draft: Draft): void {
  try {
    if (!draft.text && !draft.model && !draft.thinking && !draft.tools) localStorage.removeItem(PREFIX + id);
    else localStorage.setItem(PREFIX + id, JSON.stringify(draft));
  } catch {
    // Storage is full or disabled. The text is still on the page.
  }
}

const QUEUE = "sidestream.queue.";

/** Queued message of this window. It is not shared, because two windows would send it twice. */
export function readQueue(id: string): string | null {
  try {
    return sessionStorage.getItem(QUEUE + id);
  } catch {
    return null;
  }
}

export function writeQueue(id: string, text: string | null): void {
  try {
    if (text === null) sessionStorage.removeItem(QUEUE + id);
    else sessionStorage.setItem(QUEUE + id, text);
  } catch {
    // The text is still on the page.
  }
}

export async function readFiles(id: string): Promise<Attachment[]> {
  const found = await request<{ name: string; blob: Blob }[] | undefined>("readonly", (store) => store.get(id));
  return (found ?? []).map(({ name, blob }) => attach(blob, name));
}

export async function writeFiles(id: string, files: Attachment[]): Promise<void> {
  const kept = files.flatMap(({ url, name }) => {
    const blob = blobOf(url);
    return blob ? [{ name, blob }] : [];
  });
  await request("readwrite", (store) => (kept.length > 0 ? store.put(kept, id) : store.delete(id)));
}

function request<T>(mode: IDBTransactionMode, make: (store: IDBObjectStore) => IDBRequest): Promise<T | undefined> {
  return new Promise((resolve) => {
    if (typeof indexedDB === "undefined") return resolve(undefined);
    const opening = indexedDB.open(DATABASE, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
    opening.onerror = () => resolve(undefined);
    opening.onsuccess = () => {
      const database = opening.result;
      const asked = make(database.transaction(STORE, mode).objectStore(STORE));
      asked.onsuccess = () => {
        resolve(asked.result as T);
        database.close();
      };
      asked.onerror = () => {
        resolve(undefined);
        database.close();
      };
    };
  });
}
