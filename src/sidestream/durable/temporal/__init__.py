"""The engine on Temporal: a workflow per conversation, a task queue per agent.

Nothing but ids, positions and times is stored there. Needs the extra `temporal`, which is imported when it is used.
"""

from typing import TYPE_CHECKING

from sidestream.errors import MissingExtraError

if TYPE_CHECKING:
    from sidestream.durable.temporal.engine import TemporalEngine

__all__ = ["open_temporal"]


def open_temporal(url: str) -> "TemporalEngine":
    """The engine at `temporal://host:port/namespace`. Connects when it is first used.

    Raises ConfigurationError for an invalid URL, and MissingExtraError.
    """
    try:
        import temporalio  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise MissingExtraError("temporal", "the engine Temporal") from None
    from sidestream.durable.temporal.address import parse_address
    from sidestream.durable.temporal.engine import TemporalEngine

    return TemporalEngine(parse_address(url))
