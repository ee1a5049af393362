// The last five open conversations, each with its stream.
import { Session } from "./session";

const KEPT = 5;
const sessions = new Map<string, Session>();

export function sessionOf(id: string): Session {
  const known = sessions.get(id);
  if (known) {
    sessions.delete(id);
    sessions.set(id, known);
    return known;
  }
  const session = new Session(id);
  sessions.set(id, session);
  for (const [oldest, old] of sessions) {
    if (sessions.size <= KEPT) break;
    if (oldest === id) continue;
    sessions.delete(oldest);
    void old.chat.stop();
  }
  return session;
}

export function forgetSession(id: string): void {
  sessions.delete(id);
}
