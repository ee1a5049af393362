"""Claim tokens: strings that compare greater for later claims."""

import re

_TOKEN = re.compile(r"([0-9a-f]{12})-([0-9a-f]{8})")


def token_at(time_s: float, count: int = 0) -> str:
    """Return a token for this time, in seconds since 1970.

    `count` orders tokens of the same millisecond. The time comes first, and always from the engine's clock, so that a
    store can switch engines.
    """
    return f"{max(int(time_s * 1000), 0):012x}-{count:08x}"


def token_after(previous: str, time_s: float) -> str:
    """Return a token for this time that is greater than the previous one, even if the clock went backwards."""
    token = token_at(time_s)
    if token > previous:
        return token
    found = _TOKEN.fullmatch(previous)
    if found is None:
        return token_at(int(previous.replace("-", "")[:12], 16) / 1000 + 0.001)
    return f"{found[1]}-{int(found[2], 16) + 1:08x}"
