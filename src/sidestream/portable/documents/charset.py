"""Bytes as text: which character set they have. Pure."""

import codecs
import re

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DECLARED = re.compile(
    rb"""<meta[^>]{0,500}?charset\s*=\s*["']?([\w.:-]{1,40})|encoding\s*=\s*["']([\w.:-]{1,40})""", re.I
)
_HEAD_BYTES = 4096
"""Where a declaration must stand; browsers look no further than 1024 bytes."""
_NARROW = {"ascii", "iso8859-1", "latin-1"}
"""Names that browsers read as Windows-1252, since that is what such pages contain."""


def decoded(data: bytes, charset: str | None = None, *, is_markup: bool = False) -> tuple[str, tuple[str, ...]]:
    """The text, and warnings about characters that could not be read.

    `charset` is what the sender declares. It may be wrong: what is valid UTF-8 with other letters than ASCII is UTF-8,
    and what is not valid in the declared set is read by the next best.
    """
    for mark, name in _BOMS:
        if data.startswith(mark):
            return data.decode(name, "replace"), ()
    wide = _utf16(data)
    if wide is not None and (text := _strict(data, wide)) is not None:
        return text, ()
    utf8 = _strict(data, "utf-8")
    if utf8 is not None and (not data.isascii() or charset is None):
        return utf8, ()
    candidates = [charset, _declared(data) if is_markup else None]
    for name in filter(None, map(_known, candidates)):
        text = _strict(data, name)
        if text is not None:
            return text, ()
    declared = _known(charset)
    if declared is not None and declared != "utf-8":
        return data.decode(declared, "replace"), (f"some characters are not valid {declared} and were replaced",)
    # Windows-1252 has five bytes without a meaning.
    text = _strict(data, "cp1252")
    if text is not None:
        return text, ()
    return data.decode("utf-8", "replace"), ("some characters are not valid UTF-8 and were replaced",)


def _strict(data: bytes, name: str) -> str | None:
    try:
        return data.decode(name)
    except (UnicodeError, LookupError, ValueError):
        return None


def _declared(data: bytes) -> str | None:
    found = _DECLARED.search(data[:_HEAD_BYTES])
    return (found[1] or found[2]).decode("ascii") if found else None


def _utf16(data: bytes) -> str | None:
    """UTF-16 without a mark: every other byte of plain English is zero."""
    head = data[:_HEAD_BYTES]
    half = len(head) // 2
    if half < 8:
        return None
    if head[1::2].count(0) > half * 0.7 and head[::2].count(0) < half * 0.1:
        return "utf-16-le"
    if head[::2].count(0) > half * 0.7 and head[1::2].count(0) < half * 0.1:
        return "utf-16-be"
    return None


def _known(name: str | None) -> str | None:
    """The name as Python spells it; None for an unknown one, and for a codec that is not a character set."""
    if not name:
        return None
    try:
        found = codecs.lookup(name.strip().strip("\"'"))
    except (LookupError, ValueError):
        return None
    if not getattr(found, "_is_text_encoding", True):
        return None
    return "cp1252" if found.name in _NARROW else found.name
