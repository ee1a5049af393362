"""What a program sees of an answer: every object that a library's loop yielded, flattened to its values.

A value keeps its path and the class that holds it, so that it can be judged whose type it has. Only the standard
library is used here: it runs in the environment of each peer.
"""

import base64
import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Any

_DEPTH = 14
_LONGEST = 20_000
# References of a run back to the agent and its settings, which hold nothing of the answer.
_SKIPPED = frozenset({"agent", "new_agent", "last_agent", "_agent", "ctx", "context", "context_wrapper"})


class Recorder:
    """Records what one program sees of one answer."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []
        self.error: str | None = None
        self.is_loop_over = False
        self.warnings: list[str] = []

    def event(self, value: Any) -> None:
        """An object that the loop over the stream yielded."""
        self.events.append(_flat(value))

    def end_of_loop(self) -> None:
        """The loop over the stream has ended without an error."""
        self.is_loop_over = True

    def result(self, value: Any) -> None:
        """The final result, or an object that it consists of."""
        self.results.append(_flat(value))

    def as_json(self) -> dict[str, Any]:
        # A copy: Python 3.13.0 empties lists that only the dict of a collected object still holds.
        return dict(vars(self))


def _flat(value: Any) -> dict[str, Any]:
    kind = _name(type(value)) if not isinstance(value, Mapping) else str(value.get("type", "dict"))
    return {"type": kind, "leaves": [list(leaf) for leaf in _leaves(value, kind.rpartition(".")[2], "", 0, set())]}


def _leaves(value: Any, path: str, owner: str, depth: int, inside: set[int]) -> Iterator[tuple[str, str, Any]]:
    """Path, the class that holds it, value."""
    match value:
        case None | bool() | int() | float():
            yield path, owner, value
        case enum.Enum():
            yield path, owner, value.value
        case str():
            yield path, owner, value[:_LONGEST]
        case bytes() | bytearray():
            yield path, owner, base64.b64encode(value).decode()[:_LONGEST]
        case _ if depth < _DEPTH and id(value) not in inside:
            for key, child, holder in _children(value, owner):
                yield from _leaves(child, f"{path}{key}", holder, depth + 1, inside | {id(value)})
        case _:
            pass


def _children(value: Any, owner: str) -> Iterator[tuple[str, Any, str]]:
    if isinstance(value, Mapping):
        # The type of a plain dict stands in the path: it has no class that would name it.
        kind = value.get("type")
        label = f"<{kind}>" if isinstance(kind, str) else ""
        yield from ((f"{label}.{key}", child, owner) for key, child in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", child, owner) for index, child in enumerate(value))
    else:
        holder = _name(type(value))
        yield from ((f".{key}", child, holder) for key, child in _fields(value).items() if key not in _SKIPPED)


def _fields(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    names = getattr(type(value), "__struct_fields__", None)
    if names is not None:
        tag = getattr(type(value), "type", None)
        kind = {"type": tag} if isinstance(tag, str) else {}
        return kind | {name: getattr(value, name) for name in names}
    if hasattr(type(value), "__pydantic_fields__"):
        return {**vars(value), **(getattr(value, "__pydantic_extra__", None) or {})}
    return {}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
