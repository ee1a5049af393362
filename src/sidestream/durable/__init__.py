"""Runs that outlive the process that executes them.

An engine decides which worker executes a run and when. The log records what happened; no output passes through the
engine.

    store = open_store("postgresql://localhost/app")
    engine = open_engine("embedded", store)
    client = RunClient(agent, "support@2", store=store, engine=engine)   # starts and follows runs
    await WorkerService(store, engine, {"support@2": agent}).run()       # executes them
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "durable.client": "RunClient",
        "durable.engines": "open_engine",
        "durable.engines.protocol": (
            "Claim Drive Engine EngineError EngineStats LeaseLostError Outcome Task TaskHeldError"
        ),
        "durable.worker.service": "WorkerService",
    },
)
