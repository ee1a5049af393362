"""Reading values from Google's JSON."""

from sidestream.jsontext import JsonObject


def some_text(value: JsonObject, key: str) -> str | None:
    """The text under a key; None if it is empty or not text."""
    found = value.get(key)
    return found if isinstance(found, str) and found else None


def without_nothing(value: JsonObject) -> JsonObject:
    """The fields that are set."""
    return {key: content for key, content in value.items() if content is not None}
