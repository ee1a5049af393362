"""Clocks that jump: waits and timeouts use monotonic clocks, and no wait is negative."""

import ast
import re
import subprocess
import sys
from email.utils import formatdate

import pytest
from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.errors import RateLimitedError
from sidestream.limits import Limits
from sidestream.wire.failures import retry_after_s
from sidestream.wire.retry import RetryPolicy, next_wait_s
from support.places import ROOT

SOURCE = ROOT / "src/sidestream"
WALL_CLOCK = {
    "store/queries.py": "stands in for the clock of a database that nobody has created yet",
    "durable/engines/temporal/engine.py": "compares with the times that the service gives of workflows and tasks",
    "durable/worker/worker.py": "until when a decision can be made, as the engine and people understand it",
    "cli/commands/demo/__init__.py": "tells the time in a city",
    "cli/commands/logs.py": "says how old a conversation may be that is deleted",
    "cli/commands/logs_cost.py": "says since when calls are counted",
    "cli/commands/mcp.py": "shows for how long a sign-in is valid",
    "mcp/auth/oauth_providers.py": "keeps the date at which a token expires over restarts; a refused token is refreshed in any case",
    "mcp/auth/token_store.py": "compares with that date",
    "portable/index/index.py": "says when a folder was read",
    "portable/tools/memory.py": "says when a memory was changed",
    "portable/fetch/fetcher.py": "says when a page was retrieved",
    "portable/fetch/cited.py": "says when a file was read",
    "portable/search/apis.py": "asks for pages published since a day",
    "portable/search/engine.py": "drops pages published before a day",
    "server/runs/quotas.py": "counts what was spent within a day, by the times of records",
    "server/runs/decisions.py": "how long an approval has been pending, in a log that outlives processes",
    "server/compatible/completions_input.py": "says when an answer was created",
    "durable/worker/reconciler.py": "compares with the times of records",
    "server/runs/execution.py": "compares with the times of records",
    "durable/dispatcher.py": "compares with the time at which a run is due",
    "server/file_links.py": "says until when a signed URL is valid, which other servers check",
    "transport/waits.py": "tells people until when a request waits",
    "server/http/requests.py": "compares with the time at which a message is to be sent",
    "server/server.py": "compares with the times of records",
    "server/runs/service.py": "compares with the time at which a message is to be sent, or an approval expires",
    "store/blobs/folder.py": "compares with the times of files",
    "store/blobs/bucket.py": "the age of an object, as its server says when it was stored",
    "store/log/forking.py": "says when a record was written",
    "store/log/writer.py": "says when a record was written",
    "wire/pages.py": "compares with a date in Retry-After, too",
    "wire/failures.py": "compares with a date in Retry-After, where the server does not send its own",
}
"""The only modules that read the wall clock, and why no wait depends on it."""
_WALL_CALLS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}
_MAY_READ = re.compile(r"\.\s*(?:time|time_ns|now|utcnow|today)\b|\bfrom\s+time\s+import\b")
"""What a module has that does; to parse all of them takes seconds."""

JUMPING = """
import asyncio, itertools, time
jumps = itertools.cycle([0.0, 1e9, 5e8, 2e9, -1e6])
time.time = lambda: next(jumps)

from sidestream import Agent, Limits
from sidestream.errors import StreamTimeoutError
from sidestream.testing import FakeProvider, Reply, error_reply, responses_text, sse

slept = []
sleep = asyncio.sleep
async def noted(delay, *rest):
    slept.append(delay)
    return await sleep(delay, *rest)
asyncio.sleep = noted

async def main():
    date = "Wed, 21 Oct 2026 07:28:00 GMT"
    past = error_reply(429, headers={"retry-after": date, "date": "Wed, 21 Oct 2026 07:30:00 GMT"})
    events = responses_text("Hello")
    stalled = sse(events[:5], stall_after_bytes=10**6)
    async with FakeProvider([past, error_reply(503), sse(events), stalled]) as fake:
        limits = Limits(idle_timeout_s=0.3)
        agent = Agent("openai-responses", base_url=fake.base_url, api_key="k", limits=limits)
        print((await agent.send("hi")).output)
        started_s = time.monotonic()
        try:
            await agent.send("hi")
        except StreamTimeoutError as error:
            print(error.code, 0.3 <= time.monotonic() - started_s < 20)
    print(all(delay >= 0 for delay in slept))

asyncio.run(main())
"""


@requirement("F25")
def test_clock_jump_does_not_change_waits_or_timeouts():
    done = subprocess.run([sys.executable, "-c", JUMPING], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["Hello", "idle", "True", "True"]


@requirement("F25")
def test_only_named_modules_read_wall_clock():
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if _MAY_READ.search(text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if _reads_wall_clock(node)
    }
    assert found == set(WALL_CLOCK)


def _reads_wall_clock(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name):
            return (owner, name) in _WALL_CALLS
        case ast.ImportFrom(module="time", names=names):
            return any(alias.name in ("time", "time_ns") for alias in names)
        case _:
            return False


@requirement("F25")
@pytest.mark.parametrize("has_date", [True, False])
@given(st.integers(0, 4_000_000_000), st.floats(-1e10, 1e10), st.integers(0, 4))
def test_retry_wait_stays_within_bounds_for_any_clock(has_date: bool, then_s: int, now_s: float, retries: int):
    headers = {"retry-after": formatdate(then_s, usegmt=True)}
    if has_date:
        headers["date"] = formatdate(max(now_s, 0) % 4_000_000_000, usegmt=True)
    error = RateLimitedError("", retryable=True, retry_after=retry_after_s(headers, now_s))
    wait_s = next_wait_s(error, retries, RetryPolicy(), Limits(), 0.5)
    assert wait_s is None or 0 <= wait_s <= 120
