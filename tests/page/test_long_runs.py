"""A run of thousands of parts in a browser: it streams, scrolls and can be typed over without long frames."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from page.browsing import answers, ask, composer, is_over, page_server, tab, until
from page.scenes import scripted
from requirements import requirement
from sidestream.parts import (
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
"""At least: a page that takes all of it at once is not drawn in between."""
LONGEST_SHARE = 0.1
"""Of all that the page computes, what it may compute before the next frame. A share of the same run, by the thread's own
clock: milliseconds depend on the machine and on what else it does, and are printed only."""


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


def _texts(count: int) -> str:
    """Holds when the answer has so many texts; cheap, whatever it holds."""
    return f'document.getElementsByClassName("markdown").length >= {count}'


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


def tasks_ms(trace: bytes) -> list[float]:
    """The tasks of the page in a trace, in time of its thread."""
    events = json.loads(trace)["traceEvents"]
    mains = {(event["pid"], event["tid"]) for event in events if event.get("args", {}).get("name") == "CrRendererMain"}
    tasks = [event for event in events if event["name"] == "RunTask" and (event["pid"], event["tid"]) in mains]
    assert len(tasks) > PAINTS
    return [event.get("tdur", 0) / 1000 for event in tasks]


@requirement("R143")
async def test_five_thousand_parts_stream_without_long_frames(
    chromium: Browser, tmp_path: Path, record_property: Callable[[str, object], None]
):
    gate = asyncio.Event()
    agent = scripted([["Begin.", gate, *long_run()]])
    async with page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Work for a long time.")
        await expect(answers(page)).to_contain_text("Begin.")
        await page.evaluate(_WATCH_FRAMES)
        # Nothing of the driver may look at the thread meanwhile: `expect` reads all of it, for hundreds of milliseconds.
        await chromium.start_tracing(
            page=page, categories=["devtools.timeline", "disabled-by-default-devtools.timeline"]
        )
        gate.set()
        await until(page, _texts(20))
        await page.keyboard.type("typed meanwhile")
        await until(page, _texts(CALLS + 1))
        tasks = tasks_ms(await chromium.stop_tracing())
        task, total = max(tasks), sum(tasks)
        longest, paints = await page.evaluate("[window.longest, window.paints]")
        record_property("longest_frame_ms", longest)
        record_property("longest_task_ms", task)
        print(f"while {CALLS * 8} parts stream: longest frame {longest:.0f} ms, task {task:.0f} of {total:.0f} ms")
        assert task <= LONGEST_SHARE * total
        assert paints >= PAINTS
        await expect(composer(page)).to_have_value("typed meanwhile")
        await composer(page).fill("")
        await is_over(page)
        await page.reload()
        await until(page, _texts(CALLS + 1))
        await expect(answers(page)).to_contain_text(f"Finding {CALLS - 1}:")
        await expect(answers(page).locator(".markdown")).to_have_count(CALLS + 1)
