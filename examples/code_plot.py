"""Runs code in the provider's sandbox. Prints the code as it streams; saves the plot in `out`.

python examples/code_plot.py "Plot y = x^2"
python examples/code_plot.py -m replay:src/sidestream/cli/demo/code_run.json
"""

import argparse
import asyncio
from pathlib import Path

from pydantic_core import from_json

from sidestream import Agent, CodeInterpreter, File, TextDelta, TextStart, ToolInputDelta

PROMPT = "Plot how long the day is over a year in Quito, Berlin and Tromsø. Save it as a PNG."


def code_in(text: str) -> str:  # from a tool's input: JSON that may be incomplete
    arguments = from_json(text or "{}", allow_partial="trailing-strings")
    return arguments.get("code") or arguments.get("command") or ""


def save(name: str, data: bytes) -> None:
    path = Path("out", Path(name).name)  # drops any folder from a name that the model has chosen
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    print(f"\nsaved {path}")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    args = parser.parse_args()
    inputs: dict[str, str] = {}
    async with Agent(args.model, server_side_tools=[CodeInterpreter()]).stream(args.prompt) as run:
        async for part in run:
            if isinstance(part, ToolInputDelta):
                before = inputs.get(part.id, "")
                inputs[part.id] = before + part.delta
                print(code_in(inputs[part.id]).removeprefix(code_in(before)), end="", flush=True)
            elif isinstance(part, TextStart | TextDelta):
                print(part.delta if isinstance(part, TextDelta) else "\n\n", end="", flush=True)
            elif isinstance(part, File) and part.data:
                save(part.name or "plot.png", part.data)
    if run.error is not None:
        raise run.error


asyncio.run(main())
