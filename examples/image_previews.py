"""Generates an image; saves each preview as it arrives, then the final image, in the folder `out`.

python examples/image_previews.py "A lighthouse in fog"
python examples/image_previews.py -m replay:src/sidestream/cli/commands/demo/image.json
"""

import argparse
import asyncio

from sidestream import Agent, ImageGeneration

PROMPT = "Paint a quiet fjord at dusk, in flat colours."


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    parser.add_argument("--previews", type=int, default=2, help="0 for a provider that sends none")
    args = parser.parse_args()

    image = ImageGeneration(partial_images=args.previews)
    async for chunk in Agent(args.model, server_side_tools=[image]).send_stream(args.prompt):
        print(chunk.output, end="", flush=True)
        saved = [preview.save_to("out") for preview in chunk.previews]
        saved += [file.save_to("out") for file in chunk.files]  # under a safe name, overwriting nothing
        for path in saved:
            print(f"saved {path}")
    print()


asyncio.run(main())
