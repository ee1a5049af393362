"""HTTP requests, streams, downloads and retries. No other package opens sockets to providers.

May import `transport`, `text` and the modules at the root of `sidestream`.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "wire.http": "HttpTransport",
        "wire.socket.transport": "WebSocketTransport",
    },
)
