"""Bounded reading of what a kernel sends: frame sizes, output as text, and deliverables."""

import codecs
from collections.abc import Callable

from sidestream.files.saving import safe_name
from sidestream.limits import SandboxLimits
from sidestream.portable.sandbox.port import CodeFile, Ending

CHUNK_BYTES = 1 << 16
"""Maximum output that is read at once, or sent in one frame."""
MAX_HEADER_BYTES = 256
_MAX_WORD_BYTES = 256
"""Maximum length of a status, a number or a function name."""
_MAX_NAME_BYTES = 4096
"""Maximum length of a file's path or an error message."""
_MAX_REPORTED = 20_000
"""Maximum deliverables sent or named after one cell. The kernel looks at half as many."""


class EndedError(Exception):
    """The container has ended, or must end, for the reason in `ending`."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending: Ending = ending


def checked_sizes(header: str, limits: SandboxLimits) -> tuple[str, list[int]]:
    """Return the kind of a frame and the sizes of its payloads, before any of them is read.

    Raises EndedError if no kernel would send such a frame.
    """
    kind, *sizes = header.split() or [""]
    word, name, file = _MAX_WORD_BYTES, _MAX_NAME_BYTES, limits.file_bytes + 1
    bounds = {
        "ready": (),
        "done": (name,),
        "call": (word, word, limits.argument_bytes),
        "image": (file,),
        "file": (name, file),
        "skipped": (name, word),
        "out": (CHUNK_BYTES,),
        "err": (CHUNK_BYTES,),
        "exit": (word,),
    }.get(kind)
    if bounds is None or len(bounds) != len(sizes) or not all(size.isascii() and size.isdigit() for size in sizes):
        raise EndedError("died")
    lengths = [int(size) for size in sizes]
    if any(length > bound for length, bound in zip(lengths, bounds, strict=True)):
        raise EndedError("flood" if kind == "call" else "died")
    return kind, lengths


class OutputText:
    """Output decoded as text. Its beginning and its end are kept, and all of it is counted.

    The end of long output often holds the error. The beginning is passed on as it comes, the rest with `end`.
    """

    def __init__(self, max_bytes: int, on_text: Callable[[str], None]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []
        self._left = max_bytes - max_bytes // 4
        self._max_tail = max_bytes // 4
        self._tail = bytearray()
        self._dropped = 0
        self._on_text = on_text
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Add output."""
        self.total += len(data)
        self._add(data[: self._left])
        self._tail += data[self._left :]
        self._left = max(0, self._left - len(data))
        if len(self._tail) > 2 * self._max_tail + CHUNK_BYTES:
            self._cut()

    def end(self) -> str:
        """Return the text that was kept, with a note if some was cut."""
        self._cut()
        if self._dropped:
            self._add(b"", is_last=True)
            self._pass(f"\n[cut: {self._dropped} bytes of output are not shown]\n")
            self._pass(_without_partial(self._tail).decode("utf-8", "replace"))
        else:
            self._add(bytes(self._tail), is_last=True)
        self._tail.clear()
        return "".join(self._pieces)

    def _add(self, data: bytes, *, is_last: bool = False) -> None:
        self._pass(self._decoder.decode(data, is_last))

    def _pass(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._on_text(text)

    def _cut(self) -> None:
        excess = max(0, len(self._tail) - self._max_tail)
        self._dropped += excess
        del self._tail[:excess]


def _without_partial(data: bytearray) -> bytearray:
    """Return UTF-8 without the rest of a character at its start."""
    start = next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
    return data[start:]


class Found:
    """Deliverables as they arrive, within the limits."""

    def __init__(self, limits: SandboxLimits, folder: str) -> None:
        self.images: list[bytes] = []
        self.files: list[CodeFile] = []
        self._limits = limits
        self._folder = folder
        self._left = limits.delivered_bytes
        self._notes: list[str] = []
        self._skipped = 0
        self._reported = 0

    def add(self, kind: str, payloads: list[bytes]) -> None:
        """Add a frame.

        Raises EndedError if it is not about a deliverable, or if there are too many.
        """
        self._reported += 1
        if self._reported > _MAX_REPORTED:
            raise EndedError("died")
        match kind, payloads:
            case "image", [data] if data.startswith(b"\x89PNG") and self._fits(data):
                self.images.append(data)
            case "file", [name, data] if self._fits(data):
                path = name.decode("utf-8", "replace")
                self.files.append(CodeFile(safe_name(path, None), data, f"{self._folder}/{path}"))
            case "file", [name, data]:
                self._skip(name, len(data))
            case "skipped", [name, size] if size.isdigit():
                self._skip(name, int(size[:20]))
            case (("image" | "skipped"), _):
                self._skipped += 1
            case _:
                raise EndedError("died")

    def all_notes(self) -> tuple[str, ...]:
        """Return notes for the model about what was left out."""
        more = (f"{self._skipped} more files were not delivered",) if self._skipped else ()
        return (*self._notes, *more)

    def _fits(self, data: bytes) -> bool:
        limits = self._limits
        is_full = len(self.images) + len(self.files) >= limits.files
        if is_full or len(data) > min(limits.file_bytes, self._left):
            return False
        self._left -= len(data)
        return True

    def _skip(self, name: bytes, size: int) -> None:
        if len(self._notes) < 8:
            shown = safe_name(name.decode("utf-8", "replace"), None)
            self._notes.append(f"{shown} ({size} bytes) was not delivered")
        else:
            self._skipped += 1
