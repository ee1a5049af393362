"""Searches the web, prints the progress of the search, and lists numbered sources with their cited passages.

python examples/web_search.py "What is new in Python?"
python examples/web_search.py -m replay:src/sidestream/cli/commands/demo/web_search.json
"""

import argparse
import asyncio
import sys

from sidestream import Agent, Source, TextPart, WebSearch

PROMPT = "How long is the total solar eclipse of 2 August 2027, and where is it longest?"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    args = parser.parse_args()

    agent = Agent(args.model, server_side_tools=[WebSearch()])
    citations: dict[str, list[Source]] = {}  # by URL
    texts: dict[str | None, str] = {}  # by the id of the text block
    async for chunk in agent.send_stream(args.prompt):
        print(chunk.output, end="", flush=True)
        for event in chunk.tool_events:
            print(f"[{event.tool}: {event.stage}]", file=sys.stderr)
        for source in chunk.sources:
            citations.setdefault(source.url or source.id, []).append(source)
        for message in chunk.messages:
            texts |= {part.id: part.text for part in message.parts if isinstance(part, TextPart)}

    print("\n")
    for number, (url, sources) in enumerate(citations.items(), 1):
        print(f"[{number}] {sources[0].title}\n    {url}")
        for source in sources:
            if source.cited_text or source.end:
                start, end = source.start, source.end
                if source.claim_end is not None:  # the span covers the model's own link; the claim precedes it
                    start, end = source.claim_start, source.claim_end
                passage = source.cited_text or texts.get(source.text_id, "")[start:end]
                print(f"    “{passage}”")


asyncio.run(main())
