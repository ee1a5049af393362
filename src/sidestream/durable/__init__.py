"""Runs that outlive the process that drives them.

An engine decides who drives a run and when; the log has what happened. Nothing streams through the engine.
"""

from sidestream.durable.protocol import (
    Claim,
    Drive,
    Engine,
    EngineError,
    EngineStats,
    LeaseLostError,
    Outcome,
    Task,
    TaskHeldError,
)

__all__ = [
    "Claim",
    "Drive",
    "Engine",
    "EngineError",
    "EngineStats",
    "LeaseLostError",
    "Outcome",
    "Task",
    "TaskHeldError",
]
