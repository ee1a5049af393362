"""Conversion of arguments that stream in pieces, each with a JSON path, to one growing JSON text.

Pieces arrive in text order. A piece for a container that is already closed cannot be appended. From then on no more
text is emitted, and only the call's parsed input is complete.
"""

import re
from itertools import pairwise
from typing import Any

from sidestream import jsontext
from sidestream.jsontext import is_array, is_object
from sidestream.providers.google.decode.shapes import PartialArg

Path = tuple[str | int, ...]
_STEP = re.compile(r"""\.([^.\[\]'"]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_ESCAPE = re.compile(r"\\(.)")


def parse_path(path: str) -> Path:
    """Parse a path such as `$.recipe.steps[0]` into keys and indices. Raises ValueError if it is malformed."""
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            break
        name, index, single, double = match.groups()
        quoted = single if single is not None else double
        steps.append(int(index) if index is not None else name if name is not None else _ESCAPE.sub(r"\1", quoted))
        at = match.end()
    is_path = path.startswith("$") and at == len(path) and steps and isinstance(steps[0], str)
    if not is_path or len(steps) > jsontext.MAX_DEPTH:
        raise ValueError(f"{path!r} is not a valid argument path")
    return tuple(steps)


class Arguments:
    """The arguments of one call while they stream."""

    def __init__(self) -> None:
        self._value: dict[str, Any] = {}
        self._more: list[str] = []
        """Pieces of the open string that are not in the value yet."""
        self.is_text = True
        """Whether the text can still be appended to."""
        self._has_begun = False
        self._inside: Path = ()  # keys of the containers that are open in the text
        self._kinds: list[type] = [dict]  # their types, starting with the root
        self._entries = [0]
        self._string: Path | None = None  # path of the open string

    @property
    def value(self) -> dict[str, Any]:
        """Arguments so far."""
        self._settle()
        return self._value

    def replace(self, value: dict[str, Any]) -> None:
        """Set all arguments at once. No more text is emitted."""
        self.is_text, self._value, self._more, self._string = False, value, [], None

    def _settle(self) -> None:
        if self._more and self._string is not None:
            pieces, self._more = self._more, []
            *holders, key = self._string
            node: Any = self._value
            for holder in holders:
                node = _get(node, holder)
            _set(node, key, "".join([_get(node, key), *pieces]))

    def add(self, piece: PartialArg) -> str:
        """Add a piece and return its text. Raises ValueError, without changing anything, if it does not fit."""
        path, value = parse_path(piece.json_path), _value(piece)
        is_more = path == self._string and isinstance(value, str)
        self._check(path)
        is_new = not is_more and self._is_new(path)
        if is_more:
            self._more.append(value)
        else:
            self._settle()
            self._place(path, value)
        self.is_text = self.is_text and (is_more or is_new)
        text = ""
        if self.is_text:
            text = jsontext.escape(value) if is_more else self._move(path) + self._start(value)
        if isinstance(value, str) and piece.will_continue:
            self._string = path
        elif isinstance(value, str):
            text += '"' if self.is_text else ""
            self._settle()
            self._string = None
        return text

    def end(self) -> str:
        """Return the text that closes everything still open."""
        if not self.is_text:
            return ""
        if not self._has_begun:
            return "{}"
        return self._close(0) + "}"

    def _check(self, path: Path) -> None:
        """Check that a piece fits the arguments so far.

        Objects have names, arrays have no gaps, and scalars have no members. Raises ValueError if it does not fit.
        """
        node: Any = self._value
        for key in path:
            if isinstance(key, int):
                fits = key <= len(node) if is_array(node) else node is None and key == 0
            else:
                fits = node is None or is_object(node)
            if not fits:
                raise ValueError(f"{path} does not fit the arguments so far")
            node = _get(node, key)

    def _place(self, path: Path, value: Any) -> None:
        node: Any = self._value
        for key, following in pairwise(path):
            inner: Any = _get(node, key)
            if inner is None:
                inner = [] if isinstance(following, int) else {}
                _set(node, key, inner)
            node = inner
        _set(node, path[-1], value)

    def _is_new(self, path: Path) -> bool:
        """Return whether the path, from the open container on, is not in the text yet."""
        shared = _shared(self._inside, path[:-1])
        node: Any = self._value
        for key in path[:shared]:
            node = _get(node, key)
        key = path[shared]
        return key == len(node) if is_array(node) else key not in node

    def _move(self, path: Path) -> str:
        """Return the text between the end of the last piece and the start of this one."""
        text = "" if self._has_begun else "{"
        self._has_begun = True
        text += self._close(_shared(self._inside, path[:-1]))
        for depth in range(len(self._inside), len(path) - 1):
            kind = list if isinstance(path[depth + 1], int) else dict
            text += self._label(path[depth]) + ("[" if kind is list else "{")
            self._kinds.append(kind)
            self._entries.append(0)
        self._inside = path[:-1]
        return text + self._label(path[-1])

    def _close(self, depth: int) -> str:
        text = '"' if self._string is not None else ""
        self._settle()
        self._string = None
        while len(self._inside) > depth:
            self._inside = self._inside[:-1]
            self._entries.pop()
            text += "]" if self._kinds.pop() is list else "}"
        return text

    def _label(self, key: str | int) -> str:
        comma = "," if self._entries[-1] else ""
        self._entries[-1] += 1
        return comma if isinstance(key, int) else f"{comma}{jsontext.dumps(key).decode()}:"

    def _start(self, value: Any) -> str:
        return '"' + jsontext.escape(value) if isinstance(value, str) else jsontext.dumps(value).decode()


class ClientCall:
    """A client tool call whose arguments stream."""

    __slots__ = ("arguments", "entry", "given_id", "id", "name")

    def __init__(self, call_id: str, given_id: str | None, name: str, entry: dict[str, Any]) -> None:
        self.id = call_id
        self.given_id = given_id
        self.name = name
        self.entry = entry
        """Layout entry of the call, filled when the call is complete."""
        self.arguments = Arguments()


def _value(piece: PartialArg) -> Any:
    for value in (piece.string_value, piece.number_value, piece.bool_value):
        if value is not None:
            return value
    if piece.null_value is None:
        raise ValueError("the argument piece has no value")
    return None


def _shared(a: Path, b: Path) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y or type(x) is not type(y):
            break
        length += 1
    return length


def _get(node: Any, key: str | int) -> Any:
    if is_array(node):
        return node[key] if isinstance(key, int) and key < len(node) else None
    return node.get(str(key)) if is_object(node) else None


def _set(node: Any, key: Any, value: Any) -> None:
    if is_array(node) and key == len(node):
        node.append(value)
    else:
        node[key] = value
