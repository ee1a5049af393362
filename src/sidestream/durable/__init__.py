"""Runs that outlive the process that drives them.

An engine decides who drives a run and when; the log has what happened. Nothing streams through the engine.

    store = open_store("postgresql://localhost/app")
    engine = open_engine("embedded", store)
    client = RunClient(agent, "support@2", store=store, engine=engine)   # begins and follows runs
    await WorkerService(store, engine, {"support@2": agent}).run()       # drives them
"""

from typing import TYPE_CHECKING

from sidestream.lazy import lazy_names

if TYPE_CHECKING:
    from sidestream.durable.client import RunClient as RunClient
    from sidestream.durable.engines.opening import open_engine as open_engine
    from sidestream.durable.engines.protocol import (
        Claim as Claim,
        Drive as Drive,
        Engine as Engine,
        EngineError as EngineError,
        EngineStats as EngineStats,
        LeaseLostError as LeaseLostError,
        Outcome as Outcome,
        Task as Task,
        TaskHeldError as TaskHeldError,
    )
    from sidestream.durable.worker.service import WorkerService as WorkerService

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "durable.client": "RunClient",
        "durable.engines.opening": "open_engine",
        "durable.engines.protocol": (
            "Claim Drive Engine EngineError EngineStats LeaseLostError Outcome Task TaskHeldError"
        ),
        "durable.worker.service": "WorkerService",
    },
)
