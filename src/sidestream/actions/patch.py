"""Changes of files that a model proposes."""

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
    """A diff that does not fit the text; the message is for the model."""


def apply_diff(text: str, diff: str) -> str:
    """The text after the changes of an `UpdateFile`. For a `CreateFile`, the text is empty. Raises PatchError."""
    lines = text.split("\n")
    place = 0
    for before, after, anchor, at_end in _hunks(diff):
        if anchor:
            place = _find(lines, [anchor], place) + 1
        place = len(lines) - len(before) if at_end and not _fits(lines, before, place) else place
        place = _find(lines, before, place) if before else _end_of(lines, place, anchor)
        lines[place : place + len(before)] = after
        place += len(after)
    return "\n".join(lines)


def _hunks(diff: str) -> list[tuple[list[str], list[str], str, bool]]:
    """Lines before and after, the line to search first, and whether the hunk is at the end of the file."""
    hunks: list[tuple[list[str], list[str], str, bool]] = []
    before: list[str] = []
    after: list[str] = []
    anchor, at_end = "", False

    def end() -> None:
        if before or after:
            hunks.append((before, after, anchor, at_end))

    for line in diff.removesuffix("\n").split("\n"):
        if line.startswith("@@"):
            end()
            before, after, anchor, at_end = [], [], line[2:].strip(), False
        elif line.startswith("*** End of File"):
            at_end = True
        elif line.startswith("+"):
            after.append(line[1:])
        elif line.startswith("-"):
            before.append(line[1:])
        elif line.startswith(" ") or not line:
            before.append(line[1:])
            after.append(line[1:])
        else:
            raise PatchError(f"a line of the diff begins with none of '+', '-', ' ' and '@@': {line[:80]!r}")
    end()
    return hunks


def _fits(lines: list[str], wanted: list[str], place: int) -> bool:
    return lines[place : place + len(wanted)] == wanted


def _find(lines: list[str], wanted: list[str], start: int) -> int:
    """Where the lines are: exactly, else but for blanks around them."""
    for plain, sought in ((lines, wanted), ([line.strip() for line in lines], [line.strip() for line in wanted])):
        for place in range(start, len(lines) - len(wanted) + 1):
            if plain[place : place + len(wanted)] == sought:
                return place
    raise PatchError(f"the file has no lines {wanted[0][:80]!r} … after line {start}; read it again")


def _end_of(lines: list[str], place: int, anchor: str) -> int:
    """Where lines without context go: after their anchor, else at the end of the text."""
    if anchor:
        return place
    return len(lines) - 1 if lines[-1] == "" and len(lines) > 1 else (0 if lines == [""] else len(lines))
