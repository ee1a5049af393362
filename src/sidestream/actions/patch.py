"""File changes that a model proposes, and their application."""

from typing import Annotated

from sidestream.actions.values import ActionValue, Tagged


class CreateFile(ActionValue, frozen=True, tag_field="type", tag="create_file"):
    """A new file; `diff` holds its lines, each after a `+`."""

    path: str
    diff: str


class UpdateFile(ActionValue, frozen=True, tag_field="type", tag="update_file"):
    """Changes of a file; `diff` holds hunks with some lines around each change."""

    path: str
    diff: str


class DeleteFile(ActionValue, frozen=True, tag_field="type", tag="delete_file"):
    """A file to delete."""

    path: str


PatchOperation = Annotated[CreateFile | UpdateFile | DeleteFile, Tagged()]
"""One change of one file: `match operation: case DeleteFile(path=path): …`."""


class PatchError(ValueError):
    """A diff does not fit the text. The message is for the model."""


def apply_diff(text: str, diff: str) -> str:
    """Return the text after applying an `UpdateFile` diff, or a `CreateFile` diff to an empty string.

    Raises PatchError if the diff is malformed or does not fit.
    """
    lines = text.split("\n")
    place = 0
    for hunk in _hunks(diff):
        before = [line for sign, line in hunk.lines if sign != "+"]
        if hunk.anchor:
            place = _find(lines, [hunk.anchor], place) + 1
        if before:
            place = _find(lines, before, place, from_end=hunk.is_at_end)
        elif not hunk.anchor:
            place = len(lines) - (lines[-1] == "")
        after = _changed(hunk, lines[place:])
        lines[place : place + len(before)] = after
        place += len(after)
    return "\n".join(lines)


class _Hunk:
    """A hunk: its lines with their signs, the line to search for first, and whether it ends the file."""

    def __init__(self, anchor: str = "") -> None:
        self.lines: list[tuple[str, str]] = []
        self.anchor = anchor
        self.is_at_end = False


def _hunks(diff: str) -> list[_Hunk]:
    hunks = [_Hunk()]
    for line in diff.removesuffix("\n").split("\n"):
        sign = line[:1] or " "
        if line.startswith("@@"):
            hunks.append(_Hunk(line[2:].strip()))
        elif line.startswith("*** End of File"):
            hunks[-1].is_at_end = True
        elif sign in "+- ":
            hunks[-1].lines.append((sign, line[1:]))
        else:
            raise PatchError(f"a line of the diff begins with none of '+', '-', ' ' and '@@': {line[:80]!r}")
    return [hunk for hunk in hunks if hunk.lines]


def _changed(hunk: _Hunk, lines: list[str]) -> list[str]:
    """Return the lines of a hunk after the change. Unchanged lines keep the file's own whitespace."""
    after: list[str] = []
    rest = iter(lines)
    for sign, line in hunk.lines:
        if sign == "+":
            after.append(line)
            continue
        own = next(rest)
        if sign == " ":
            after.append(own)
    return after


def _find(lines: list[str], wanted: list[str], start: int, *, from_end: bool = False) -> int:
    """Return the index of the lines, ignoring surrounding whitespace only if there is no exact match.

    Raises PatchError if they are not found.
    """
    places = range(start, len(lines) - len(wanted) + 1)
    for plain, sought in ((lines, wanted), ([line.strip() for line in lines], [line.strip() for line in wanted])):
        for place in reversed(places) if from_end else places:
            if plain[place : place + len(sought)] == sought:
                return place
    raise PatchError(f"the file has no lines {wanted[0][:80]!r} … after line {start}; read it again")
