"""An ASGI app that serves agents to front ends in any language, on top of one event log.

    from sidestream.server import create_app
    app = create_app({"support": agent}, store="talks.db")        # mount it, or: uvicorn module:app

Runs belong to the server, not to a request, and are recorded in the log. All subscribers (event streams, WebSockets,
the web UI, vendors' SDKs) read those records, so they see the same run, even after a reconnect or a restart.

Needs the extra `server`. May import `agent`, `protocols` and everything below them.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "server.app": "create_app",
        "server.settings": "Caps Page ServerSettings",
    },
)
