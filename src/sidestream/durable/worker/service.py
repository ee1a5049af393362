"""A worker as a service: it claims tasks, drains when stopped, and reports health and metrics."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from sidestream.agent.agent import Agent
from sidestream.durable.engines.protocol import MODELS, Engine, EngineError, EngineStats
from sidestream.durable.log.approval_deadlines import OnExpiry
from sidestream.durable.log.jobs import Job, queue_of, worker_name
from sidestream.durable.worker.reconciler import Reconciler
from sidestream.durable.worker.worker import INTERVAL_S, Worker
from sidestream.errors import ConfigurationError, SidestreamError
from sidestream.jsontext import JsonObject, as_object
from sidestream.store.log.writer import LogDetail
from sidestream.store.protocol import Store
from sidestream.store.wrapped import shared
from sidestream.telemetry.activation import engine_gauges
from sidestream.telemetry.settings import Telemetry
from sidestream.text.redaction import redact

if TYPE_CHECKING:
    from aiohttp import web


_GAUGES_S = 15.0
"""Seconds between gauge updates. Exporters read less often, by default once a minute."""
STATS_S = 5.0
"""Seconds the engine has to report its statistics."""


async def stats_of(engine: Engine) -> EngineStats:
    """Return the engine's statistics. Raises SidestreamError if it fails or does not respond in time."""
    # A timeout would wait for a database call in progress to complete, however long it takes.
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
    """Update the gauges until cancelled. `own` returns the metrics of this process."""
    try:
        while True:
            if (gauges := engine_gauges(telemetry)) is not None:
                try:
                    gauges.record({**asdict(await stats_of(engine)), **own()})
                except SidestreamError:
                    gauges.record(own())
            await asyncio.sleep(_GAUGES_S)
    finally:
        if (gauges := engine_gauges(telemetry)) is not None:
            gauges.record({})


ALIVE, READY = "/healthz", "/readyz"
"""Paths at which workers and servers report that the process responds, and that it can take work."""


async def health_of(engine: Engine, reconciler: Reconciler, *, is_stopping: bool) -> JsonObject:
    """Return the status of a process that executes or enqueues runs, with the engine's statistics or the error.

    `status` is `ok`, `draining`, or `error` if the engine does not respond or the store has a newer schema that this
    version cannot write.
    """
    try:
        if reconciler.refusal is not None:
            raise reconciler.refusal
        stats = await stats_of(engine)
    except SidestreamError as error:
        return {"status": "error", "error": redact(str(error))}
    return {"status": "draining" if is_stopping else "ok", "engine": asdict(stats)}


def readiness(health: JsonObject) -> tuple[int, JsonObject]:
    """Return the HTTP status and body of `/readyz`, which anyone may read."""
    status = health["status"]
    return 200 if status == "ok" else 503, {"status": status}


HAND_OVER_S = 10.0
"""Seconds for runs to stop and be handed off, after the drain period."""


class Agents:
    """The agents of a worker by name, and agents created from model strings."""

    def __init__(self, named: Mapping[str, Agent[Any]], *, allows_models: bool) -> None:
        for agent in named.values():
            agent.check()
        self._named = dict(named)
        self._allows_models = allows_models
        self._made: dict[str, Agent[Any]] = {}

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues of these agents' runs."""
        return (*self._named, *([MODELS] if self._allows_models else ()))

    def __call__(self, name: str) -> Agent[Any]:
        """Return the agent with this name, or one for this model string. Raises ConfigurationError if there is none."""
        if (found := self._named.get(name) or self._made.get(name)) is not None:
            return found
        if not self._allows_models:
            raise ConfigurationError(f"this worker has no agent {name!r}; it has {', '.join(sorted(self._named))}")
        made = Agent(name)
        made.check()
        self._made[name] = made
        return made

    def queue_of(self, job: Job) -> str | None:
        """Return the queue of a run, or None if its agent is unknown here."""
        queue = queue_of(job.agent, self._named)
        return queue if queue in self.queues else None

    async def aclose(self) -> None:
        """Close the agents created from model strings."""
        for agent in self._made.values():
            await agent.aclose()


