"""Lets the model use a browser through the browser toolset. JavaScript and uploads need your approval.

python examples/browser.py "What is the title of example.com?"
python examples/browser.py -m replay:examples/recordings/browser.json --yes
"""

import argparse
import asyncio

from sidestream import Agent, DataPart, Decision, PendingApproval
from sidestream.actions import BrowserAction, BrowserNavigate, BrowserReadPage, BrowserState, BrowserTab
from sidestream.providers.anthropic import Browser
from sidestream.testing import pixel_png

PROMPT = "How many links has example.com?"


def browser(action: BrowserAction) -> list[str | DataPart | BrowserState]:
    """Carries out one action. Connect it to your own browser."""
    print(action)
    shown: str | DataPart = "1"
    match action:
        case BrowserNavigate():
            shown = DataPart(pixel_png(), "image/png")
        case BrowserReadPage():
            shown = 'link "More information" [ref_1]'
        case _:
            pass
    return [shown, BrowserState((BrowserTab("t1", "Example", "https://example.com", active=True),))]


def decide(pending: PendingApproval, yes: bool) -> Decision:
    agrees = yes or input(f"{pending.input} [y/N] ").strip().lower() == "y"
    return pending.approve() if agrees else pending.deny("The user declined.")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="anthropic")
    parser.add_argument("--yes", action="store_true", help="approve without prompting")
    args = parser.parse_args()
    agent = Agent(args.model, tools=[browser], server_side_tools=[Browser(enable=("javascript_exec",))])
    result = await agent.send(args.prompt)
    while result.is_waiting:
        result = await agent.resume(result.run_state, [decide(pending, args.yes) for pending in result.approvals])
    print(result.output.strip())


asyncio.run(main())
