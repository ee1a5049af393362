"""Prints a model's reasoning as it streams, then its answer and the number of tokens of each.

python examples/reasoning.py "Is 1001 a prime number?" -m anthropic
python examples/reasoning.py -m replay:examples/recordings/reasoning.json
"""

import argparse
import asyncio
import sys

from sidestream import Agent

PROMPT = "A farmer has 17 sheep. All but 9 run away. How many are left?"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    parser.add_argument("--thinking", choices=["low", "medium", "high"], default="medium")
    args = parser.parse_args()

    blocks = 0
    async for chunk in Agent(args.model, thinking=args.thinking).send_stream(args.prompt):
        print(chunk.thinking, end="", flush=True, file=sys.stderr)
        for _ in chunk.metadata.get("thinking_details", ()):  # a block of reasoning is complete
            blocks += 1
            print(f"\n[thought {blocks}]", file=sys.stderr)
        print(chunk.output, end="", flush=True)
        if chunk.usage is not None:
            used = chunk.usage.output
            print(f"\n[{used.reasoning} tokens of reasoning, {used.text} of text]", file=sys.stderr)
    print()


asyncio.run(main())
