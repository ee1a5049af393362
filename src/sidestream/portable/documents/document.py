"""A document as text, with the offsets of its pages, and the formats that can be read."""

import mimetypes
import os
from bisect import bisect_right
from functools import cache
from typing import Any, Protocol

from msgspec import Struct

from sidestream.limits import MIB


class DocumentLimits(Struct, frozen=True, kw_only=True):
    """Bounds of one document. What is longer is cut, and `Document.is_cut` says so; what is larger is refused."""

    max_bytes: int = 64 * MIB
    """The file. A book with pictures has some tens of megabytes. Above it: `DocumentError`."""
    max_pages: int = 2000
    """Pages that are read; the rest is cut."""
    max_chars: int = 20_000_000
    """Characters of text; the rest is cut."""
    max_depth: int = 400
    """Nested elements of a page. Real ones have up to a hundred; parsers take quadratic time. Above it:
    `DocumentError`."""
    cpu_s: int = 30
    """CPU time of the process that parses it. A book of 2000 pages takes some seconds. After it: `DocumentError`."""
    timeout_s: float = 60.0
    """Wall time of that process, in case the machine is busy. After it the process is killed: `DocumentError`."""
    memory_bytes: int = 1024 * MIB
    """Address space of that process, besides the file and its libraries. Above it: `DocumentError`."""
    max_links: int = 10_000
    """Links of a page; the rest is left out. Real pages have some hundreds."""


PAGE_LIMITS = DocumentLimits(cpu_s=10, timeout_s=30.0, memory_bytes=512 * MIB)
"""Limits of a fetched page: any server may send it, and somebody waits for it. A page of 1 MB takes less than a
second and 100 MB."""


class Document(Struct, frozen=True, kw_only=True):
    """The text of a document. Offsets are characters of `text`."""

    text: str
    mime_type: str
    title: str | None = None
    pages: tuple[int, ...] = ()
    """Where each page begins; empty for a document without pages."""
    links: tuple[str, ...] = ()
    """The absolute URLs that a web page links to."""
    is_cut: bool = False
    """True if only the beginning is here, since a limit was reached."""
    warnings: tuple[str, ...] = ()

    def page_at(self, offset: int) -> int | None:
        """The number of the page, from 1, on which a character stands; None for a document without pages."""
        return bisect_right(self.pages, offset) or None


GROUP = "sidestream.documents"
"""The entry points of other formats: their name is a mime type, their value a `Reader`."""

PDF = "application/pdf"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


class Reader(Protocol):
    """Reads one format. Raises DocumentError."""

    def __call__(self, data: bytes, limits: DocumentLimits) -> Document | str: ...


HTML_TYPES = ("text/html", "application/xhtml+xml")
LIBRARIES = {
    **dict.fromkeys(HTML_TYPES, ("selectolax", "html_to_markdown")),
    PDF: ("pypdfium2",),
    DOCX: ("docx",),
}
"""Mime type → the libraries that parse it; whatever is text besides is read as it is."""
IN_PLACE_BYTES = 256 * 1024
"""UTF-8 up to here is decoded in place, within a millisecond: most files of an index are source code and notes."""

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
    return mime_type in LIBRARIES or mime_type in others() or _is_text(mime_type)


def _is_text(mime_type: str) -> bool:
    return mime_type.startswith("text/") or mime_type in _TEXT_TYPES or mime_type.endswith(("+json", "+xml"))


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
