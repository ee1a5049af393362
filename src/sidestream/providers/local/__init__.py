"""The embedded models: a small chat model on llama.cpp and one for embeddings. No key, no network.

`Agent("local")` needs no other setup. Its server is started by the first request, shared by all agents of the process
and stopped at exit; `await stop()` stops it earlier.
"""

from sidestream.providers.local.provider import PROVIDER
from sidestream.providers.local.server import stop

__all__ = ["PROVIDER", "stop"]
