// What a tool was called with before, so that a person sees what is different now.
import { isToolUIPart } from "ai";
import type { PageMessage, ToolPart } from "../chat/types";
import { isObject } from "../tools/describe";

/** The input of the last call of the tool in the conversation that ran; undefined if there is none. */
export function previousInput(messages: PageMessage[], part: ToolPart, tool: string): unknown {
  const name = nameOf(part);
  if (tool !== name) return undefined; // A call of an agent that runs as a tool: its calls are not in the conversation.
  for (const message of messages.toReversed()) {
    const found = message.parts.findLast(
      (one) =>
        isToolUIPart(one) &&
        one.toolCallId !== part.toolCallId &&
        nameOf(one) === name &&
        one.state === "output-available" &&
        isObject(one.input),
    );
    if (found && "input" in found) return found.input;
  }
  return undefined;
}

const nameOf = (part: ToolPart) => (part.type === "dynamic-tool" ? part.toolName : part.type.slice("tool-".length));
