"""The server: an ASGI app over one event log, for front ends in any language.

    from sidestream.server import create_app
    app = create_app({"support": agent}, store="talks.db")        # mount it, or: uvicorn module:app

A run belongs to the server. It is written to the log as it goes, and every reader (a stream of events, a WebSocket, the
page, a vendor's SDK) is a fold of the records that the log has: they see the same, also after a reconnect or a restart.

Needs the extra `server`. May import `agent`, `protocols` and everything below them.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "server.app": "create_app",
        "server.settings": "Caps ServerSettings",
    },
)
