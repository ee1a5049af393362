"""Message histories: messages and their parts, the fold that builds them from the stream, repair, and sessions.

May import `stream` and the modules at the root of `sidestream`.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "messages.message": "ToolPart messages_from_json messages_to_json strip_metadata",
        "messages.repair": "Problem repair_history validate_history",
    },
)
