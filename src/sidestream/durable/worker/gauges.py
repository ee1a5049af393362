"""Reports the load of the engine, and of this process, to OpenTelemetry, if the program has configured it."""

import asyncio
from collections.abc import Callable, Mapping

from msgspec.structs import asdict

from sidestream.durable.engines.protocol import Engine, EngineError, EngineStats
from sidestream.errors import SidestreamError
from sidestream.telemetry.activation import engine_gauges
from sidestream.telemetry.settings import Telemetry

INTERVAL_S = 15.0
"""Exporters read more seldom, by default once a minute."""
STATS_S = 5.0
"""How long the engine has to report its figures."""


async def stats_of(engine: Engine) -> EngineStats:
    """The figures of the engine. Raises SidestreamError, also if it does not answer in time."""
    # Not a timeout: what a database has begun completes first, however long it is silent.
    asking = asyncio.create_task(engine.stats())
    try:
        await asyncio.wait([asking], timeout=STATS_S)
        if asking.done():
            return asking.result()
        raise EngineError(f"the engine did not answer within {STATS_S:g} s")
    finally:
        asking.cancel()
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())


async def report(engine: Engine, own: Callable[[], Mapping[str, int]], telemetry: Telemetry | bool = True) -> None:
    """Keeps the gauges up to date until it is cancelled; `own` are the figures of this process."""
    try:
        while True:
            if (gauges := engine_gauges(telemetry)) is not None:
                try:
                    gauges.record({**asdict(await stats_of(engine)), **own()})
                except SidestreamError:
                    gauges.record(own())
            await asyncio.sleep(INTERVAL_S)
    finally:
        if (gauges := engine_gauges(telemetry)) is not None:
            gauges.record({})
