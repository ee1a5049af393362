"""Opens an engine by its name or URL."""

from importlib import import_module

from sidestream.durable.protocol import Engine
from sidestream.errors import ConfigurationError, MissingExtraError
from sidestream.redaction import Secret, redact_url
from sidestream.store.protocol import SharedStore, Store
from sidestream.store.wrapped import shared

_ADAPTERS = {
    "absurd": ("sidestream.durable.absurd", "AbsurdEngine"),
    "temporal": ("sidestream.durable.temporal", "TemporalEngine"),
}
"""By the name of their extra: a class that takes the store, and the URL of its own server, if one is given."""


def open_engine(where: str, store: Store, *, lease_s: float | None = None) -> Engine:
    """The engine for the runs of a store: `embedded`, `absurd` (in the store's own PostgreSQL),
    `absurd+postgresql://user@host/database` or `temporal://host:port/namespace`.

    `lease_s` is after how long a silent worker loses its runs. Raises MissingExtraError if the library of the engine is
    not installed, ConfigurationError for a store that cannot be shared.
    """
    where = Secret(where)  # It may hold a password, which a traceback with locals would show.
    name, _, address = where.partition("://")
    match name:
        case "embedded" if name == where:
            from sidestream.durable.embedded.engine import EmbeddedEngine

            return EmbeddedEngine(shared(store)) if lease_s is None else EmbeddedEngine(shared(store), lease_s=lease_s)
        case "absurd" if name == where:
            return _adapter("absurd", shared(store), None, lease_s)
        case "absurd+postgresql" | "absurd+postgres" if address:
            return _adapter("absurd", shared(store), Secret(where.removeprefix("absurd+")), lease_s)
        case "temporal" if name != where:
            return _adapter("temporal", shared(store), where, lease_s)
        case _:
            raise ConfigurationError(
                f"{redact_url(where)!r} is not an engine: use embedded, absurd, absurd+postgresql://host/database "
                "or temporal://host:port/namespace"
            )


def _adapter(extra: str, store: SharedStore, url: str | None, lease_s: float | None) -> Engine:
    module, name = _ADAPTERS[extra]
    try:
        adapter = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(extra, f"The engine {extra}") from error
    return adapter(store, url) if lease_s is None else adapter(store, url, lease_s=lease_s)
