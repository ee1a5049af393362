"""Sends images, PDFs and other files with a prompt, from disk, by URL, uploaded first, or by a stored file's id.

python examples/multimodal_input.py photo.jpg report.pdf --link https://example.com/chart.png --upload big.pdf
python examples/multimodal_input.py -m replay:examples/recordings/multimodal_input.json
"""

import argparse
import asyncio
import mimetypes
from pathlib import Path

from sidestream import Agent, DataPart, LinkPart, MessagePart
from sidestream.providers import StoredFile

PROMPT = "Describe each of these in one sentence."
LINK = "https://upload.wikimedia.org/wikipedia/commons/4/47/PNG_transparency_demonstration_1.png"


def from_disk(path: Path) -> DataPart:
    return DataPart(path.read_bytes(), mimetypes.guess_type(path.name)[0] or "application/octet-stream", path.name)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path, help="sent as they are")
    parser.add_argument("-p", "--prompt", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    parser.add_argument("--link", action="append", default=[], help="opened by the provider")
    parser.add_argument("--upload", action="append", default=[], help="stored at the provider for this run")
    parser.add_argument("--file-id", action="append", default=[], help="a file that the provider stores")
    args = parser.parse_args()

    agent = Agent(args.model)
    links = args.link or ([] if args.files or args.upload or args.file_id else [LINK])
    prompt: list[str | MessagePart | StoredFile] = [args.prompt, *map(from_disk, args.files), *map(LinkPart, links)]
    prompt += [await agent.describe_file(file_id) for file_id in args.file_id]
    uploads = [await agent.upload(path) for path in args.upload]
    try:
        async for chunk in agent.send_stream([*prompt, *uploads]):
            print(chunk.output, end="", flush=True)
        print()
    finally:
        for file in uploads:
            await agent.delete_file(file)


asyncio.run(main())