class WorkerLoop:
    """The main loop of a worker process.

    It executes tasks of `queues`, at most `slots` at once, delivers control messages to its runs, enqueues runs that
    the engine has missed, and reports gauges. Without queues it executes only runs that are offered to its worker.
    """

    def __init__(
        self,
        engine: Engine,
        worker: Worker,
        reconciler: Reconciler,
        metrics: Callable[[], Mapping[str, int]],
        *,
        queues: Collection[str],
        slots: int,
        drain_s: float = 0.0,
        telemetry: Telemetry | bool = True,
    ) -> None:
        self._engine = engine
        self._worker = worker
        self._reconciler = reconciler
        self._metrics = metrics
        self._queues = queues
        self._slots = slots
        self._drain_s = drain_s
        self._telemetry = telemetry
        self._stopping = asyncio.Event()
        self._handing_off = asyncio.Event()

    def stop(self) -> None:
        """Stop claiming runs. A second call hands off those that have not finished."""
        (self._handing_off if self._stopping.is_set() else self._stopping).set()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    async def run(self) -> None:
        """Work until `stop` is called. Raises the engine's error if it cannot work at all."""
        working, stopping = asyncio.create_task(self._work()), asyncio.create_task(self._stopping.wait())
        handing_off = asyncio.create_task(self._handing_off.wait())
        reporting = report(self._engine, self._metrics, self._telemetry)
        beside = [asyncio.create_task(each) for each in (self._worker.attend(), self._reconciler.run(), reporting)]
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await asyncio.wait([working, handing_off], timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await self._worker.drain()
                await asyncio.wait([working], timeout=HAND_OVER_S)
        finally:
            tasks = [working, stopping, handing_off, *beside]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not working.cancelled() and (error := working.exception()) is not None:
            raise error

    async def _work(self) -> None:
        if self._queues:
            execute, queues = self._worker.drive, self._queues
            await self._engine.work(execute, queues=queues, slots=self._slots, stopping=self._stopping)
        else:
            await self._stopping.wait()


class WorkerService:
    """A worker that executes runs until stopped, and hands off unfinished runs to other workers.

    ```python
    store = open_store("talks.db")
    service = WorkerService(store, open_engine("embedded", store), {"support": agent})
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.stop)
    await service.run()
    ```

    It executes runs of `agents` and, with `allows_models`, of any model string, at most `slots` at once. After `stop`,
    runs have `drain_s` seconds to finish. Output is written to the log every `interval_s` seconds, which is when
    subscribers see it. Calls wait `approval_s` seconds for their approval, after which `on_expiry` applies. They wait
    `answer_s` seconds for the result of a client, after which their run is stopped. None means no limit. The service
    periodically enqueues runs of its agents that are in progress according to their log but unknown to the engine. If
    the program has configured OpenTelemetry, gauges show the engine's load.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        agents: Mapping[str, Agent[Any]] | None = None,
        *,
        allows_models: bool = True,
        slots: int = 50,
        drain_s: float = 20.0,
        interval_s: float = INTERVAL_S,
        approval_s: float | None = None,
        on_expiry: OnExpiry = "deny",
        answer_s: float | None = None,
        telemetry: Telemetry | bool = True,
    ) -> None:
        self._engine = engine
        self._agents = Agents(agents or {}, allows_models=allows_models)
        if not self._agents.queues:
            raise ConfigurationError("a worker needs agents; pass agents or allows_models=True")
        self._slots = slots
        self._worker = Worker(
            shared(store),
            engine,
            self._agents,
            detail=LogDetail(interval_s=interval_s, previews=True, inputs=True),
            approval_s=approval_s,
            on_expiry=on_expiry,
            answer_s=answer_s,
        )
        self._reconciler = Reconciler(
            shared(store),
            engine,
            self._agents.queue_of,
            self._agents.queues,
            is_driven=self._worker.driving.__contains__,
        )
        self._loop = WorkerLoop(
            engine,
            self._worker,
            self._reconciler,
            lambda: {"runs": self.driving, "slots": slots},
            queues=self._agents.queues,
            slots=slots,
            drain_s=drain_s,
            telemetry=telemetry,
        )

    def stop(self) -> None:
        """Stop claiming runs.

        `run` returns once all current runs have finished or were handed off. A second call hands them off at once.
        """
        self._loop.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` has been called."""
        return self._loop.is_stopping

    @property
    def driving(self) -> int:
        """Number of runs being executed by this worker."""
        return len(self._worker.driving)

    async def run(self) -> None:
        """Execute runs until `stop` is called. Raises the engine's error if it cannot work at all."""
        try:
            await self._loop.run()
        finally:
            await self._agents.aclose()

    async def health(self) -> JsonObject:
        """Return the worker's health.

        `status` is `ok`, `draining`, or `error` if the engine does not respond or the store has a newer schema that
        this version cannot write.
        """
        return {
            "worker": worker_name(),
            "driving": self.driving,
            "slots": self._slots,
            "queues": list(self._agents.queues),
            **await health_of(self._engine, self._reconciler, is_stopping=self.is_stopping),
        }

    @asynccontextmanager
    async def served(self, host: str, port: int) -> AsyncGenerator[int]:
        """Serve `/health`, `/healthz`, `/readyz` and `/metrics` while the block runs, and yield the port.

        `/health` and `/readyz` respond with 503 unless the status is `ok`, and `/healthz` as long as the process
        responds. Raises ConfigurationError if the port cannot be opened.
        """
        from aiohttp import web

        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get(READY, self._ready)
        app.router.add_get(ALIVE, self._alive)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            try:
                await site.start()
            except OSError as error:
                reason = error.strerror or str(error)
                raise ConfigurationError(f"cannot listen on {host}:{port}: {reason}; choose another port") from None
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def _health(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        found = await self.health()
        return web.json_response(found, status=readiness(found)[0])

    async def _ready(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        status, body = readiness(await self.health())
        return web.json_response(body, status=status)

    async def _alive(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        return web.json_response({"status": "ok"})

    async def _metrics(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        return web.Response(text=metrics_text(await self.health()), content_type="text/plain")


def metrics_text(health: JsonObject) -> str:
    """Convert the result of `health` to the Prometheus text format."""
    engine = as_object(health.get("engine"))
    values = {
        "sidestream_worker_up": int(health["status"] == "ok"),
        "sidestream_worker_runs": health["driving"],
        "sidestream_worker_slots": health["slots"],
        "sidestream_tasks_queued": engine.get("queued"),
        "sidestream_tasks_running": engine.get("running"),
        "sidestream_tasks_waiting": engine.get("waiting"),
        "sidestream_oldest_queued_seconds": engine.get("oldest_queued_s"),
        "sidestream_oldest_lease_seconds": engine.get("oldest_lease_s"),
        "sidestream_takeovers": engine.get("takeovers"),
    }
    known = {name: value for name, value in values.items() if value is not None}
    return "".join(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in known.items())
