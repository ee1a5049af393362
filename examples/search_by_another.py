"""Lets any model search the web through another provider's hosted search, and lists the sources it cited.

python examples/search_by_another.py -m local --via google
python examples/search_by_another.py -m replay:examples/recordings/search_by_another.json \\
    --via replay:src/sidestream/cli/commands/demo/web_search.json
"""

import argparse
import asyncio

from sidestream import Agent, WebSearch


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default="How long is the eclipse of August 2027, and where is it longest?")
    parser.add_argument("-m", "--model", default="openai")
    parser.add_argument("--via", default="openai-responses", help="a model that hosts a web search")
    args = parser.parse_args()

    async with Agent(args.model, server_side_tools=[WebSearch(via=args.via)]) as agent:
        async for chunk in agent.send_stream(args.prompt):
            for event in chunk.metadata.get("web_search", []):
                if "query" in (action := event.get("item", {}).get("action", {})):
                    print(f"{args.via} searches: {action['query']}")
            for source in chunk.sources:
                print(f"- {source.title}\n  {source.url}")
            print(chunk.output, end="", flush=True)
    print()


asyncio.run(main())
