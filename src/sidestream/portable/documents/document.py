"""Documents as text with page offsets, their limits, and the readable formats."""

import mimetypes
import os
from bisect import bisect_right
from functools import cache
from typing import Any, Protocol

from msgspec import Struct

from sidestream.limits import MIB


class DocumentLimits(Struct, frozen=True, kw_only=True):
    """Limits of one document. Longer text is cut, and `Document.is_cut` says so; a larger file is refused."""

    max_bytes: int = 64 * MIB
    """Maximum file size in bytes, else `DocumentError`. A book with pictures is some tens of megabytes."""
    max_pages: int = 2000
    """Maximum pages read. The rest is cut."""
    max_chars: int = 20_000_000
    """Maximum characters of text. The rest is cut."""
    max_depth: int = 400
    """Maximum nesting of a page's elements, else `DocumentError`. Real pages nest up to a hundred levels; parsers take
    quadratic time."""
    cpu_s: int = 30
    """CPU seconds of the parser process, else `DocumentError`. A book of 2000 pages takes some seconds."""
    timeout_s: float = 60.0
    """Wall-clock seconds of that process, in case the machine is busy. It is then killed, with `DocumentError`."""
    memory_bytes: int = 1024 * MIB
    """Address space in bytes of that process, besides the file and its libraries, else `DocumentError`."""
    max_links: int = 10_000
    """Maximum links of a page. The rest is left out. Real pages have some hundreds."""


PAGE_LIMITS = DocumentLimits(cpu_s=10, timeout_s=30.0, memory_bytes=512 * MIB)
"""Limits of a fetched page, which any server may send and a user waits for. A page of 1 MB takes less than a second and
100 MB."""


class Document(Struct, frozen=True, kw_only=True):
    """The text of a document. Offsets count characters of `text`."""

    text: str
    mime_type: str
    title: str | None = None
    pages: tuple[int, ...] = ()
    """Start offsets of the pages. Empty for a document without pages."""
    links: tuple[str, ...] = ()
    """Absolute URLs that a web page links to."""
    is_cut: bool = False
    """Whether only the beginning is included, since a limit was reached."""
    warnings: tuple[str, ...] = ()

    def page_at(self, offset: int) -> int | None:
        """Return the number of the page, from 1, that contains an offset, or None if the document has no pages."""
        return bisect_right(self.pages, offset) or None


GROUP = "sidestream.documents"
"""Entry point group for other formats. Each entry's name is a mime type, its value a `Reader`."""

PDF = "application/pdf"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


class Reader(Protocol):
    """Reads one format. Raises DocumentError if the file cannot be read."""

    def __call__(self, data: bytes, limits: DocumentLimits) -> Document | str: ...


HTML_TYPES = ("text/html", "application/xhtml+xml")
LIBRARIES = {
    **dict.fromkeys(HTML_TYPES, ("selectolax", "html_to_markdown")),
    PDF: ("pypdfium2",),
    DOCX: ("docx",),
}
"""Mime type → libraries that parse it. All other text is read verbatim."""
IN_PLACE_BYTES = 256 * 1024
"""Maximum UTF-8 bytes decoded in place, within a millisecond. Most files of an index are source code and notes."""

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
"""Extensions of text files. `mimetypes` knows few of them, and some wrongly (`.ts`)."""
CODE = "text/x-"
"""Prefix of source code types, e.g. `text/x-py` and `text/x-rs`."""
_CODE_ENDINGS_WORDS = """
c cc clj cpp cs cxx dart ex exs go h hpp hs java js jsx kt lua mjs ml php pl proto ps1 py pyi r rb rs scala sh sql
svelte swift ts tsx vue zig
"""
_CODE_ENDINGS = frozenset(_CODE_ENDINGS_WORDS.split())
_MARKDOWN = frozenset({"md", "markdown", "mdx"})
_NAMES = frozenset({"dockerfile", "makefile", "license", "readme", "changelog", "authors", "contributing"})


def mime_type_of(name: str) -> str | None:
    """Return the mime type that a file's name suggests, or None if it suggests none."""
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


def why_empty(mime_type: str, size: int) -> str:
    """Return why a document of this type and size in bytes has no text, and what to do about it."""
    if not size:
        return "it is empty"
    if mime_type in HTML_TYPES:
        return "it has no text of its own: the page is written by scripts, which are not run"
    if mime_type in LIBRARIES:
        return "it has no text; a scanned document needs text recognition first"
    return "it has only white space"


def is_readable(mime_type: str) -> bool:
    """Return whether a document of this type can be read, given its libraries."""
    return mime_type in LIBRARIES or mime_type in others() or _is_text(mime_type)


def _is_text(mime_type: str) -> bool:
    return mime_type.startswith("text/") or mime_type in _TEXT_TYPES or mime_type.endswith(("+json", "+xml"))


@cache
def others() -> dict[str, Reader]:
    """Return the readers that installed packages provide for other formats, by mime type."""
    from importlib.metadata import entry_points

    found: dict[str, Reader] = {}
    for point in entry_points(group=GROUP):
        found[point.name] = _loaded(point)
    return found


def _loaded(point: Any) -> Reader:
    def read(data: bytes, limits: DocumentLimits) -> Document | str:
        return point.load()(data, limits)

    return read
