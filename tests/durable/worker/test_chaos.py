"""The short form of `make chaos`. Times are measured there, on a machine that does nothing else."""

import asyncio
import math
import signal
from contextlib import aclosing
from pathlib import Path

import pytest

from hostile.durable_chaos import Chaos
from requirements import requirement
from support.durable_scenes import Template, scene
from support.engines import BOUND_S, Fleet, until_stats

WORKERS = 3
RUNS = {"embedded-postgresql": 14, "embedded-sqlite": 8, "temporal": 6}
"""Fewer where each costs more."""
PACE_S = 0.01


@requirement("R161", "R162")
async def test_runs_end_once_without_gap_while_workers_are_killed(
    fleet: Fleet, tmp_path: Path, request: pytest.FixtureRequest
):
    count = RUNS[request.node.callspec.params["fleet"]]
    async with scene(fleet, tmp_path) as here, aclosing(Template(tmp_path)) as template:
        chaos = Chaos(here, template, lease_s=fleet.process_lease_s, pace_s=PACE_S)
        for _ in range(WORKERS):
            await chaos.start_worker()
        runs = [asyncio.create_task(chaos.run(f"talk{number}")) for number in range(count)]
        stopped = await chaos.busy_worker()
        await chaos.lose(stopped, signal.SIGSTOP)
        for _ in range(2):
            await chaos.lose(await chaos.busy_worker(), signal.SIGKILL)
            await chaos.start_worker()
        await chaos.taken_from(stopped)
        stopped.signal(signal.SIGCONT)
        chaos.calm.set()
        async with asyncio.timeout(2 * BOUND_S):
            await asyncio.gather(*runs)
        await until_stats(here.engine, queued=0, running=0, waiting=0)
        chaos.note_takeovers()
        found = await chaos.findings(bound_s=math.inf)
        assert found.all == [], chaos.figures(0.0)
        assert len(chaos.durations_s) == count
        assert chaos.left
