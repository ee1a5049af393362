"""Embedded models: a small chat model on llama.cpp and an embeddings model. They need no key and no network.

`Agent("local")` needs no further setup. The first request starts its server, which all agents of the process share.
It stops at exit, or earlier with `await stop()`.
"""

from sidestream.providers.local.provider import PROVIDER
from sidestream.providers.local.server import stop

__all__ = ["PROVIDER", "stop"]
