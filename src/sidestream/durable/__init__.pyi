"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.durable.client import RunClient as RunClient
from sidestream.durable.engines import open_engine as open_engine
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
