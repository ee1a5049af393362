"""A document as text, with the offsets of its pages."""

from bisect import bisect_right

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
