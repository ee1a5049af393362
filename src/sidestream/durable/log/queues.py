"""Queue names. Each agent has one, named after the agent with its version; all model strings share another."""

from collections.abc import Container

from sidestream.durable.engines.protocol import MODELS
from sidestream.errors import ConfigurationError
from sidestream.providers.registry import ModelString, find_provider


def queue_of(agent: str, known: Container[str] = ()) -> str:
    """Return the queue for runs of an agent or model string. Agents in `known` may be named like a model."""
    return MODELS if agent not in known and _is_model_string(agent) else agent


def _is_model_string(name: str) -> bool:
    """Return whether an agent's name starts with the name of a provider."""
    try:
        find_provider(ModelString.parse(name).provider)
    except ConfigurationError:
        return False
    return True
