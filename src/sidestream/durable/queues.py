"""Queues: one per agent, by its name with its version, and one for runs whose agent is a model string."""

from collections.abc import Container

from sidestream.durable.jobs import Job
from sidestream.durable.protocol import MODELS
from sidestream.errors import ConfigurationError
from sidestream.providers.registry import ModelString, find_provider


def queue_of(job: Job, agents: Container[str]) -> str:
    """The queue of a run; `agents` are the names of agents that are known here, and others are model strings."""
    return job.agent if job.agent in agents else MODELS


def queue_of_any(job: Job) -> str:
    """The queue of a run whose agent is not known here: that of model strings if it is one."""
    return MODELS if is_model_string(job.agent) else job.agent


def is_model_string(name: str) -> bool:
    """True if the name of an agent begins with that of a provider."""
    try:
        find_provider(ModelString.parse(name).provider)
    except ConfigurationError:
        return False
    return True
