"""The turn, a state machine without I/O, with its state as plain data and the reducer that it shares with the log.

May import `providers` (the protocol only), `tools`, `messages`, `stream` and the modules at the root of `sidestream`.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "turn.state": "TURN_STATUSES TurnStatus",
    },
)
