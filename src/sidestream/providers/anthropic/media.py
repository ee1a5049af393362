"""Media by code execution: the instruction, and a PDF of the output if no file was made."""

import textwrap
from collections.abc import Iterable

from sidestream.jsontext import is_object, text_in
from sidestream.providers.anthropic.decode.outcome import CODE
from sidestream.stream.parts import File, StreamPart, ToolResult

INSTRUCTION = (
    "Make what the user asks for as a file, by running code in the sandbox. Write every final file into $OUTPUT_DIR, "
    "with a telling name and the right ending. Say in one sentence what you made."
)
"""The system prompt of a media run; the request needs `CodeInterpreter()`."""

_WIDTH = 90
_LINES_PER_PAGE = 54


def printed(parts: Iterable[StreamPart]) -> str:
    """Everything that code printed in a run."""
    pieces: list[str] = []
    for part in parts:
        if isinstance(part, ToolResult) and part.tool in CODE and is_object(part.result):
            pieces += [text for key in ("stdout", "stderr") if (text := text_in(part.result, key))]
    return "\n".join(piece.rstrip("\n") for piece in pieces)


def fallback_file(parts: Iterable[StreamPart], name: str = "summary.pdf") -> File | None:
    """A PDF of what code printed, for a run that made no file; None if there is a file or no output."""
    emitted = list(parts)
    text = printed(emitted)
    if not text.strip() or any(isinstance(part, File) and part.data is not None for part in emitted):
        return None
    return File("media:summary", "application/pdf", name, text_pdf(text), tool="code_execution")


def text_pdf(text: str) -> bytes:
    """The text as a PDF in a fixed-width font. Characters beyond Latin-1 are shown as question marks."""
    lines = [piece for line in text.expandtabs().splitlines() for piece in textwrap.wrap(line, _WIDTH) or [""]]
    pages = [lines[at : at + _LINES_PER_PAGE] for at in range(0, len(lines), _LINES_PER_PAGE)] or [[]]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Courier /Encoding /WinAnsiEncoding >>",
    ]
    for number, page in enumerate(pages):
        shown = b"".join(b"(%b) Tj T*\n" % _escaped(line) for line in page)
        stream = b"BT /F1 10 Tf 13 TL 40 790 Td\n%bET" % shown
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] "
            b"/Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>" % (5 + 2 * number)
        )
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream))
    return _file_of(objects)


def _escaped(line: str) -> bytes:
    data = "".join(char if char.isprintable() else " " for char in line).encode("latin-1", "replace")
    return data.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")


def _file_of(objects: list[bytes]) -> bytes:
    """The objects, followed by the table of their offsets."""
    body = bytearray(b"%PDF-1.4\n")
    starts: list[int] = []
    for number, content in enumerate(objects, start=1):
        starts.append(len(body))
        body += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % start for start in starts)
    count = len(objects) + 1
    at = len(body)
    body += b"xref\n0 %d\n0000000000 65535 f \n%b" % (count, table)
    body += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (count, at)
    return bytes(body)
