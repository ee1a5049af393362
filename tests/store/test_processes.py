"""Several processes with one store, and processes that are killed."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from requirements import requirement
from sidestream import Chat
from sidestream.store import Store, open_store
from sidestream.store.sqlite.store import SqliteStore
from sidestream.testing import FakeProvider, ResponsesScript
from support import warm
from support.places import TESTS
from support.store_child import PLAN, desk
from support.stores import BOUND_S, Opens, digest_of, row, rows


@asynccontextmanager
async def child(*arguments: str | Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process that ends with the block."""
    process = await warm.start(
        sys.executable,
        "-m",
        "support.store_child",  # A tool is known by its module, here and in the child.
        *map(str, arguments),
        cwd=TESTS,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(2 * BOUND_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        async with asyncio.timeout(BOUND_S):
            await process.communicate()


async def said(process: asyncio.subprocess.Process) -> dict:
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "the process ended without output"
    return json.loads(line)


@requirement("F34")
async def test_appends_of_two_processes_never_interleave(store: Store, where: str):
    async with child("compete", where, "a", "25") as one, child("compete", where, "b", "25") as two:
        tallies = [await said(one), await said(two)]
    assert [tally["won"] for tally in tallies] == [25, 25]
    found = await store.read("talk")
    assert [it.seq for it in found] == list(range(1, 151))
    assert all(len({it.run for it in found[start : start + 3]}) == 1 for start in range(0, 150, 3))


async def test_tail_follows_writes_of_another_process(store: Store, where: str):
    await store.append("talk", 0, rows(1, 3))
    async with child("follow", where, "2", "5") as process:
        assert (await said(process))["is_ready"]
        await store.append("talk", 3, rows(4, 4))
        await store.append("talk", 4, rows(5, 7))
        assert (await said(process))["found"] == [3, 4, 5, 6, 7]


@requirement("R83", "F32")
async def test_killed_process_loses_no_acknowledged_append(where: str, opens: Opens):
    safe = 0
    for acknowledgements in (1, 3, 9):
        async with child("forever", where) as process:
            for _ in range(acknowledgements):
                safe = (await said(process))["head"]
            process.send_signal(signal.SIGKILL)
            assert process.stdout is not None
            for line in (await process.stdout.read()).splitlines():
                safe = json.loads(line)["head"]
            assert await process.wait() == -signal.SIGKILL
        store = opens()
        found = await store.read("talk")
        assert [it.seq for it in found] == list(range(1, len(found) + 1))
        assert len(found) in (safe, safe + 2)
        assert await store.check() == []


@requirement("R83", "F32", "F36")
async def test_kill_at_any_statement_leaves_acknowledged_prefix(tmp_path: Path):
    async with child("killed", tmp_path) as process:
        tally = await said(process)
    assert tally["status"] == 0
    assert tally["steps"] > 30
    intended = [it for records, _ in PLAN for it in records]
    lengths = set()
    for limit in range(1, tally["steps"] + 2):
        folder = tmp_path / str(limit)
        log = folder / "safe"
        safe = max(map(int, log.read_text().split()), default=0) if log.exists() else 0
        store = SqliteStore(folder / "log" / "talks.db")
        found = await store.read("talk")
        assert found == intended[: len(found)]
        assert len(found) in (0, 2, 3, 6), "an append is stored completely or not at all"
        assert len(found) >= safe
        assert await store.check() == []
        for digest in {digest for it in found for digest in it.blobs}:
            assert digest_of(await store.blob(digest)) == digest
        lengths.add(len(found))
        await _continue(store, len(found))
        await store.aclose()
    assert lengths == {0, 2, 3, 6}


async def _continue(store: SqliteStore, head: int) -> None:
    """The remains of a killed process block nothing, and can be collected."""
    await store.append("talk", head, [row(head + 1, blobs=[digest_of(b"two")])], {digest_of(b"two"): b"two"})
    for file in store.blobs.path.rglob("*"):
        os.utime(file, (0, 0))
    await store.collect()
    left = [file for file in store.blobs.path.rglob("*") if file.is_file()]
    named = {digest for it in await store.read("talk") for digest in it.blobs}
    assert {file.parent.name + file.name for file in left} == named


@requirement("R116", "R76", "F34", "F42")
@pytest.mark.parametrize("nested", ["direct", "nested"])
async def test_decision_counts_once_across_processes(store: Store, where: str, tmp_path: Path, nested: str):
    delegating = [ResponsesScript(id="r0").function_call("helper", {"task": "clean up"}, "call_h").reply()]
    script = [
        *(delegating if nested == "nested" else []),
        ResponsesScript(id="r1").function_call("delete", {"name": "a"}, "call_d").reply(),
        ResponsesScript(id="r2").text("Deleted.").reply(),
        ResponsesScript(id="r3").text("Deleted.").reply(),
    ]
    effects = tmp_path / "effects"
    async with FakeProvider(script) as fake:
        agent = desk(fake.base_url, str(effects), nested)
        state = (await Chat(agent, store=store, id="talk").send("clean up")).run_state
        assert state is not None
        decision = msgspec.json.encode(state.approvals[0].approve()).decode()
        resuming = ("decide", where, fake.base_url, effects, nested, decision)
        async with child(*resuming) as one, child(*resuming) as two:
            # Both have read that the call waits before either resumes it.
            assert [(await said(process))["status"] for process in (one, two)] == ["waiting", "waiting"]
            for process in (one, two):
                assert process.stdin is not None
                process.stdin.write(b"\n")
            outcomes = [await said(one), await said(two)]
        assert sorted(outcome.get("error", "") for outcome in outcomes) == ["", "ApprovalError"]
        assert [it["output"].strip() for it in outcomes if "output" in it] == ["Deleted."]
        async with child(*resuming) as late:
            assert (await said(late))["status"] == "complete"
            assert late.stdin is not None
            late.stdin.write(b"\n")
            outcomes.append(await said(late))
    assert outcomes[-1]["error"] == "ApprovalError"
    assert all("used already" in outcome["message"] for outcome in outcomes if "error" in outcome)
    assert effects.read_text() == "a\n"
    assert [row.kind for row in await store.read("talk")].count("approval-decided") == 1


@pytest.mark.parametrize("is_closed", [True, False])
def test_program_ends_without_closing_its_store(where: str, is_closed: bool):
    import subprocess

    close = "await store.aclose()" if is_closed else ""
    program = f"""
import asyncio, sys, time
from sidestream.store import open_store
from sidestream.store.records import Row
store = open_store(sys.argv[1])
async def main():
    await store.append("talk", 0, [Row(seq=1, time=1.0, run="", kind="text", body=b"{{}}")])
    tail = store.tail("talk")
    print((await anext(tail)).seq)
    {close}
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, where], capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


async def test_dropped_store_leaves_no_threads(tmp_path: Path):
    import gc
    import threading

    others = set(threading.enumerate())
    store = open_store(tmp_path / "talks.db")
    await store.append("talk", 0, rows(1, 1))
    await store.read("talk")
    started = set(threading.enumerate()) - others
    threads = [thread for thread in started if thread.name.startswith("sidestream-")]
    assert len(threads) >= 2
    del store
    gc.collect()
    for thread in threads:
        await asyncio.to_thread(thread.join, BOUND_S)
        assert not thread.is_alive()
