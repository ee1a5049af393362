"""Lets the model use a computer. Actions that the provider's safety checks flag need your approval.

python examples/computer_use.py "Order two tickets to Turku."
python examples/computer_use.py -m replay:examples/recordings/computer_use.json --yes
"""

import argparse
import asyncio

from sidestream import Agent, ComputerUse, DataPart, Decision, PendingApproval
from sidestream.actions import Click, ComputerAction, Type
from sidestream.testing import pixel_png

PROMPT = "Order two tickets to Turku in the open browser."


def computer_use(action: ComputerAction) -> DataPart:
    """Carries out one action. Connect it to your own screen, for example with Playwright."""
    match action:
        case Click(x=x, y=y, button=button):
            print(f"{button} click at {x}, {y}")
        case Type(text=text):
            print(f"type {text!r}")
        case _:
            print(action)
    return DataPart(pixel_png(), "image/png")  # a screenshot after the action


def decide(pending: PendingApproval, yes: bool) -> Decision:
    for check in pending.safety_checks:
        print(f"safety check: {check.message}")
    if yes or input("Continue? [y/N] ").strip().lower() == "y":
        return pending.approve()
    return pending.deny("The user declined.")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    parser.add_argument("--yes", action="store_true", help="approve without prompting")
    args = parser.parse_args()
    agent = Agent(args.model, tools=[computer_use], server_side_tools=[ComputerUse()])
    result = await agent.send(args.prompt)
    while result.is_waiting:
        result = await agent.resume(result.run_state, [decide(pending, args.yes) for pending in result.approvals])
    print(result.output.strip())


asyncio.run(main())
