"""Web pages as documents: the egress policy, a fetcher with a validating cache, and the conversion.

`Fetcher` fetches; `policy` decides, without I/O; `cited` reads what an answer cites. May import documents and `wire`.
"""

from sidestream.portable.fetch.fetcher import Fetched, Fetcher
from sidestream.portable.fetch.policy import EgressPolicy

__all__ = ["EgressPolicy", "Fetched", "Fetcher"]
