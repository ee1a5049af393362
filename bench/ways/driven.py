"""Runs that a worker drives: how late the log has what it is sent, and a follower elsewhere; how soon it begins."""

import asyncio
import json
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from bench.databases import database
from bench.driving import AGENT
from bench.lags import lag_figures
from bench.processes import cpu_s
from sidestream import Agent, open_store
from sidestream.durable import Claim, Engine, Outcome, RunClient, open_engine
from sidestream.durable.worker.process_tuning import keep_what_is_loaded
from sidestream.durable.worker.worker import Worker
from sidestream.parts import TextDelta
from sidestream.store.protocol import SharedStore
from sidestream.store.records import Record, Segment
from sidestream.store.wrapped import shared

LAG_S = 60.0
"""All runs must have ended by then. They take three seconds where nothing is in their way."""
_STAMP = re.compile(r"\d{16}")
_stack = ExitStack()
_places: dict[str, str] = {}


class Followed(NamedTuple):
    """A worker in a process of its own, and what begins runs for it and follows them here."""

    process: "subprocess.Popen[bytes]"
    store: SharedStore
    engine: Engine
    client: RunClient


class Warm(NamedTuple):
    """A worker in this process, and when it got its claims."""

    store: SharedStore
    engine: Engine
    client: RunClient
    claimed_us: dict[str, int]
    working: "asyncio.Task[None]"


_followed: dict[tuple[str, str, str], Followed] = {}
_warm: dict[tuple[str, str, str], Warm] = {}
"""Both by engine, store and provider."""


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _where(kind: str) -> str:
    """A store of this kind, which lives as long as the process."""
    if kind not in _places:
        if kind == "postgresql":
            _places[kind] = _stack.enter_context(database())
        else:
            folder = _stack.enter_context(tempfile.TemporaryDirectory(prefix="sidestream-bench-"))
            _places[kind] = str(Path(folder) / "log.db")
    return _places[kind]


def _opened(task: dict[str, Any]) -> tuple[SharedStore, Engine, RunClient]:
    store = shared(open_store(_where(task["store"])))
    engine = open_engine(task["engine"], store)
    agent = Agent("openai", base_url=f"{task['url']}/v1", api_key="none")
    return store, engine, RunClient(agent, AGENT, store=store, engine=engine)


def _started(*arguments: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.driving", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def _safe_lags(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """How late its records were safe since the last time, by the worker itself."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


async def _with_process(task: dict[str, Any]) -> Followed:
    key = (task["engine"], task["store"], task["url"])
    if key not in _followed:
        arguments = (task["engine"], _where(task["store"]), task["url"], str(task["streams"]))
        process = await asyncio.to_thread(_started, *arguments)
        _followed[key] = Followed(process, *_opened(task))
        keep_what_is_loaded()  # As a server does, which is what follows runs elsewhere.
    return _followed[key]


async def lag(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """Many runs at once in one worker: from the provider's sending of an event to its record, safe, and then read by a
    follower."""
    worker = await _with_process(task)
    talks = [f"talk-{secrets.token_hex(8)}" for _ in range(task["streams"])]
    lags: list[int] = []

    ended = 0

    async def follow(talk: str) -> None:
        nonlocal ended
        is_first = True
        async for record in worker.client.follow(talk):
            if stamps := _stamps(record):
                now = _now_us()
                # The first delta comes while other runs are still begun.
                lags.extend(now - stamp for stamp in stamps[is_first:])
                is_first = False
        ended += 1

    before_s = cpu_s(worker.process.pid)
    try:
        async with asyncio.timeout(LAG_S):
            await asyncio.gather(*(worker.client.start(talk, "Say it.") for talk in talks))
            await asyncio.gather(*map(follow, talks))
    except TimeoutError:
        raise RuntimeError(
            f"{ended} of {len(talks)} runs ended within {LAG_S:g} s: {await worker.engine.stats()}"
        ) from None
    safe = await asyncio.to_thread(_safe_lags, worker.process)
    figures = {"safe_p50_ms": safe["lag_p50_ms"], "safe_p99_ms": safe["lag_p99_ms"], "safe_events": safe["events"]}
    return {"cpu_s": cpu_s(worker.process.pid) - before_s, **figures, **lag_figures(lags)}


async def _with_worker(task: dict[str, Any]) -> Warm:
    key = (task["engine"], task["store"], task["url"])
    if key not in _warm:
        await _end_followed()  # Workers of another case would claim these runs.
        store, engine, client = _opened(task)
        agent = Agent("openai", base_url=f"{task['url']}/v1", api_key="none")
        worker = Worker(store, engine, lambda _: agent)
        claimed_us: dict[str, int] = {}

        async def drive(claim: Claim) -> Outcome:
            claimed_us[claim.task.conversation] = _now_us()
            return await worker.drive(claim)

        working = asyncio.create_task(engine.work(drive, queues=[AGENT], slots=4))
        _warm[key] = Warm(store, engine, client, claimed_us, working)
    return _warm[key]


async def claims(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """From a claim to the request that the provider has, in a warm worker: medians of some runs, one after another."""
    warm = await _with_worker(task)
    to_claim, to_request = list[float](), list[float]()
    for _ in range(task["runs"]):
        talk, begun_us = f"talk-{secrets.token_hex(8)}", _now_us()
        await warm.client.start(talk, "Say it.")
        first: int | None = None
        async for record in warm.client.follow(talk):
            stamps = _stamps(record)
            first = stamps[0] if first is None and stamps else first
        assert first is not None
        to_claim.append((warm.claimed_us[talk] - begun_us) / 1000)
        # The provider sends the first event as soon as it has the request.
        to_request.append((first - warm.claimed_us[talk]) / 1000)
    return {
        "runs": len(to_request),
        "begin_ms": statistics.median(to_claim),
        "request_ms": statistics.median(to_request),
        "slowest_ms": max(to_request),
    }


def _stamps(record: Record) -> list[int]:
    parts = record.body.parts if isinstance(record.body, Segment) else ()
    return [int(stamp) for part in parts if isinstance(part, TextDelta) for stamp in _STAMP.findall(part.delta)]


PROGRAMS = {"worker-lag": lag, "claims": claims}


async def _end_followed() -> None:
    while _followed:
        _, followed = _followed.popitem()
        followed.process.kill()
        followed.process.wait()
        await followed.engine.aclose()
        await followed.store.aclose()


async def close() -> None:
    """Ends workers, engines and stores."""
    await _end_followed()
    for warm in _warm.values():
        warm.working.cancel()
        await asyncio.wait([warm.working])
        await warm.engine.aclose()
        await warm.store.aclose()
    _stack.close()
