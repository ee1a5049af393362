"""Queues: one per agent, by its name with its version, and one for runs whose agent is a model string."""

from collections.abc import Container

from sidestream.durable.engines.protocol import MODELS
from sidestream.errors import ConfigurationError
from sidestream.providers.registry import ModelString, find_provider


def queue_of(agent: str, known: Container[str] = ()) -> str:
    """The queue for runs of an agent, or of a model string. Agents that are known here may be named like a model."""
    return MODELS if agent not in known and _is_model_string(agent) else agent


def _is_model_string(name: str) -> bool:
    """True if the name of an agent begins with that of a provider."""
    try:
        find_provider(ModelString.parse(name).provider)
    except ConfigurationError:
        return False
    return True
