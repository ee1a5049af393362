"""Asks for your approval before a tool runs. The other tool needs no approval and runs immediately.

python examples/approval.py "When is the next train to Turku? Note it."
python examples/approval.py -m replay:examples/recordings/approval.json --yes
"""

import argparse
import asyncio

from sidestream import Agent, Decision, PendingApproval, tool

PROMPT = "When does the next train to Turku leave? Note it for me."


def next_train(destination: str) -> dict[str, str]:
    """The next train to a city."""
    return {"to": destination, "leaves": "17:39", "track": "5"}


@tool(approval="ask")
def add_note(text: str) -> str:
    """Adds a line to the user's notes."""
    with open("notes.txt", "a", encoding="utf-8") as notes:
        print(text, file=notes)
    return "Noted."


def decide(pending: PendingApproval, yes: bool) -> Decision:
    print(f"{pending.tool} {pending.input}, {pending.provenance}")
    if yes or input("Run it? [y/N] ").strip().lower() == "y":
        return pending.approve()
    return pending.deny("The user declined.")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    parser.add_argument("--yes", action="store_true", help="approve without prompting")
    args = parser.parse_args()

    agent = Agent(args.model, tools=[next_train, add_note])
    result = await agent.send(args.prompt)
    while result.is_waiting:
        decisions = [decide(pending, args.yes) for pending in result.approvals]
        result = await agent.resume(result.run_state, decisions)
    print(result.output)


asyncio.run(main())
