"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.wire.http import (
    HttpTransport as HttpTransport,
)
from sidestream.wire.socket.transport import (
    WebSocketTransport as WebSocketTransport,
)
