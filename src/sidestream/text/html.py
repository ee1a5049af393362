"""Rich display in notebooks: files as HTML, model text as Markdown. What a model wrote is hostile text.

Raw HTML is escaped, remote images are not loaded, and links lead to web and mail addresses only: a renderer that
sanitizes nothing still runs nothing and reports nothing to anybody.
"""

import base64
import html
import re

MAX_INLINE_BYTES = 8_000_000
"""Larger images are described, not shown: they would stay in the notebook's file."""

_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/svg+xml")
_FENCE = re.compile(r"^ {0,3}(?P<fence>`{3,}|~{3,})[^\n]*$")
_CODE_SPAN = re.compile(r"(?<!`)(?P<ticks>`+)(?!`)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)", re.DOTALL)
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")
_LINK_START = re.compile(r"(?P<start>\]\(|\]:)(?P<space>\s*)(?=(?P<target>\S*))")
_SAFE_TARGET = re.compile(r"https?://|mailto:|[#/?.]|[\w%~.-]+(?:[/?#)]|$)", re.IGNORECASE)
_TRACKING = re.compile(r"utm_\w+(?:=|$)")
_ENTITY = re.compile(r"&(?=#|\w+;)")


def file_html(data: bytes | None, mime_type: str, name: str | None = None, url: str | None = None) -> str:
    """A file: the image itself, or its name, type and size, with a link if it has only a URL."""
    label = html.escape(name or mime_type)
    if data is None:
        link = f'<a href="{html.escape(url)}">{label}</a>' if url and is_web(url) else label
        return f"<p>{link} ({html.escape(mime_type)})</p>"
    essence = mime_type.partition(";")[0].strip().lower()
    if essence in _IMAGES and len(data) <= MAX_INLINE_BYTES:
        content = base64.b64encode(data).decode()
        # In an <img>, SVG runs no scripts and loads nothing.
        return f'<img src="data:{essence};base64,{content}" alt="{label}">'
    return f"<p>{label} ({html.escape(mime_type)}, {len(data):,} bytes)</p>"


def is_web(url: str) -> bool:
    """True for a web address."""
    return url.lower().startswith(("https://", "http://"))


def without_tracking(url: str) -> str:
    """A web address as it is shown: without the parameters that only say where a reader comes from."""
    address, anchor, fragment = url.partition("#")
    path, _, query = address.partition("?")
    if "utm_" not in query:
        return url
    kept = "&".join(field for field in query.split("&") if not _TRACKING.match(field))
    return path + (f"?{kept}" if kept else "") + anchor + fragment


def link_target(url: str) -> str:
    """A web address inside `[…](…)`: nothing in it can end the link."""
    return re.sub(r"[\s()<>\\\"'\[\]`]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), url)


def folded(summary: str, body: str) -> str:
    """Plain text that opens with a click, as HTML inside Markdown."""
    return f"<details><summary>{_as_html(summary)}</summary>\n<pre>{_lines(body)}</pre>\n</details>"


def plain(text: str) -> str:
    """Text in which Markdown sees no mark-up."""
    return _as_html(text)


def safe_markdown(text: str) -> str:
    """A model's Markdown, without raw HTML, remote images and links that run something."""
    lines: list[str] = []
    prose: list[str] = []
    code: list[str] | None = None
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if code is None and found is None:
            prose.append(line)
        elif code is None and found is not None:
            lines += _prose(prose)
            prose, code, fence = [], [], found["fence"]
        elif code is not None and found and line.strip()[: len(fence)] == fence and not line.strip().strip(fence[0]):
            lines.append(_block(code))
            code = None
        elif code is not None:
            code.append(line)
    return "\n".join([*lines, *([] if code is None else [_block(code)]), *_prose(prose)])


def _block(code: list[str]) -> str:
    # As HTML of our own: whatever the renderer takes for code, nothing in it is a tag. A blank line could end it.
    return "<pre><code>" + _lines("\n".join(code)) + "</code></pre>"


def _lines(text: str) -> str:
    return _as_html(text).replace("\n", "&#10;")


def _prose(lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    pieces: list[str] = []
    at = 0
    for span in _CODE_SPAN.finditer(text):
        pieces += (_escaped(text[at : span.start()]), f"<code>{_as_html(span['code'].strip())}</code>")
        at = span.end()
    return ["".join([*pieces, _escaped(text[at:])])] if lines else []


def _escaped(text: str) -> str:
    text = _ENTITY.sub("&amp;", text).replace("<", "&lt;").replace("![", "&#33;[")
    return _LINK_START.sub(_checked_link, text)


def _checked_link(start: re.Match[str]) -> str:
    if _SAFE_TARGET.match(start["target"]):
        return start[0]
    return f"]&#{ord(start['start'][1])};{start['space']}"


def _as_html(text: str) -> str:
    """Text as HTML in which Markdown finds no mark-up either."""
    return _PUNCTUATION.sub(lambda found: f"&#{ord(found[0])};", text)
