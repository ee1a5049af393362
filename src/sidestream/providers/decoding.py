"""What decoders share. Pure."""

from typing import Any, cast

from sidestream import jsontext


def parse_input(text: str | None) -> tuple[Any, str | None]:
    """The input of a call and what is wrong with it. Nothing, `null` and blanks are an empty object."""
    if text is None or not text.strip() or text.strip() == "null":
        return {}, None
    try:
        value = jsontext.loads(text)
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are not JSON: {error}"
    if not isinstance(value, dict):
        return None, "the arguments are JSON but not an object"
    return cast(dict[str, Any], value), None
