"""Lets the model change files in this folder only.

python examples/apply_patch.py "Write a program that greets, and a note about it."
python examples/apply_patch.py -m replay:examples/recordings/apply_patch.json
"""

import argparse
import asyncio
from pathlib import Path

from sidestream import Agent, ApplyPatch, ToolError
from sidestream.actions import CreateFile, DeleteFile, PatchError, PatchOperation, UpdateFile, apply_diff

PROMPT = "Write hello.py, which greets the world. Then let it greet Turku instead, and delete hello.txt."
FOLDER = Path.cwd()


def apply_patch(operation: PatchOperation) -> str:
    """Creates, changes or deletes a file."""
    path = (FOLDER / operation.path).resolve()
    if not path.is_relative_to(FOLDER):
        raise ToolError(f"{operation.path} is outside of the folder.")
    print(type(operation).__name__, path.name)
    try:
        match operation:
            case CreateFile(diff=diff):
                path.write_text(apply_diff("", diff), "utf-8")
            case UpdateFile(diff=diff):
                path.write_text(apply_diff(path.read_text("utf-8"), diff), "utf-8")
            case DeleteFile():
                path.unlink()
    except (OSError, PatchError) as error:
        raise ToolError(str(error)) from error
    return "Done."


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    args = parser.parse_args()
    agent = Agent(args.model, tools=[apply_patch], server_side_tools=[ApplyPatch()])
    print((await agent.send(args.prompt)).output.strip())


asyncio.run(main())
