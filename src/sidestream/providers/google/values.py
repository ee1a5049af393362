"""Reading values from Google's JSON."""

from datetime import datetime
from typing import Any

from sidestream.jsontext import JsonObject


def some_text(value: JsonObject, key: str) -> str | None:
    """The text under a key; None if it is empty or not text."""
    found = value.get(key)
    return found if isinstance(found, str) and found else None


def count_in(value: JsonObject, key: str) -> int:
    """The number under a key; 0 if it is missing or not an integer."""
    found = value.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def without_nothing(value: JsonObject) -> JsonObject:
    """The fields that are set."""
    return {key: content for key, content in value.items() if content is not None}


def seconds_of(time: Any) -> float | None:
    """A time such as `2026-01-31T00:00:00Z` in seconds since the epoch; None if it is not one."""
    try:
        return datetime.fromisoformat(time).timestamp() if isinstance(time, str) else None
    except (ValueError, OverflowError):
        return None
