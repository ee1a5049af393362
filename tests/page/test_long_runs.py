"""A run of thousands of parts in a browser: it streams, scrolls and can be typed over without long frames."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from page.browsing import answers, ask, composer, is_over, page_server, tab
from page.scenes import scripted
from requirements import requirement
from sidestream.stream.parts import (
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLS = 700
"""Eight parts each: more than 5,000."""
PAINTS = 10
"""At least: a page that takes all of it at once is not drawn in between. How long a frame takes is printed, not
checked, since it depends on what else the machine does: 80 to 130 ms where three processes share a core."""


def long_run() -> list[Any]:
    """Calls with results, and a text after each."""
    parts: list[StreamPart] = []
    for number in range(CALLS):
        call, text = f"call_{number}", f"t{number}"
        given = {"query": f"question {number}"}
        parts += [
            ToolInputStart(call, "web_search", provider_executed=True),
            ToolInputDelta(call, json.dumps(given)),
            ToolInputEnd(call),
            ToolCall(call, "web_search", "web_search", provider_executed=True, input=given),
            ToolResult(call, "web_search", "web_search", {"results": []}, is_error=False, provider_executed=True),
            TextStart(text),
            TextDelta(text, f"Finding {number}: *nothing* of note.\n"),
            TextEnd(text),
        ]
    return parts


_WATCH_FRAMES = """() => {
  window.longest = window.paints = 0;
  let rows = 0;
  let last = performance.now();
  const look = (now) => {
    window.longest = Math.max(window.longest, now - last);
    last = now;
    const count = document.querySelectorAll(".answer > *").length;
    if (count !== rows) window.paints += 1;
    rows = count;
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""


@requirement("R143")
async def test_five_thousand_parts_stream_without_long_frames_and_open_again(
    chromium: Browser, tmp_path: Path, record_property: Callable[[str, object], None]
):
    gate = asyncio.Event()
    agent = scripted([["Begin.", gate, *long_run()]])
    async with page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Work for a long time.")
        await expect(answers(page)).to_contain_text("Begin.")
        await page.evaluate(_WATCH_FRAMES)
        gate.set()
        await expect(answers(page)).to_contain_text("Finding 20:")
        await composer(page).type("typed meanwhile")
        await expect(answers(page)).to_contain_text(f"Finding {CALLS - 1}:", timeout=60_000)
        longest, paints = await page.evaluate("[window.longest, window.paints]")
        record_property("longest_frame_ms", longest)
        print(f"longest frame while {CALLS * 8} parts stream: {longest:.0f} ms, {paints} paints")
        assert paints >= PAINTS
        await expect(composer(page)).to_have_value("typed meanwhile")
        await composer(page).fill("")
        await is_over(page)
        await page.reload()
        await expect(answers(page)).to_contain_text(f"Finding {CALLS - 1}:")
        await expect(answers(page).locator(".markdown")).to_have_count(CALLS + 1)
