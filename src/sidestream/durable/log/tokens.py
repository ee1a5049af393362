"""Tokens of claims: texts of which that of a later claim is the greater."""

import re

_TOKEN = re.compile(r"([0-9a-f]{12})-([0-9a-f]{8})")


def token_at(time_s: float, count: int = 0) -> str:
    """A token of this time, in seconds since 1970; `count` orders those of one moment.

    The time comes first and from one clock, the engine's, so that a store can change its engine.
    """
    return f"{max(int(time_s * 1000), 0):012x}-{count:08x}"


def token_after(previous: str, time_s: float) -> str:
    """A token of this time that is greater than the previous one, whatever the clock says."""
    token = token_at(time_s)
    if token > previous:
        return token
    found = _TOKEN.fullmatch(previous)
    if found is None:
        return token_at(int(previous.replace("-", "")[:12], 16) / 1000 + 0.001)
    return f"{found[1]}-{int(found[2], 16) + 1:08x}"
