"""Lets the model run single read-only commands on this machine, with any provider that has such a tool.

python examples/local_shell.py "What is in this folder?"
python examples/local_shell.py -m replay:examples/recordings/local_shell.json
"""

import argparse
import asyncio
import subprocess

from sidestream import Agent, LocalShell, ToolError
from sidestream.actions import LocalShellCall

PROMPT = "What is in this folder? Delete what is not needed."
ALLOWED = {"ls", "cat", "head", "wc", "pwd", "echo"}


def local_shell(call: LocalShellCall) -> str:
    """Runs a command."""
    program = call.script.split()[0] if call.script else ""
    if program not in ALLOWED or not call.script.isprintable() or any(sign in call.script for sign in ";|&<>$`"):
        raise ToolError(f"{program} may not be run here. Allowed are: {', '.join(sorted(ALLOWED))}.")
    print(f"$ {call.script}")
    timeout_s = (call.timeout_ms or 60_000) / 1000
    done = subprocess.run(
        call.command, cwd=call.working_directory, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return done.stdout + done.stderr


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    args = parser.parse_args()

    agent = Agent(args.model, tools=[local_shell], server_side_tools=[LocalShell()])
    print((await agent.send(args.prompt)).output.strip())


asyncio.run(main())
