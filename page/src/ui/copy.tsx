import { useState } from "react";
import { words } from "../words";
import { announce } from "./announcer";
import { Icon } from "./icons";

/** Button that copies a text, and confirms it briefly. */
export function CopyButton({ text, label = words.copy }: { text: () => string; label?: string }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text());
    announce(words.copied);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" className="button quiet icon" title={label} aria-label={label} onClick={copy}>
      <Icon name={isDone ? "check" : "copy"} />
    </button>
  );
}
