"""Overrides: for the tasks begun meanwhile, an agent runs with another model or other settings."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from msgspec import Struct

from sidestream.agent.models import Models
from sidestream.agent.settings import CallSettings, CommonSettings


class Override(Struct, frozen=True):
    """What takes the place of an agent's own."""

    models: Models | None = None
    settings: CommonSettings = {}

    def applied(self, call: CallSettings) -> CallSettings:
        """The settings of a call; those of the override win."""
        return {**call, **self.settings}


_NONE = Override()
_active: ContextVar[Mapping[int, Override]] = ContextVar("sidestream_overrides", default=MappingProxyType({}))
"""By the id of the agent, which the block that overrides it keeps alive."""


def override_of(agent: object) -> Override:
    """The override of an agent in this context."""
    return _active.get().get(id(agent), _NONE)


@contextmanager
def overridden(agent: object, models: Models | None, settings: CommonSettings) -> Generator[None]:
    """Overrides an agent in this context, on top of what overrides it already."""
    before = _active.get()
    outer = override_of(agent)
    inner = Override(models or outer.models, {**outer.settings, **settings})
    _active.set({**before, id(agent): inner})
    try:
        yield
    finally:
        # No token: a test runner may leave the block of a fixture in another context than it entered it.
        left = {key: value for key, value in _active.get().items() if key != id(agent)}
        _active.set({**left, id(agent): before[id(agent)]} if id(agent) in before else left)
