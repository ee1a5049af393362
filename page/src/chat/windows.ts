// Windows of one browser: what one of them changes, the others learn at once.
const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("sidestream");

/** Says to the other windows that a conversation has changed. */
export function announceChange(chat: string): void {
  channel?.postMessage(chat);
}

/** Calls back when another window has changed a conversation; returns how to end that. */
export function onChange(listener: (chat: string) => void): () => void {
  const heard = ({ data }: MessageEvent) => typeof data === "string" && listener(data);
  channel?.addEventListener("message", heard);
  return () => channel?.removeEventListener("message", heard);
}
