// What was written and not sent, per conversation: text and settings in localStorage, files in IndexedDB. It is cleared
// only when the server has taken the message.
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
    // A draft that cannot be read is none.
  }
  return { text: "" };
}

export function writeDraft(id: string, draft: Draft): void {
  try {
    if (!draft.text && !draft.model && !draft.thinking && !draft.tools) localStorage.removeItem(PREFIX + id);
    else localStorage.setItem(PREFIX + id, JSON.stringify(draft));
  } catch {
    // A browser that is full or stores nothing: the text is still in the page.
  }
}

const QUEUE = "sidestream.queue.";

/** What this window sends when the answer ends. Only this window keeps it: two would send it twice. */
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
    // It is still in the page.
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
