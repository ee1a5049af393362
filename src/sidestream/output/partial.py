"""Parser for incomplete JSON."""

from typing import Any

from sidestream.jsontext import as_list, as_object


def partial_json(text: str) -> Any:
    """Parse the start of a JSON text, leaving out a number that may still grow.

    Strings may be cut anywhere. Returns None while there is no value.
    """
    from pydantic_core import from_json

    def parse(part: str) -> Any:
        try:
            return from_json(part, allow_partial="trailing-strings")
        except (ValueError, TypeError):  # not JSON, or half a character
            return None

    found = parse(text)
    head = text.rstrip("0123456789.+-eE")
    if len(head) < len(text) and type(_last(found)) in (int, float) and _last(parse(head + "null")) is None:
        # The text ends in a number that may be incomplete, rather than in a string or a key that ends in digits.
        return parse(head)
    return found


def _last(value: Any) -> Any:
    while entries := as_list(value) or list(as_object(value).values()):
        value = entries[-1]
    return value
