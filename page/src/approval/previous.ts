// Find the previous input of a tool, so that the user sees what changed.
import { isToolUIPart } from "ai";
import type { PageMessage, ToolPart } from "../chat/types";
import { isObject } from "../tools/describe";

/** Return the input of the last executed call to the tool, or undefined. */
export function previousInput(messages: PageMessage[], part: ToolPart, tool: string): unknown {
  const name = nameOf(part);
  if (tool !== name) return undefined; // A subagent's calls are not in the conversation.
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
