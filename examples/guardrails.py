"""Two guardrails: keys never leave a tool, and a result that tries to instruct the model ends the run.

python examples/guardrails.py -m replay:examples/recordings/approval.json
"""

import argparse
import asyncio
import json
import re
from typing import Any

from sidestream import Agent, Blocked, Hooks, RunContext, ToolResult
from sidestream.parts import ToolCall

KEYS = re.compile(r"\b(?:sk|ghp|xox[bp]|AKIA)[-_A-Za-z0-9]{12,}")
ORDERS = re.compile(r"(?i)ignore (?:all |the )?(?:previous|above) instructions|you are now a|<\|im_start\|>|\[INST\]")


class NoKeys(Hooks):
    """Removes what looks like a key from results, before the model, the stream and the log have them."""

    def after_tool(self, call: ToolCall, result: ToolResult, context: RunContext[Any]) -> Any:
        return json.loads(KEYS.sub("[key]", json.dumps(result.result)))


class NoOrders(Hooks):
    """Ends the run if a result contains text that tries to instruct the model, as a fetched page may."""

    def after_tool(self, call: ToolCall, result: ToolResult, context: RunContext[Any]) -> None:
        if found := ORDERS.search(str(result.result)):
            raise Blocked(f"the result of {call.name} says {found[0]!r}")


def next_train(destination: str) -> dict[str, str]:
    """The next train to a city."""
    return {"to": destination, "leaves": "17:39", "track": "5", "debug": "token sk-live-0123456789abcdef"}


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default="When does the next train to Turku leave?")
    parser.add_argument("-m", "--model", default="openai-responses")
    args = parser.parse_args()
    agent = Agent(args.model, tools=[next_train], hooks=[NoKeys(), NoOrders()])
    result = await agent.send(args.prompt)
    print(result.tool_runs[0].result, result.output, sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
