"""Character set detection and decoding. Pure."""

import codecs
import re

from sidestream.errors import DocumentError
from sidestream.portable.documents.document import Document, DocumentLimits

LABELS: dict[str, str] = {
    "utf-8": "utf-8 utf8 unicode-1-1-utf-8 unicode11utf8 unicode20utf8 x-unicode20utf8",
    "cp866": "ibm866 866 cp866 csibm866",
    "iso8859-2": "iso-8859-2 csisolatin2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2",
    "iso8859-3": "iso-8859-3 csisolatin3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3",
    "iso8859-4": "iso-8859-4 csisolatin4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4",
    "iso8859-5": "iso-8859-5 csisolatincyrillic cyrillic iso-ir-144 iso8859-5 iso88595 iso_8859-5 iso_8859-5:1988",
    "iso8859-6": "iso-8859-6 arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6-e "
    "iso-8859-6-i iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987",
    "iso8859-7": "iso-8859-7 csisolatingreek ecma-118 elot_928 greek greek8 iso-ir-126 iso8859-7 iso88597 iso_8859-7 "
    "iso_8859-7:1987 sun_eu_greek",
    "iso8859-8": "iso-8859-8 csiso88598e csisolatinhebrew hebrew iso-8859-8-e iso-ir-138 iso8859-8 iso88598 iso_8859-8 "
    "iso_8859-8:1988 visual csiso88598i iso-8859-8-i logical",
    "iso8859-10": "iso-8859-10 csisolatin6 iso-ir-157 iso8859-10 iso885910 l6 latin6",
    "iso8859-13": "iso-8859-13 iso8859-13 iso885913",
    "iso8859-14": "iso-8859-14 iso8859-14 iso885914",
    "iso8859-15": "iso-8859-15 csisolatin9 iso8859-15 iso885915 iso_8859-15 l9",
    "iso8859-16": "iso-8859-16",
    "koi8-r": "koi8-r cskoi8r koi koi8 koi8_r",
    "koi8-u": "koi8-u koi8-ru",
    "mac-roman": "macintosh csmacintosh mac x-mac-roman",
    "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "cp874": "windows-874 dos-874 iso-8859-11 iso8859-11 iso885911 tis-620",
    "cp1250": "windows-1250 cp1250 x-cp1250",
    "cp1251": "windows-1251 cp1251 x-cp1251",
    "cp1252": "windows-1252 ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 "
    "iso88591 iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii x-cp1252",
    "cp1253": "windows-1253 cp1253 x-cp1253",
    "cp1254": "windows-1254 cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 l5 "
    "latin5 x-cp1254",
    "cp1255": "windows-1255 cp1255 x-cp1255",
    "cp1256": "windows-1256 cp1256 x-cp1256",
    "cp1257": "windows-1257 cp1257 x-cp1257",
    "cp1258": "windows-1258 cp1258 x-cp1258",
    "gb18030": "gb18030 chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk",
    "big5hkscs": "big5 big5-hkscs cn-big5 csbig5 x-x-big5",
    "euc-jp": "euc-jp cseucpkdfmtjapanese x-euc-jp",
    "iso2022-jp": "iso-2022-jp csiso2022jp",
    "cp932": "shift_jis csshiftjis ms932 ms_kanji shift-jis sjis windows-31j x-sjis",
    "cp949": "euc-kr cseuckr csksc56011987 iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 "
    "windows-949",
    "utf-16-be": "utf-16be unicodefffe",
    "utf-16-le": "utf-16le csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16",
}
"""Codec → the labels that select it, as browsers read them (https://encoding.spec.whatwg.org). A sender can choose no
other codec: `punycode` takes quadratic time, and `zip` is not a character set."""
_CODECS = {label: codec for codec, labels in LABELS.items() for label in labels.split()}

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
_NOT_ASCII = frozenset({"iso2022-jp", "utf-16-be", "utf-16-le"})
"""Codecs that do not decode bytes below 128 as ASCII."""
_HEAD_BYTES = 4096
"""Bytes in which a declaration must occur. Browsers look no further than 1024 bytes."""


def read_text(data: bytes, limits: DocumentLimits, charset: str | None, mime_type: str) -> Document:
    """Convert a file of text to a document.

    Raises DocumentError if it is binary.
    """
    text, warnings = decoded(data, charset)
    return text_document(text, limits, mime_type, warnings)


def text_document(text: str, limits: DocumentLimits, mime_type: str, warnings: tuple[str, ...] = ()) -> Document:
    r"""Convert text to a document, normalising line endings to `\n`.

    Raises DocumentError if it is binary.
    """
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


def plain_utf8(data: bytes, charset: str | None) -> str | None:
    """Decode bytes that are UTF-8 beyond doubt, or return None if `decoded` must detect the character set."""
    if b"\x00" in data or (codec_of(charset) in _NOT_ASCII and data.isascii()):
        return None
    return _strict(data, "utf-8-sig")


def decoded(data: bytes, charset: str | None = None, *, is_markup: bool = False) -> tuple[str, tuple[str, ...]]:
    """Decode bytes and return the text, with warnings about undecodable characters.

    `charset` is the sender's declaration, which may be wrong. Valid UTF-8 with non-ASCII letters is read as UTF-8, and
    what is not valid in the declared set is read with the next best.
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
    declared = codec_of(charset)
    for name in filter(None, [declared, _declared(data) if is_markup else None]):
        text = _strict(data, name)
        if text is not None:
            return text, ()
    if declared is not None and declared != "utf-8":
        return data.decode(declared, "replace"), (f"some characters are not valid {declared} and were replaced",)
    # Windows-1252 leaves five bytes undefined.
    text = _strict(data, "cp1252")
    if text is not None:
        return text, ()
    return data.decode("utf-8", "replace"), ("some characters are not valid UTF-8 and were replaced",)


def codec_of(label: str | None) -> str | None:
    """Return the codec that a label selects, or None if the label is unknown."""
    return _CODECS.get(label.strip("\t\n\f\r \"'").lower()) if label else None


def load_codecs() -> None:
    """Load every codec that `decoded` may use, for a process that will open no files."""
    for name in (*LABELS, *(name for _, name in _BOMS)):
        codecs.lookup(name)


def _strict(data: bytes, name: str) -> str | None:
    try:
        return data.decode(name)
    except UnicodeError:
        return None


def _declared(data: bytes) -> str | None:
    """Return the codec that a page declares.

    The declaration was readable as ASCII, so a declared UTF-16 means UTF-8.
    """
    found = _DECLARED.search(data[:_HEAD_BYTES])
    codec = codec_of((found[1] or found[2]).decode("ascii")) if found else None
    return "utf-8" if codec in ("utf-16-be", "utf-16-le") else codec


def _utf16(data: bytes) -> str | None:
    """Detect UTF-16 without a byte order mark. Every other byte of plain English is zero."""
    head = data[:_HEAD_BYTES]
    half = len(head) // 2
    if half < 8:
        return None
    if head[1::2].count(0) > half * 0.7 and head[::2].count(0) < half * 0.1:
        return "utf-16-le"
    if head[::2].count(0) > half * 0.7 and head[1::2].count(0) < half * 0.1:
        return "utf-16-be"
    return None


def _heading(text: str) -> str | None:
    line = next((line for line in text[:2000].splitlines() if line.startswith("# ")), "")
    return line[2:].strip() or None
