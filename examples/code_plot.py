"""Runs code in the provider's sandbox. Prints the code as it streams; saves the plot in `out`.

python examples/code_plot.py "Plot y = x^2"
python examples/code_plot.py -m replay:src/sidestream/cli/commands/demo/code_run.json
"""

import argparse
import asyncio

from sidestream import Agent, CodeInterpreter
from sidestream.parts import TextStart

PROMPT = "Plot how long the day is over a year in Quito, Berlin and Tromsø. Save it as a PNG."


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    args = parser.parse_args()

    async for chunk in Agent(args.model, server_side_tools=[CodeInterpreter()]).send_stream(args.prompt):
        if any(isinstance(part, TextStart) for part in chunk.parts):
            print("\n")
        print(chunk.code, chunk.output, sep="", end="", flush=True)
        for file in chunk.files:
            print(f"\nsaved {file.save_to('out')}")  # under a safe name, overwriting nothing


asyncio.run(main())
