// Keyboard shortcuts outside inputs.
import { useEffect } from "react";
import { look } from "./look";

const PAUSE_MS = 1000;

/** Bind keys (`n`, `g t`, `Alt+ArrowUp`) to actions. Single letters can be switched off. */
export function useKeys(keys: Record<string, () => void>): void {
  useEffect(() => {
    let first: { key: string; at: number } | null = null;
    const onKey = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey) return;
      const target = event.target as HTMLElement;
      const isInput = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable;
      if (document.querySelector("dialog[open]")) return;
      let name = (event.altKey ? "Alt+" : "") + event.key;
      if (isInput && !event.altKey) return;
      if (event.key.length === 1 && !event.altKey && look().letters === "off") return;
      if (first && event.timeStamp - first.at < PAUSE_MS && keys[`${first.key} ${name}`]) name = `${first.key} ${name}`;
      first = { key: event.key, at: event.timeStamp };
      const action = keys[name];
      if (!action) return;
      event.preventDefault();
      action();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, [keys]);
}
