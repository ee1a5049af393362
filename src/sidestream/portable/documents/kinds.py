"""Which formats can be read, and by what."""

import mimetypes
import os
from functools import cache
from typing import Any, Protocol

from sidestream.portable.documents.document import Document, DocumentLimits

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
