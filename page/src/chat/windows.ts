// Notifications between the windows of one browser.
const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("sidestream");

/** Notify the other windows that a conversation has changed. */
export function announceChange(chat: string): void {
  channel?.postMessage(chat);
}

/** Subscribe to changes made in other windows. Returns a function to unsubscribe. */
export function onChange(listener: (chat: string) => void): () => void {
  const heard = ({ data }: MessageEvent) => typeof data === "string" && listener(data);
  channel?.addEventListener("message", heard);
  return () => channel?.removeEventListener("message", heard);
}
