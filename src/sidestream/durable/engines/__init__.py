"""Engines, which decide which worker executes a run and when: their protocol, `open_engine`, and two engines."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

from sidestream.durable.engines.protocol import Engine
from sidestream.errors import ConfigurationError, MissingExtraError
from sidestream.store.protocol import SharedStore, Store
from sidestream.store.wrapped import shared
from sidestream.text.redaction import Secret, redact_url

GROUP = "sidestream.engines"
"""Entry point group of third-party engines, by URL scheme."""

EngineFactory = Callable[[SharedStore, str, float | None], Engine]
"""Function that opens the engine at a URL for the runs of a store.

The last argument is the lease in seconds; None means the engine's default.
"""


def open_engine(where: str, store: Store, *, lease_s: float | None = None) -> Engine:
    """Open the engine for the runs of a store.

    `where` is `embedded`, `temporal://host:port/namespace`, or the URL of an engine that a package registers under the
    entry point group `sidestream.engines`. `lease_s` is the time after which an unresponsive worker loses its runs.
    Raises MissingExtraError if the engine's library is not installed, ConfigurationError if the engine is unknown or
    the store cannot be shared.
    """
    where = Secret(where)  # It may hold a password, which a traceback with locals would show.
    if where == "embedded":
        from sidestream.durable.engines.embedded.engine import EmbeddedEngine

        return EmbeddedEngine(shared(store)) if lease_s is None else EmbeddedEngine(shared(store), lease_s=lease_s)
    return _factory(where)(shared(store), where, lease_s)


def _factory(where: str) -> EngineFactory:
    """Return the factory for this URL's scheme."""
    scheme, separator, _ = where.partition("://")
    if separator and scheme == "temporal":
        return _temporal
    found = entry_points(group=GROUP, name=scheme) if separator else ()
    for point in found:
        return point.load()
    others = sorted(f"{name}://…" for name in entry_points(group=GROUP).names)
    known = ", ".join(["embedded", "temporal://host:port/namespace", *others])
    raise ConfigurationError(f"{redact_url(where)!r} is not an engine; use one of: {known}")


def _temporal(store: SharedStore, url: str, lease_s: float | None) -> Engine:
    try:
        engine = import_module("sidestream.durable.engines.temporal").TemporalEngine
    except ModuleNotFoundError as error:
        raise MissingExtraError("temporal", "The Temporal engine") from error
    return engine(store, url) if lease_s is None else engine(store, url, lease_s=lease_s)
