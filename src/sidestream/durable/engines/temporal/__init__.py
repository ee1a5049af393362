"""The Temporal engine, with a workflow per conversation and a task queue per agent. Needs the extra `temporal`.

Temporal stores only conversation ids, agent names, positions and times.
"""

from sidestream.durable.engines.temporal.engine import TemporalEngine

__all__ = ["TemporalEngine"]
