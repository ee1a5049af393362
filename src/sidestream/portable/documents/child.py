"""Parses one file of a binary format, as a separate program. It imports nothing of the package.

The first line of stdin is a JSON object of the settings, the rest is the file. The answer is one JSON object.
"""

import importlib
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

MAX_RATIO = 200
"""How much larger than the archive its content may be. Text compresses to a fifth, a bomb to a thousandth."""
FREE_BYTES = 16 * 1024 * 1024
"""Up to here the ratio is not looked at."""


class UnreadableError(Exception):
    """The file cannot be read. The first argument is the reason as a word, the second says it."""


def main() -> None:
    """Reads stdin, writes stdout."""
    settings = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = settings["path"]
    data = sys.stdin.buffer.read()
    try:
        # Before the limit: loading a library maps more memory than the file needs.
        read = {"pdf": _pdf, "docx": _docx}[settings["kind"]](data)
        title = next(read)
        _limit(settings["memory_bytes"], settings["cpu_s"])
        answer = {"title": title, **_collected(read, settings["max_pages"], settings["max_chars"])}
    except UnreadableError as error:
        answer = {"reason": error.args[0], "error": error.args[1]}
    except MemoryError:
        answer = {"reason": "memory", "error": "it needs too much memory"}
    except Exception as error:  # Libraries raise anything for a damaged file.
        answer = {"reason": "damaged", "error": f"it is damaged ({type(error).__name__}: {str(error)[:200]})"}
    sys.stdout.buffer.write(json.dumps(answer).encode("utf-8", "replace"))


def _limit(memory_bytes: int, cpu_s: int) -> None:
    try:
        resource: Any = importlib.import_module("resource")
    except ModuleNotFoundError:
        return  # Windows: the time limit of the parent is what there is.
    used = 0
    if sys.platform == "linux":
        with open("/proc/self/statm") as mapped:
            used = int(mapped.read().split()[0]) * resource.getpagesize()
    for name, bound in (("RLIMIT_AS", used + memory_bytes), ("RLIMIT_CPU", cpu_s), ("RLIMIT_CORE", 0)):
        try:
            _, hard = resource.getrlimit(getattr(resource, name))
            soft = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            resource.setrlimit(getattr(resource, name), (soft, hard))
        except (ValueError, OSError):
            pass


def _collected(pages: Iterator[Any], max_pages: int, max_chars: int) -> dict[str, Any]:
    found: list[str] = []
    chars = 0
    for page in pages:
        if len(found) >= max_pages or chars >= max_chars:
            return {"pages": found, "is_cut": True}
        found.append(page[: max_chars - chars])
        chars += len(page)
    return {"pages": found, "is_cut": chars > max_chars}


def _pdf(data: bytes) -> Iterator[Any]:
    """The title, then each page."""
    pdfium: Any = importlib.import_module("pypdfium2")
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        if "assword" in str(error):
            raise UnreadableError("encrypted", "it needs a password") from None
        raise
    yield document.get_metadata_dict().get("Title") or None
    for number in range(len(document)):
        page = document[number]
        text_page = page.get_textpage()
        yield text_page.get_text_bounded().replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
        text_page.close()
        page.close()


def _docx(data: bytes) -> Iterator[Any]:
    """The title, then the document as Markdown."""
    _check_archive(data)
    docx: Any = importlib.import_module("docx")
    document = docx.Document(io.BytesIO(data))
    yield document.core_properties.title or None
    yield "\n\n".join(block for item in document.iter_inner_content() if (block := _block(item)))


def _check_archive(data: bytes) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except zipfile.BadZipFile:
        raise UnreadableError("damaged", "it is damaged: it is no zip archive") from None
    if size > FREE_BYTES and size > len(data) * MAX_RATIO:
        raise UnreadableError("bomb", f"its content is {size // max(1, len(data))} times as large as the file")


def _block(item: Any) -> str:
    if hasattr(item, "rows"):
        rows = [[" ".join(cell.text.split()).replace("|", "\\|") for cell in row.cells] for row in item.rows]
        if not rows:
            return ""
        rule = ["---"] * len(rows[0])
        return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))
    text = item.text.strip()
    style = (item.style.name or "") if item.style is not None else ""
    level = style.removeprefix("Heading ")
    if text and style != level and level.isdecimal():
        return f"{'#' * min(int(level), 6)} {text}"
    if text and style == "Title":
        return f"# {text}"
    return f"- {text}" if text and style.startswith("List ") else text


if __name__ == "__main__":
    main()
