"""Rich display in notebooks: files as HTML, model text as Markdown.

Text written by a model is untrusted. Raw HTML is escaped, remote images are not loaded, and only web and mail links are
kept, so the output is safe even in a renderer that sanitizes nothing.
"""

import base64
import html
import re

MAX_INLINE_BYTES = 8_000_000
"""Maximum image size shown inline. Larger images are only described, since they would stay in the notebook's file."""

_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/svg+xml")
_FENCE = re.compile(r"^ {0,3}(?P<fence>`{3,}|~{3,})[^\n]*$")
_CODE_SPAN = re.compile(r"(?<!`)(?P<ticks>`+)(?!`)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)", re.DOTALL)
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")
_LINK_START = re.compile(r"(?P<start>\]\(|\]:)(?P<space>\s*)(?=(?P<target>\S*))")
_SAFE_TARGET = re.compile(r"https?://|mailto:|[#/?.]|[\w%~.-]+(?:[/?#)]|$)", re.IGNORECASE)
_TRACKING = re.compile(r"utm_\w+(?:=|$)")
_ENTITY = re.compile(r"&(?=#|\w+;)")


def file_html(data: bytes | None, mime_type: str, name: str | None = None, url: str | None = None) -> str:
    """Render a file as HTML: the image itself, or name, type and size.

    A file that has only a URL becomes a link.
    """
    label = html.escape(name or mime_type)
    if data is None:
        link = f'<a href="{html.escape(url)}">{label}</a>' if url and is_web(url) else label
        return f"<p>{link} ({html.escape(mime_type)})</p>"
    essence = mime_type.partition(";")[0].strip().lower()
    if essence in _IMAGES and len(data) <= MAX_INLINE_BYTES:
        content = base64.b64encode(data).decode()
        # SVG in an <img> runs no scripts and loads nothing.
        return f'<img src="data:{essence};base64,{content}" alt="{label}">'
    return f"<p>{label} ({html.escape(mime_type)}, {len(data):,} bytes)</p>"


def is_web(url: str) -> bool:
    """Return whether the URL is an HTTP or HTTPS URL."""
    return url.lower().startswith(("https://", "http://"))


def without_tracking(url: str) -> str:
    """Remove the `utm_` tracking parameters from a URL."""
    address, anchor, fragment = url.partition("#")
    path, _, query = address.partition("?")
    if "utm_" not in query:
        return url
    kept = "&".join(field for field in query.split("&") if not _TRACKING.match(field))
    return path + (f"?{kept}" if kept else "") + anchor + fragment


def link_target(url: str) -> str:
    """Escape a URL for use inside `[…](…)`, so that nothing in it can end the link."""
    return re.sub(r"[\s()<>\\\"'\[\]`]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), url)


def folded(summary: str, body: str) -> str:
    """Render plain text as a collapsed `<details>` block, as HTML inside Markdown."""
    return f"<details><summary>{_as_html(summary)}</summary>\n<pre>{_lines(body)}</pre>\n</details>"


def plain(text: str) -> str:
    """Escape text so that Markdown finds no mark-up in it."""
    return _as_html(text)


def safe_markdown(text: str) -> str:
    """Sanitize a model's Markdown: remove raw HTML, remote images and links that run something."""
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
    # Emit our own HTML, so that no renderer can find a tag in the code. A blank line could end the block.
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
    """Escape text for HTML and for Markdown."""
    return _PUNCTUATION.sub(lambda found: f"&#{ord(found[0])};", text)
