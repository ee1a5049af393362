"""Comparison of two requests, in which ids, times and nonces may differ.

A request that is made again has other call ids, response ids and times than before. Such values are equal if they are
of the same kind, and if the same value on one side is always the same on the other. Everything else must be equal.
"""

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

from msgspec import Struct

from sidestream.files.media_types import from_base64
from sidestream.jsontext import as_list, as_object, loads, objects
from sidestream.parts import Json
from sidestream.text.redaction import REDACTED, redact

_HOST: Final = r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b"
EMAIL: Final = re.compile(
    rf"\b[A-Za-z0-9._%+-]+@{_HOST}"
    # In a URL, after its beginning or an escaped character.
    rf"|(?:(?<=%[0-9A-Fa-f]{{2}})|(?<![\w%.+-]))[A-Za-z0-9._+-]+%40{_HOST}"
)
HIDDEN_HOST: Final = "redacted.example"
"""Host of the addresses that stand for redacted e-mail addresses."""

_QUERY: Final = re.compile(
    r"(?i)([?&][\w.%-]*(?:token|secret|passw|credential|signature|key|\bsig)[\w.%-]*=)[^&\s\"'<>#\\]+"
)
"""Secrets in the queries of URLs."""

BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1f]")

_SHOWN: Final = 60
"""Maximum length of a shown value, in characters."""
_IDS: Final = frozenset(
    {"id", "uuid", "container", "call_id", "toolCallId", "tool_call_id", "tool_use_id", "responseId"}
)
"""Fields that hold an id, besides those that end with `_id` or `Id`."""
_NOT_IDS: Final = frozenset({"model_id", "modelId", "skill_id", "vector_store_id", "connector_id", "user_id"})
"""Fields whose ids the program chooses."""
_TIMES: Final = re.compile(r"created|timestamp|nonce|.*(?:_at|_time|At|Time|_timestamp|Timestamp|_nonce)")
_FIRST_TIME: Final = 10**9
"""Smaller numbers, such as a timeout, are not times."""
_OPAQUE: Final = frozenset(
    {"signature", "thoughtSignature", "thought_signature", "encrypted_content", "encrypted_index", "encrypted_stdout"}
)
"""Fields with data that only the provider can read, which is new in each response."""
_DATA: Final = frozenset(
    {"input", "arguments", "args", "output", "response", "parameters", "input_schema", "parametersJsonSchema", "schema"}
)
"""Fields with an object of the program, in which names of fields say nothing about ids and times."""
_INSTRUCTIONS: Final = ("instructions", "system", "systemInstruction", "system_instruction")
_SYSTEM: Final = frozenset(_INSTRUCTIONS)
_DAY = r"\d{4}-\d\d-\d\d"
_TOKENS: Final = re.compile(
    r"(?P<uuid>\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b)"
    rf"|(?P<time>\b{_DAY}[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|GMT)\b|[+-]\d\d:?\d\d\b)?)"
    r"|(?P<stamp>\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d? [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d (?:GMT|[+-]\d{4}))"
    r"|(?P<boundary>-{4,}\w*Boundary\w{8,}|(?<=boundary=)[\w-]{8,})"
    # Prefix, then a random part, which has a digit: call_8fK2…, toolu_01…, file-Ab1…
    r"|(?P<id>\b(?:[a-z]{2,12}_){1,2}(?=[A-Za-z]*\d)[A-Za-z0-9]{12,}\b|\bfile-(?=[A-Za-z]*\d)[A-Za-z0-9]{12,}\b)"
    rf"|(?P<email>{EMAIL.pattern})"
)
_KIND: Final = re.compile(r"[a-z]+(?:_[a-z]+)*(?=[_-](?=[A-Za-z]*\d)\w{8,})")
_DATES: Final = re.compile(rf"\b{_DAY}\b")
"""Dates, which may differ in a system prompt that names the day."""


class Missing(NamedTuple):
    """Stands for a value that only the other request has."""

    def __repr__(self) -> str:
        return "nothing"


_Object = dict[str, Json]
MISSING: Final = Missing()
Change = Literal["value", "added", "removed", "order"]


