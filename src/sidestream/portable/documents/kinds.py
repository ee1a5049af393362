"""Which formats can be read, and by what."""

import mimetypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from sidestream import deliverables
from sidestream.errors import DocumentError
from sidestream.portable.documents.charset import decoded
from sidestream.portable.documents.document import Document, DocumentLimits

GROUP = "sidestream.documents"
"""The entry points of other formats: their name is a mime type, their value a `Reader`."""

DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


class Reader(Protocol):
    """Reads one format. Raises DocumentError."""

    def __call__(self, data: bytes, limits: DocumentLimits) -> Document | str: ...


def _html(data: bytes, limits: DocumentLimits, charset: str | None, url: str | None, mime_type: str) -> Document:
    from sidestream.portable.documents.html import read_html

    return read_html(data, limits, charset=charset, url=url)


def _isolated(kind: str) -> Callable[..., Document]:
    def read(data: bytes, limits: DocumentLimits, charset: str | None, url: str | None, mime_type: str) -> Document:
        from sidestream.portable.documents.isolated import read_isolated

        return read_isolated(kind, mime_type, data, limits)

    return read


def _text(data: bytes, limits: DocumentLimits, charset: str | None, url: str | None, mime_type: str) -> Document:
    text, warnings = decoded(data, charset)
    if "\x00" in text:
        raise DocumentError("it is binary, although its name or its sender says that it is text", "format")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return Document(
        text=text[: limits.max_chars],
        mime_type=mime_type,
        title=_heading(text) if mime_type == "text/markdown" else None,
        is_cut=len(text) > limits.max_chars,
        warnings=warnings,
    )


READERS: dict[str, Callable[..., Document]] = {
    "text/html": _html,
    "application/xhtml+xml": _html,
    "application/pdf": _isolated("pdf"),
    DOCX: _isolated("docx"),
}
"""Mime type → its reader; whatever is text besides is read as it is."""

_TEXT_TYPES_WORDS = """
application/json application/xml application/javascript application/x-javascript application/toml
application/yaml application/x-yaml application/x-sh application/sql application/x-ndjson
application/ld+json
"""
_TEXT_TYPES = frozenset(_TEXT_TYPES_WORDS.split())
_TEXT_ENDINGS_WORDS = """
bash c cc cfg clj cpp cs css csv cxx dart diff ex exs fish go gradle graphql h hpp hs ini ipynb java js json
jsonl jsx kt lua make md markdown mdx mjs ml org patch php pl proto ps1 py pyi r rb rs rst scala scss sh sql
svelte swift tex toml ts tsv tsx txt vue xml yaml yml zig zsh log
"""
_TEXT_ENDINGS = frozenset(_TEXT_ENDINGS_WORDS.split())
"""Endings of text files; `mimetypes` knows few of them, and some wrongly (`.ts`)."""
CODE = "text/x-"
"""The prefix of the types of source code: `text/x-py`, `text/x-rs` …"""
_CODE_ENDINGS_WORDS = """
c cc clj cpp cs cxx dart ex exs go h hpp hs java js jsx kt lua mjs ml php pl proto ps1 py pyi r rb rs scala sh sql
svelte swift ts tsx vue zig
"""
_CODE_ENDINGS = frozenset(_CODE_ENDINGS_WORDS.split())
_MARKDOWN = frozenset({"md", "markdown", "mdx"})
_NAMES = frozenset({"dockerfile", "makefile", "license", "readme", "changelog", "authors", "contributing"})


def mime_type_of(name: str) -> str | None:
    """The mime type that a file's name stands for; None if it says nothing."""
    base = os.path.basename(name).lower()
    ending = base.rpartition(".")[2] if "." in base else ""
    if ending in _MARKDOWN:
        return "text/markdown"
    if ending == "docx":
        return DOCX
    if ending in _CODE_ENDINGS:
        return f"{CODE}{ending}"
    if ending in _TEXT_ENDINGS or base in _NAMES:
        return "text/plain"
    return mimetypes.guess_type(base)[0]


def is_readable(mime_type: str) -> bool:
    """True if a document of this type can be read, provided that the libraries are installed."""
    return mime_type in READERS or mime_type in others() or _is_text(mime_type)


def read(
    data: bytes,
    *,
    mime_type: str | None = None,
    name: str = "",
    charset: str | None = None,
    url: str | None = None,
    limits: DocumentLimits | None = None,
) -> Document:
    """The text of a document. Its format is the one declared, else that of its name, checked against its content.

    Raises DocumentError for a format that is unknown, and for a document that is damaged or too large;
    MissingExtraError if its library is not installed.
    """
    limits = limits or DocumentLimits()
    if len(data) > limits.max_bytes:
        raise DocumentError(f"it is larger than {limits.max_bytes} bytes", "too-large")
    kind = _kind(data, mime_type or mime_type_of(name))
    if (other := others().get(kind)) is not None:
        made = other(data, limits)
        return made if isinstance(made, Document) else Document(text=made, mime_type=kind)
    reader = READERS.get(kind) or (_text if _is_text(kind) else None)
    if reader is None:
        raise DocumentError(f"its format, {kind}, cannot be read as text", "format")
    return reader(data, limits, charset, url, kind)


def _kind(data: bytes, claimed: str | None) -> str:
    """The mime type: what the first bytes show comes before a claim, which servers and names get wrong."""
    if data.startswith(b"%PDF-"):
        return "application/pdf"
    claimed = (claimed or "").partition(";")[0].strip().lower()
    if claimed and claimed != "application/octet-stream":
        return claimed
    head = data[:1024].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "text/html"
    sniffed = deliverables.sniff(data)
    return "text/plain" if sniffed == "application/octet-stream" and b"\x00" not in data[:8192] else sniffed


def _is_text(mime_type: str) -> bool:
    return mime_type.startswith("text/") or mime_type in _TEXT_TYPES or mime_type.endswith(("+json", "+xml"))


def _heading(text: str) -> str | None:
    line = next((line for line in text[:2000].splitlines() if line.startswith("# ")), "")
    return line[2:].strip() or None


@cache
def others() -> dict[str, Reader]:
    """Readers of other formats that installed packages bring, by mime type."""
    from importlib.metadata import entry_points

    found: dict[str, Reader] = {}
    for point in entry_points(group=GROUP):
        found[point.name] = _loaded(point)
    return found


def _loaded(point: Any) -> Reader:
    def read(data: bytes, limits: DocumentLimits) -> Document | str:
        return point.load()(data, limits)

    return read
