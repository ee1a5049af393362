"""Generates an image; saves each preview as it arrives, then the final image, in the folder `out`.

python examples/image_previews.py "A lighthouse in fog"
python examples/image_previews.py -m replay:src/sidestream/cli/demo/image.json
"""

import argparse
import asyncio
import base64
from pathlib import Path

from sidestream import Agent, File, ImageGeneration, TextDelta, ToolResult

PROMPT = "Paint a quiet fjord at dusk, in flat colours."


def save(name: str, data: bytes) -> None:
    path = Path("out", Path(name).name)  # drops any folder from a name that the model may choose
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    print(f"saved {path}")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default="openai-responses")
    parser.add_argument("--previews", type=int, default=2, help="0 for a provider that sends none")
    args = parser.parse_args()

    image = ImageGeneration(partial_images=args.previews)
    previews = 0
    async with Agent(args.model, server_side_tools=[image]).stream(args.prompt) as run:
        async for part in run:
            match part:
                case ToolResult(preliminary=True, result={"partial_image_b64": str(text)}):
                    previews += 1
                    save(f"preview_{previews}.png", base64.b64decode(text))
                case File(data=bytes(data), name=name):
                    save(name or "image.png", data)
                case TextDelta(delta=delta):
                    print(delta, end="", flush=True)
                case _:
                    pass
    print()
    if run.error is not None:
        raise run.error


asyncio.run(main())