class Difference(Struct, frozen=True):
    """A field that differs between two requests.

    `str()` names it with both values: `tools[1].description: 'Search…' → 'Find…'`.
    """

    path: str
    """Path such as `messages[3].content[0].text`. A path into a string of JSON continues: `arguments.city`."""
    before: Any
    """Value in the first request, or `MISSING`. A different order has the names of the entries."""
    after: Any
    change: Change = "value"

    def __str__(self) -> str:
        before, after = self.before, self.after
        if self.change == "order":
            return f"{self.path}: order {_shown(before)} → {_shown(after)}"
        if isinstance(before, str) and isinstance(after, str):
            before, after = _around(before, after)
        return f"{self.path or 'the request'}: {_shown(before)} → {_shown(after)}"

    def diff(self) -> str:
        """Return the lines of a unified diff of both values, or an empty string for a short value."""
        before, after = (_lines(value) for value in (self.before, self.after))
        if len(before) <= 1 and len(after) <= 1:
            return ""
        return "\n".join(difflib.unified_diff(before, after, "recorded", "now", lineterm="", n=1))


def without_secrets(text: str) -> str:
    """Replace what looks like a secret, also in the queries of URLs."""
    return _QUERY.sub(rf"\1{REDACTED}", redact(text))


def text_in_base64(data: str) -> str | None:
    """Return the text that base64 holds, or None if it holds something else."""
    decoded = from_base64(data)
    try:
        text = decoded.decode() if decoded else ""
    except UnicodeDecodeError:
        return None
    return None if not text or _CONTROL.search(text) else text


def system_in(body: Mapping[str, Json]) -> str:
    """Return the instructions of a request, in any API's form."""
    first, *_ = [*objects(body.get("messages")), *objects(body.get("input")), body]
    given = next((body[name] for name in _INSTRUCTIONS if body.get(name)), None)
    if given is None and first.get("role") in ("system", "developer"):
        given = first.get("content")
    if isinstance(given, str):
        return given
    blocks = as_list(as_object(given).get("parts", given))
    return "".join(str(as_object(block).get("text", "")) for block in blocks)


def is_opaque(name: str) -> bool:
    """Return whether a field holds data that only the provider can read."""
    return name in _OPAQUE


def first_difference(before: Json, after: Json, ignore: Collection[str] = ()) -> Difference | None:
    """Return the first field that differs between two requests, or None if they are equal.

    Fields are compared in the order of `before`. `ignore` holds paths that may differ, with all fields below them;
    `*` stands for any index, as in `messages[*].content`.
    """
    return next(iter(RequestComparison(ignore).differences(before, after)), None)


def all_differences(before: Json, after: Json, ignore: Collection[str] = ()) -> list[Difference]:
    """Return all fields that differ between two requests. An added or removed entry is one difference."""
    return list(RequestComparison(ignore).differences(before, after))


class _Place(NamedTuple):
    """Where a value is in a request."""

    path: str = ""
    name: str = ""
    """Name of its field, or of the field with its list."""
    is_system: bool = False
    """Whether it is in the system prompt."""
    is_data: bool = False
    """Whether it is in an object of the program, such as the input of a call."""

    def entry(self, at: int) -> "_Place":
        return self._replace(path=f"{self.path}[{at}]")

    def field(self, name: str) -> "_Place":
        return self._replace(path=f"{self.path}.{name}" if self.path else name, name=name)

    def of(self, value: Json) -> "_Place":
        """Return the place with what the value itself says about it."""
        is_system = self.is_system or self.name in _SYSTEM or _is_system(value)
        is_data = self.is_data or (self.name in _DATA and isinstance(value, dict) and not self.path.endswith("]"))
        if (is_system, is_data) == (self.is_system, self.is_data):
            return self
        return self._replace(is_system=is_system, is_data=is_data)

    @property
    def is_id(self) -> bool:
        name = self.name
        return not self.is_data and (name in _IDS or (name.endswith(("_id", "Id")) and name not in _NOT_IDS))

    @property
    def is_time(self) -> bool:
        return not self.is_data and _TIMES.fullmatch(self.name) is not None


