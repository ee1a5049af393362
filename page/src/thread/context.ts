import { createContext } from "react";
import type { Session } from "../chat/session";

export interface ThreadContext {
  session: Session | null;
  /** Return whether the view is kept at the end of the thread. */
  isFollowing: () => boolean;
  /** Open details beside the thread. */
  inspect: (what: Inspected) => void;
  edit: (messageId: string) => void;
}

export type Inspected =
  | { kind: "text"; title: string; text: string }
  | { kind: "sources"; messageId: string; number: number | null };

export const Thread = createContext<ThreadContext>({
  session: null,
  isFollowing: () => true,
  inspect: () => undefined,
  edit: () => undefined,
});
