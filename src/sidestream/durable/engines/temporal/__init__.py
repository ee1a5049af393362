"""The engine on Temporal: a workflow per conversation, a task queue per agent. Needs the extra `temporal`.

Ids of conversations, names of agents, positions and times are stored there, and nothing else.
"""

from sidestream.durable.engines.temporal.engine import TemporalEngine

__all__ = ["TemporalEngine"]
