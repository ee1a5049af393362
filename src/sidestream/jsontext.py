"""JSON encoding and decoding that is fast, and lenient where strict parsers fail.

JSON may contain lone surrogates (half of a pair, split between two deltas), and streams may contain invalid UTF-8.
msgspec rejects both, so this module falls back to the standard library for them.
"""

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

if TYPE_CHECKING:
    from json import JSONEncoder

Json = Any
"""A JSON value. Providers send any shape, so check it before use."""

JsonObject = dict[str, Any]

MAX_SHOWN_CHARACTERS = 100

MAX_DEPTH = 128
"""Maximum nesting of objects and arrays. APIs use about ten levels; far deeper values would overflow the stack."""

MAX_SHALLOW_BYTES = 2 * MAX_DEPTH
"""Length of JSON up to which it cannot nest too deeply, since each level takes two brackets."""
_LONG = 8192
"""Length of JSON, in bytes, from which searching for brackets is faster than counting them."""
_BRACKETS = rb'(?s)"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]'

_encoder = msgspec.json.Encoder()
_decode = msgspec.json.Decoder().decode


class NumberTooLong(ValueError):
    """JSON contains a number that Python cannot represent.

    It is an integer of too many digits (`sys.get_int_max_str_digits`, usually 4,300), or beyond the range of a float.
    """


def loads(data: bytes | str) -> Any:
    """Parse JSON, replacing invalid UTF-8 with U+FFFD.

    Raises ValueError if the text is not JSON, and NumberTooLong if it contains a number that Python cannot represent.
    """
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeError):
        import json

        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
        try:
            return json.loads(text, parse_constant=_refuse, parse_float=_finite)
        except json.JSONDecodeError:
            raise
        except ValueError as error:
            json.loads(text, parse_constant=_refuse, parse_int=len)  # Raises again unless a number was the cause.
            raise NumberTooLong("a number has too many digits or is beyond the range of a float") from error


def is_too_deep(data: bytes | str) -> bool:
    """Return whether the JSON text nests deeper than `MAX_DEPTH`."""
    if len(data) <= MAX_SHALLOW_BYTES:
        return False
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    if _has_few_brackets(raw) if len(raw) >= _LONG else raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    depth = deepest = 0
    for found in re.finditer(_BRACKETS, raw):
        bracket = found[0]
        if bracket in (b"[", b"{"):
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in (b"]", b"}"):
            depth -= 1
    # Text with unclosed brackets is not JSON at all.
    return deepest > MAX_DEPTH and depth == 0


def _has_few_brackets(raw: bytes) -> bool:
    """Return whether there are too few brackets for too deep a value.

    Long JSON is mostly the text or base64 of a file, in which searching for a byte is many times faster than counting.
    """
    left = MAX_DEPTH
    for bracket in b"[{":
        at = raw.find(bracket)
        while at >= 0:
            if not left:
                return False
            left -= 1
            at = raw.find(bracket, at + 1)
    return True


def _finite(number: str) -> float:
    # Infinity has no JSON form, so the value could be read but never written again.
    value = float(number)
    if math.isinf(value):
        raise ValueError("a number is beyond the range of a float")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def dumps(value: Any) -> bytes:
    """Encode compact JSON, accepting structs, tuples and bytes (as base64). Non-finite floats become null."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _escaped(value)


def canonical(value: Any) -> bytes:
    """Encode compact JSON with sorted keys, so that equal values have equal digests."""
    try:
        return msgspec.json.encode(value, order="deterministic")
    except UnicodeEncodeError:
        return _escaped(value, sort_keys=True)


def _escaped(value: Any, *, sort_keys: bool = False) -> bytes:
    """Encode as ASCII JSON, because lone surrogates have no UTF-8 form but can be escaped."""
    import json

    plain = msgspec.to_builtins(value)
    try:
        text = json.dumps(plain, separators=(",", ":"), sort_keys=sort_keys, allow_nan=False)
    except ValueError:
        text = json.dumps(_without_nan(plain), separators=(",", ":"), sort_keys=sort_keys)
    return text.encode("ascii")


def _without_nan(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _without_nan(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [_without_nan(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def escape(text: str) -> str:
    """Escape text for the inside of a JSON string, as ASCII, so that halves of a surrogate pair join when parsed."""
    return escaped([text])[0]


def escaped(texts: Iterable[str]) -> list[str]:
    """Escape each string as `escape` does."""
    from json.encoder import encode_basestring_ascii as quoted

    return [quoted(text)[1:-1] for text in texts]


def as_object(value: object) -> JsonObject:
    """Return the value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def as_list(value: object) -> list[Any]:
    """Return the value if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def is_object(value: Any) -> TypeGuard[JsonObject]:
    """Return whether the value is a JSON object."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Return whether the value is a JSON array."""
    return isinstance(value, list)


def without_none(fields: Mapping[str, Any]) -> JsonObject:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def object_in(text: bytes | str) -> JsonObject | None:
    """Parse a JSON object, or return None if the text is not JSON or not an object."""
    try:
        value = loads(text)
    except (ValueError, RecursionError):
        return None
    return value if is_object(value) else None


def objects(value: Any) -> list[JsonObject]:
    """Return the objects in an array, or none if the value is not an array."""
    return [entry for entry in value if is_object(entry)] if is_array(value) else []


def text_in(value: JsonObject, key: str) -> str | None:
    """Return the string under a key, or None if it is missing or not a string."""
    found = value.get(key)
    return found if isinstance(found, str) else None


@cache
def _readable() -> "JSONEncoder":
    import json

    return json.JSONEncoder(ensure_ascii=False, default=repr)


def shown(value: object) -> str:
    """Return the beginning of the value's JSON, for messages."""
    try:
        text = _readable().encode(value)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"
