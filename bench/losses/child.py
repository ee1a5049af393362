"""The process in which one library is observed: `python -m bench.losses.child MODULE`, probes as JSON on stdin.

A probe is `{"name": …, "url": …, "tool": …}`. It writes one JSON object: the name of each probe and what was recorded.
"""

import asyncio
import importlib
import json
import re
import sys
import warnings
from typing import Any

from bench.losses.recorder import Recorder

PROBE_S = 60


async def run_probe(way: Any, probe: dict[str, Any]) -> dict[str, Any]:
    """Plays one probe; what the library raises is recorded too."""
    recorder = Recorder()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            async with asyncio.timeout(PROBE_S):
                if probe["tool"] == "mcp":
                    await way.approve(probe["url"], recorder)
                else:
                    await way.play(probe["url"], probe["tool"], recorder)
        except Exception as error:
            # The port differs from run to run, and the report should not.
            recorder.error = re.sub(r"(127\.0\.0\.1):\d+", r"\1", f"{type(error).__name__}: {error}")[:400]
    recorder.warnings = [f"{entry.category.__name__}: {entry.message}"[:400] for entry in caught]
    return recorder.as_json()


async def main() -> None:
    way = importlib.import_module(sys.argv[1])
    found = {probe["name"]: await run_probe(way, probe) for probe in json.load(sys.stdin)}
    # Libraries print to stdout as they like, so the answer has a line of its own.
    print(f"\n{json.dumps(found)}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
