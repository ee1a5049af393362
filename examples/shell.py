"""Lets the model run shell commands on this machine. You approve each one first.

python examples/shell.py "How many files are here?"
python examples/shell.py -m replay:examples/recordings/shell.json --yes
"""

import argparse
import asyncio
import subprocess

from sidestream import Agent, Decision, PendingApproval, Shell, tool
from sidestream.actions import ShellOutput

PROMPT = "Which Python version is installed, and what is in this folder?"


@tool(approval=lambda question: "ask")
def shell(commands: list[str], timeout_ms: int | None = None) -> list[ShellOutput]:
    """Runs commands one after the other."""
    return [run(command, (timeout_ms or 60_000) / 1000) for command in commands]


def run(command: str, timeout_s: float) -> ShellOutput:
    try:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return ShellOutput(timed_out=True)
    return ShellOutput(done.stdout, done.stderr, done.returncode)


def decide(pending: PendingApproval, yes: bool) -> Decision:
    print("\n".join(f"$ {command}" for command in pending.input["commands"]))
    is_approved = yes or input("Run it? [y/N] ").strip().lower() == "y"
    return pending.approve() if is_approved else pending.deny()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    parser.add_argument("--yes", action="store_true", help="approve without prompting")
    args = parser.parse_args()
    agent = Agent(args.model, tools=[shell], server_side_tools=[Shell(local=True)])
    result = await agent.send(args.prompt)
    while result.is_waiting:
        result = await agent.resume(result.run_state, [decide(pending, args.yes) for pending in result.approvals])
    print(result.output.strip())


asyncio.run(main())
