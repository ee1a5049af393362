import { useEffect, useRef } from "react";
import type { PageMessage } from "../chat/types";
import { viewOf } from "../chat/view";
import { callOf, titleOf } from "../tools/describe";
import { announce } from "../ui/announcer";
import { words } from "../words";

/** Announce the start, the tool calls and the end of an answer, but not earlier content. */
export function useAnnouncements(messages: PageMessage[], isRunning: boolean): void {
  const wasRunning = useRef(isRunning);
  const said = useRef("");
  useEffect(() => {
    const last = messages.at(-1);
    if (isRunning && !wasRunning.current) announce(words.answering);
    if (!isRunning && wasRunning.current && last?.role === "assistant") {
      const view = viewOf(last);
      const text = view.rows.flatMap((row) => (row.kind === "text" ? [row.text] : [])).join(" ");
      const sources = view.sources.filter((source) => source.number !== null).length;
      announce(words.finished(text.split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word)).length, sources));
    }
    wasRunning.current = isRunning;
    if (!isRunning || last?.role !== "assistant") return;
    const row = viewOf(last).rows.findLast((one) => one.kind === "tool");
    if (row?.kind !== "tool") return;
    const title = titleOf(callOf(row.part, row.data, true));
    if (title !== said.current) {
      said.current = title;
      announce(title, "stage");
    }
  }, [messages, isRunning]);
}
