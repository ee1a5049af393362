"""Searches the web and prints the answer with numbered citations, as it streams and in its final form.

python examples/citations.py "What is new in Python?"
python examples/citations.py -m replay:src/sidestream/cli/commands/demo/web_search.json
"""

import argparse
import asyncio
import sys

from sidestream import Agent, Citations, WebSearch

PROMPT = "How long is the total solar eclipse of 2 August 2027, and where is it longest?"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    parser.add_argument("--style", choices=["numbers", "markdown", "footnotes"], default="numbers")
    args = parser.parse_args()

    citations = Citations(args.style)
    async for chunk in Agent(args.model, server_side_tools=[WebSearch()]).send_stream(args.prompt):
        print(citations.feed(chunk), end="", flush=True, file=sys.stderr)  # late sources are marked at the block's end
        for run in chunk.tool_runs:
            if run.is_over:
                print(f"[{run.tool}: {', '.join(run.queries) or run.input}]", file=sys.stderr)
    print(file=sys.stderr)

    cited = citations.cited()  # every marker in its place; `result.cited_text()` is the same
    print(cited)


asyncio.run(main())
