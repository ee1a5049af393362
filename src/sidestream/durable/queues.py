"""Queues: one per agent, by its name with its version, and one for runs whose agent is a model string."""

from collections.abc import Container

from sidestream.durable.jobs import Job
from sidestream.durable.protocol import MODELS


def queue_of(job: Job, agents: Container[str]) -> str:
    """The queue of a run; `agents` are the names of agents that are known here."""
    return job.agent if job.agent in agents else MODELS