class RequestComparison:
    """A comparison of the requests of two runs, which remembers the ids that stand for each other.

    Use one for all requests of a run, so that an id is the same in all of them.
    """

    def __init__(self, ignore: Collection[str] = (), *, is_exact: bool = False) -> None:
        escaped = (re.escape(path).replace(r"\*", r"\d+") for path in ignore)
        self._ignored = [re.compile(rf"{path}(?:[.\[].*)?", re.DOTALL) for path in escaped]
        self._is_exact = is_exact
        """Whether ids, times and nonces must be equal too."""
        self._names: tuple[dict[str, str], dict[str, str]] = ({}, {})
        """Ids of the first run → of the second, and the other way round."""

    def differences(self, before: Json, after: Json) -> Iterator[Difference]:
        """Yield the fields that differ."""
        yield from self._compared(_Place(), before, after)

    def _compared(self, place: _Place, before: Json, after: Json) -> Iterator[Difference]:
        if self._is_ignored(place.path):
            return
        place = place.of(before)
        match before, after:
            case dict(), dict():
                yield from self._objects(place, cast("_Object", before), cast("_Object", after))
            case list(), list():
                yield from self._lists(place, cast("list[Json]", before), cast("list[Json]", after))
            case str(), str():
                yield from self._strings(place, before, after)
            case _:
                is_time = not self._is_exact and place.is_time and _is_time(before) and _is_time(after)
                if not is_time and (before != after or isinstance(before, bool) != isinstance(after, bool)):
                    yield Difference(place.path, before, after)

    def _is_ignored(self, path: str) -> bool:
        return any(pattern.fullmatch(path) for pattern in self._ignored)

    def _objects(self, place: _Place, before: Mapping[str, Json], after: Mapping[str, Json]) -> Iterator[Difference]:
        after = self._with_hidden_names(before, after)
        for key in [*before, *(key for key in after if key not in before)]:
            inner = place.field(key)
            if key in before and key in after:
                yield from self._compared(inner, before[key], after[key])
            elif not self._is_ignored(inner.path):
                if key in before:
                    yield Difference(inner.path, before[key], MISSING, "removed")
                else:
                    yield Difference(inner.path, MISSING, after[key], "added")

    def _with_hidden_names(self, before: Mapping[str, Json], after: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the second object with the first one's names where they are redacted."""
        hidden = [key for key in before if HIDDEN_HOST in key and key not in after]
        for key in hidden if not self._is_exact else ():
            others = (other for other in after if other not in before)
            found = next((other for other in others if self._are_equal_texts(key, other, has_days=False)), None)
            if found is not None:
                after = {key if name == found else name: value for name, value in after.items()}
        return after

    def _lists(self, place: _Place, before: Sequence[Json], after: Sequence[Json]) -> Iterator[Difference]:
        if len(before) != len(after):
            yield from self._resized(place, before, after)
            return
        known = self._copied()
        found = [
            difference
            for at, (one, other) in enumerate(zip(before, after, strict=True))
            for difference in self._compared(place.entry(at), one, other)
        ]
        if len(found) > 1 and len(before) > 1:
            straight, self._names = self._names, known
            if self._is_reordered(place, before, after):
                yield Difference(place.path, *_labels(before, after), "order")
                return
            self._names = straight
        yield from found

    def _resized(self, place: _Place, before: Sequence[Json], after: Sequence[Json]) -> Iterator[Difference]:
        """Compare lists of different lengths: their equal entries at both ends, then what is between."""
        short = min(len(before), len(after))
        start = 0
        while start < short and self._are_equal(place, before[start], after[start]):
            start += 1
        end = 0
        while end < short - start and self._are_equal(place, before[-1 - end], after[-1 - end]):
            end += 1
        old, new = before[start : len(before) - end], after[start : len(after) - end]
        for at in range(max(len(old), len(new))):
            inner = place.entry(start + at)
            if at < len(old) and at < len(new):
                yield from self._compared(inner, old[at], new[at])
            elif at < len(old):
                yield Difference(inner.path, old[at], MISSING, "removed")
            else:
                yield Difference(inner.path, MISSING, new[at], "added")

    def _is_reordered(self, place: _Place, before: Sequence[Json], after: Sequence[Json]) -> bool:
        """Return whether each entry equals another one of the other list."""
        left = list(after)
        for entry in before:
            at = next((at for at, other in enumerate(left) if self._are_equal(place, entry, other)), None)
            if at is None:
                return False
            del left[at]
        return True

    def _are_equal(self, place: _Place, before: Json, after: Json) -> bool:
        """Return whether two values are equal. Only then are their ids remembered."""
        known = self._copied()
        if any(True for _ in self._compared(place, before, after)):
            self._names = known
            return False
        return True

    def _copied(self) -> tuple[dict[str, str], dict[str, str]]:
        return dict(self._names[0]), dict(self._names[1])

    def _strings(self, place: _Place, before: str, after: str) -> Iterator[Difference]:
        if self._is_exact:
            if before != after:
                yield Difference(place.path, before, after)
            return
        if place.name in _OPAQUE and not place.is_data:
            return
        if place.is_id:
            if not (_are_of_one_kind(before, after) and self._are_same(before, after)):
                yield Difference(place.path, before, after)
            return
        if (
            before != after
            and before[:1] in ("{", "[")
            and (old := _parsed(before)) is not None
            and (new := _parsed(after)) is not None
        ):
            yield from self._compared(place._replace(is_data=True), old, new)
        elif not self._are_equal_texts(before, after, has_days=place.is_system or place.is_time):
            yield Difference(place.path, before, after)

    def _are_equal_texts(self, before: str, after: str, *, has_days: bool) -> bool:
        if before == after:
            return True
        if before == REDACTED:
            return True
        if any(mark in (opened := _opened(before)) for mark in (HIDDEN_HOST, REDACTED)):
            before, after = opened, _opened(after)
        if REDACTED in before:
            after = without_secrets(after)
        (old, old_tokens), (new, new_tokens) = (_split(text, has_days=has_days) for text in (before, after))
        if old != new or [kind for kind, _ in old_tokens] != [kind for kind, _ in new_tokens]:
            return False
        return all(
            self._are_equal_tokens(kind, one, other)
            for (kind, one), (_, other) in zip(old_tokens, new_tokens, strict=True)
        )

    def _are_equal_tokens(self, kind: str, before: str, after: str) -> bool:
        if kind == "email" and not before.endswith(HIDDEN_HOST):
            return before == after
        is_time = kind in ("time", "stamp")
        return is_time or (_are_of_one_kind(before, after) and self._are_same(before, after))

    def _are_same(self, before: str, after: str) -> bool:
        """Return whether two ids can stand for each other."""
        forth, back = self._names
        return forth.setdefault(before, after) == after and back.setdefault(after, before) == before


def _opened(text: str) -> str:
    """Replace base64 by the text that it holds."""
    return BASE64.sub(lambda found: text_in_base64(found.group()) or found.group(), text)


def _split(text: str, *, has_days: bool) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the text around ids and times, and these with their kinds."""
    rest: list[str] = []
    tokens: list[tuple[str, str]] = []
    at = 0
    for found in _TOKENS.finditer(text):
        rest.append(text[at : found.start()])
        tokens.append((found.lastgroup or "", found.group()))
        at = found.end()
    rest.append(text[at:])
    if has_days:
        rest = [_DATES.sub("day", piece) for piece in rest]
    return rest, tokens


def _is_time(value: Json) -> bool:
    return isinstance(value, int | float) and value > _FIRST_TIME


def _is_system(value: Json) -> bool:
    return as_object(value).get("role") in ("system", "developer")


def _are_of_one_kind(before: str, after: str) -> bool:
    """Return whether two ids do not say that they are of different kinds, as `call_…` and `msg_…` do."""
    kinds = {found.group() for found in map(_KIND.match, (before, after)) if found is not None}
    return len(kinds) < 2


def _parsed(text: str) -> Json:
    """Return the object or list that a string holds as JSON, or None."""
    try:
        value = loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("Json", value) if isinstance(value, dict | list) else None


def _labels(before: Sequence[Json], after: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """Return the names of the entries of two lists in different order, or the entries if the names are the same."""
    names = [_label(entry) for entry in before], [_label(entry) for entry in after]
    return names if names[0] != names[1] else (list(before), list(after))


def _label(entry: Json) -> Json:
    fields = as_object(entry)
    own = as_object(fields.get("function")).get("name")
    names = (fields.get(field) for field in ("name", "id", "call_id", "tool_call_id", "tool_use_id", "role", "type"))
    return own or next((name for name in names if name), entry)


def _around(before: str, after: str) -> tuple[str, str]:
    """Return the part of two strings that differs, with a few characters around it."""
    if max(len(before), len(after)) <= _SHOWN:
        return before, after
    start = next(
        (at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other),
        min(len(before), len(after)),
    )
    start = max(start - _SHOWN // 4, 0)
    mark = "…" if start else ""
    return mark + before[start:], mark + after[start:]


def _shown(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…" + ("'" if isinstance(value, str) else "")


def _lines(value: Any) -> list[str]:
    if value is MISSING:
        return []
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=repr)
    return text.splitlines()
