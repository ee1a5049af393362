// Sources of a timeline's records: a run on the server, tailed while in progress, or a file.
import { useEffect, useState } from "react";
import { ApiError, api, get, type RunRecord } from "../api";
import type { Changeable, Origin } from "./forks";

const WAIT_S = 20;
/** Minimum milliseconds between two reads of a run in progress. */
const PAUSE_MS = 250;
const RETRY_MS = 2000;

export interface Source {
  records: RunRecord[];
  /** Conversation of the run. */
  chat: string | null;
  changeable: Changeable;
  forkedFrom: Origin | null;
  isLive: boolean;
  isLoading: boolean;
  error: string | null;
}

const UNKNOWN = { chat: null, changeable: null, forkedFrom: null };
const NOTHING: Source = { ...UNKNOWN, records: [], isLive: false, isLoading: true, error: null };

/** Load the records of a run, and tail it until it ends. */
export function useRun(run: string | null): Source {
  const [source, set] = useState<Source>(NOTHING);
  useEffect(() => {
    set({ ...NOTHING, isLoading: run !== null });
    if (run === null) return;
    const left = new AbortController();
    void follow(run, left.signal, set);
    return () => left.abort();
  }, [run]);
  return source;
}

async function follow(run: string, signal: AbortSignal, set: (source: Source) => void): Promise<void> {
  let records: RunRecord[] = [];
  let isLive = false;
  let known: Pick<Source, "chat" | "changeable" | "forkedFrom"> = UNKNOWN;
  while (!signal.aborted) {
    try {
      const page = await api.records(run, records.at(-1)?.seq ?? 0, signal, isLive ? WAIT_S : 0);
      records = records.concat(page.records);
      isLive = page.run.live === true;
      // A viewer of a file has none of these.
      const { chat = null, changeable = null, forkedFrom = null } = page.run as unknown as Partial<Source>;
      known = { chat, changeable, forkedFrom };
      const isLoading = !page.done && !isLive;
      set({ records, ...known, isLive: isLive && !page.done, isLoading, error: null });
      if (page.done) return;
      if (isLive) await pause(PAUSE_MS);
    } catch (error) {
      if (signal.aborted) return;
      const isFinal = error instanceof ApiError && error.status < 500;
      set({
        records,
        ...known,
        isLive,
        isLoading: false,
        error: error instanceof Error ? error.message : String(error),
      });
      if (isFinal) return;
      await pause(RETRY_MS);
    }
  }
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

export interface ViewedRun {
  id: string;
  title: string;
  model: string | null;
  time: number;
}

export interface Viewed {
  file: string;
  runs: ViewedRun[];
}

/** Load the file that `sidestream view` opened. Null on other servers. */
export async function viewedFile(): Promise<Viewed | null> {
  try {
    return await get<Viewed>("/api/view");
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}
