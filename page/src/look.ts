// Appearance on this device: theme, density, motion, keys. Stored in the browser only.
import { useSyncExternalStore } from "react";

export interface Look {
  theme: "system" | "light" | "dark";
  density: "normal" | "compact";
  motion: "system" | "off";
  /** Action of the Enter key in the composer. */
  enter: "send" | "newline";
  /** Whether single letters are shortcuts outside inputs. */
  letters: "on" | "off";
}

const KEY = "sidestream.look";
const DEFAULT: Look = { theme: "system", density: "normal", motion: "system", enter: "send", letters: "on" };
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();
let current: Look = { ...DEFAULT, ...stored() };

function stored(): Partial<Look> {
  try {
    return JSON.parse(window.localStorage.getItem(KEY) ?? "{}");
  } catch {
    return {};
  }
}

function apply(): void {
  const root = document.documentElement;
  root.dataset.theme = current.theme === "system" ? (dark.matches ? "dark" : "light") : current.theme;
  root.dataset.density = current.density;
  root.dataset.motion = current.motion;
}

export function startLook(): void {
  apply();
  dark.addEventListener("change", apply);
}

export function look(): Look {
  return current;
}

export function setLook(change: Partial<Look>): void {
  current = { ...current, ...change };
  try {
    window.localStorage.setItem(KEY, JSON.stringify(current));
  } catch {
    // Storage is disabled, so the settings last until the page is closed.
  }
  apply();
  for (const listener of listeners) listener();
}

export function useLook(): Look {
  return useSyncExternalStore((listener) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, look);
}
