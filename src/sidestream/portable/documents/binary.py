"""Conversion of PDF and Word files to text. Runs only in the document parser process, see `child`."""

import importlib
import io
import zipfile
from collections.abc import Iterator
from typing import Any

from sidestream.errors import DocumentError
from sidestream.portable.documents.document import Document, DocumentLimits

MAX_RATIO = 200
"""Maximum ratio of an archive's content to its size. Text compresses to a fifth, a bomb to a thousandth."""
FREE_BYTES = 16 * 1024 * 1024
"""Content size up to which the ratio is not checked."""
PAGE_BREAK = "\n\n"


def read_pdf(data: bytes, limits: DocumentLimits, mime_type: str) -> Document:
    """Return the text of all pages.

    Raises DocumentError if the file needs a password.
    """
    pdfium: Any = importlib.import_module("pypdfium2")
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        if "assword" in str(error):
            raise DocumentError("it needs a password", "encrypted") from None
        raise
    texts: list[str] = []
    starts: list[int] = []
    chars = 0
    is_cut = False
    for text in _pages(document):
        is_cut = len(texts) >= limits.max_pages or chars >= limits.max_chars
        if is_cut:
            break
        starts.append(chars)
        texts.append(text[: limits.max_chars - chars])
        is_cut = len(texts[-1]) < len(text)
        chars += len(texts[-1]) + len(PAGE_BREAK)
    return Document(
        text=PAGE_BREAK.join(texts),
        mime_type=mime_type,
        title=document.get_metadata_dict().get("Title") or None,
        pages=tuple(starts),
        is_cut=is_cut,
    )


def _pages(document: Any) -> Iterator[str]:
    for number in range(len(document)):
        page = document[number]
        text_page = page.get_textpage()
        yield text_page.get_text_bounded().replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
        text_page.close()
        page.close()


def read_docx(data: bytes, limits: DocumentLimits, mime_type: str) -> Document:
    """Convert a Word file to Markdown.

    Raises DocumentError if it is damaged, or an archive made to exhaust memory.
    """
    _check_archive(data)
    docx: Any = importlib.import_module("docx")
    document = docx.Document(io.BytesIO(data))
    blocks: list[str] = []
    chars = 0
    for block in filter(None, map(_block, document.iter_inner_content())):
        blocks.append(block)
        chars += len(block) + 2
        if chars > limits.max_chars:
            break
    text = "\n\n".join(blocks)
    return Document(
        text=text[: limits.max_chars],
        mime_type=mime_type,
        title=document.core_properties.title or None,
        is_cut=len(text) > limits.max_chars,
    )


def _check_archive(data: bytes) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except zipfile.BadZipFile:
        raise DocumentError("it is damaged: it is not a zip archive", "damaged") from None
    if size > FREE_BYTES and size > len(data) * MAX_RATIO:
        raise DocumentError(f"its content is {size // max(1, len(data))} times as large as the file", "bomb")


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
