"""Runs any model's code in a sandbox on this machine. Prints the code as it streams; saves the files in `out`.

python examples/code_here.py -m ollama:qwen3 "Plot y = x^2"
python examples/code_here.py -m replay:src/sidestream/cli/commands/demo/here/code.json
"""

import argparse
import asyncio

from sidestream import Agent, CodeInterpreter
from sidestream.parts import TextStart


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default="Draw a damped wave and save it as an SVG.")
    parser.add_argument("-m", "--model", default="openai-responses")
    args = parser.parse_args()

    # "auto", the default, would use the provider's own code interpreter if it has one.
    tools = [CodeInterpreter(execution="here")]
    async with Agent(args.model, server_side_tools=tools) as agent:  # closing it stops the sandbox
        async for chunk in agent.send_stream(args.prompt):
            if any(isinstance(part, TextStart) for part in chunk.parts):
                print("\n")
            print(chunk.code, chunk.output, sep="", end="", flush=True)
            for file in chunk.files:
                print(f"\nsaved {file.save_to('out')}")


asyncio.run(main())
