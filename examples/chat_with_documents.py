"""Indexes a folder and answers a question about it, with checked citations. Needs no API key and no network.

The embedded model is small. If it cites nothing, the passages are listed. Choose a better model with `-m`, such as
local:PATH.gguf.

python examples/chat_with_documents.py docs "How are retries configured?"
python examples/chat_with_documents.py docs -m replay:examples/recordings/chat_with_documents.json
"""

import argparse
import asyncio
import sys

from sidestream import Agent, FileSearch, open_index

PROMPT = "Search the files: what is retried?"
SYSTEM = "Answer from the passages that file_search finds, in one sentence."


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="local")
    parser.add_argument("--index", default="documents-index.db")
    args = parser.parse_args()

    async with open_index(args.index, vectors=args.model == "local") as index:
        report = await index.add(args.folder)  # keyword search works from here on
        await index.complete(lambda stage, done, total: print(f"\r{stage} {done}/{total}", end="", file=sys.stderr))
        print(f"\n{report.added} added, {report.changed} changed, {report.unchanged} unchanged", file=sys.stderr)

    tool = FileSearch(stores=[f"index:{args.index}"], max_results=3)
    async with Agent(args.model, system=SYSTEM, server_side_tools=[tool]) as agent:
        result = await agent.send(args.prompt)
    print(result.output)
    for source in result.sources:
        print(f"- {source.title}: “{source.cited_text}” ({source.evidence.state}: {source.evidence.reason})")
    if not result.sources:
        passages = [hit for entry in result.tool_results for hit in entry.result.get("results") or ()]
        print(
            "Nothing is cited. Found:", *(f"- {hit['filename']}: {hit['text'][:100]!r}" for hit in passages), sep="\n"
        )


asyncio.run(main())
