"""Conversion of HTML to Markdown: a page's content without navigation, banners and hidden elements.

Runs only in the document parser process, see `child`.
"""

import re
from typing import Any
from urllib.parse import urldefrag, urljoin

import html_to_markdown
from selectolax.lexbor import LexborHTMLParser

from sidestream.errors import DocumentError
from sidestream.portable.documents.charset import decoded
from sidestream.portable.documents.document import Document, DocumentLimits

DROPPED = ", ".join(
    (
        *("script", "style", "noscript", "template", "iframe", "object", "embed", "svg", "canvas", "dialog"),
        *("nav", "footer", "aside", "body > header", "form[role=search]", "button", "select", "input"),
        *(f"[role={role}]" for role in ("navigation", "banner", "contentinfo", "search", "dialog", "alertdialog")),
        *("[hidden]", "[aria-hidden=true]", "[style*='display:none' i]", "[style*='display: none' i]"),
        *("[style*='visibility:hidden' i]", "[style*='visibility: hidden' i]"),
        *("[id^=cookie i]", "[class^=cookie i]", "[class*='cookie-' i]", "[class*='-cookie' i]", "[id*='consent' i]"),
        *("[class*='consent' i]", "#onetrust-consent-sdk", "[class*='newsletter' i]", "[class*='advert' i]"),
        *("[class~=ad]", "[class~=ads]", "[class~=sidebar i]", "[class*='breadcrumb' i]", "[class*='share-' i]"),
        *("[class*='social-' i]", "[class*='skip-link' i]", "[class*='related-' i]", "[class*='pagination' i]"),
    )
)
"""Selectors of elements that are hidden or not part of a page's content."""
CONTENT = ("main", "[role=main]", "article")
"""Selectors of a page's main content, if it is marked."""
MIN_SHARE = 0.4
"""Share of the text that makes an element the main content, or keeps it although it looks like a banner."""

_MANY_TAGS = 5000
"""Tags up to which even the deepest page is parsed in milliseconds."""
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9-]*)")
_PLAIN = re.compile(r"/(?![/.])[\w/?=&%+~,-]*")
"""Path on the same host."""
_FLAT_WORDS = """
area base br col embed hr img input link meta param source track wbr p li dt dd option optgroup tr td th
tbody thead tfoot colgroup rt rp html head body
"""
_FLAT = frozenset(_FLAT_WORDS.split())
"""Elements without an end tag, or with an optional one. The next element of the kind ends them."""


def read_html(data: bytes, limits: DocumentLimits, *, charset: str | None = None, url: str | None = None) -> Document:
    """Convert a page's content to Markdown, with absolute links if the page's URL is known."""
    html, warnings = decoded(data, charset, is_markup=True)
    _check_depth(html, limits)
    tree: Any = LexborHTMLParser(html)
    title = _title(tree)
    base = _base(tree, url)
    links = _links(tree, base, limits.max_links)
    _drop(tree)
    text = _markdown(_content(tree), base)
    return Document(
        text=text[: limits.max_chars],
        mime_type="text/html",
        title=title,
        links=links,
        is_cut=len(text) > limits.max_chars,
        warnings=warnings,
    )


def _check_depth(html: str, limits: DocumentLimits) -> None:
    if html.count("<") < _MANY_TAGS:
        return
    depth = 0
    for found in _TAG.finditer(html):
        if found[2].lower() in _FLAT:
            continue
        depth = max(0, depth - 1) if found[1] else depth + 1
        if depth > limits.max_depth:
            raise DocumentError(f"its elements are nested more than {limits.max_depth} levels deep", "nested")


def _title(tree: Any) -> str | None:
    for selector, attribute in (("title", ""), ("meta[property='og:title']", "content"), ("h1", "")):
        node = tree.css_first(selector)
        found = node and (node.attributes.get(attribute) if attribute else node.text())
        if found and (line := " ".join(found.split())):
            return line[:300]
    return None


def _base(tree: Any, url: str | None) -> str | None:
    node = tree.css_first("base[href]")
    href = node and node.attributes.get("href")
    return _joined(url or "", href) if href else url


def _joined(base: str, href: str) -> str | None:
    try:
        found = urldefrag(urljoin(base, href.strip())).url
    except ValueError:
        return None
    return found if found.startswith(("http://", "https://")) else None


def _links(tree: Any, base: str | None, limit: int) -> tuple[str, ...]:
    origin = "/".join((base or "").split("/")[:3])
    found: dict[str, None] = {}
    for href in dict.fromkeys(node.attributes.get("href") for node in tree.css("a[href]")):
        if not href or href.startswith("#"):
            continue
        # Fast path for most links.
        if origin and _PLAIN.fullmatch(href):
            found[origin + href] = None
        elif link := _joined(base or "", href):
            found[link] = None
        if len(found) == limit:
            break
    return tuple(found)


def _drop(tree: Any) -> None:
    whole = len(tree.body.text()) if tree.body else 0
    for node in tree.css(DROPPED):
        # A page about cookies is not a banner. Elements without text are dropped anyway.
        if node.tag not in ("html", "body", "main", "article") and len(node.text()) <= whole * MIN_SHARE:
            node.decompose()


def _content(tree: Any) -> Any:
    body = tree.body
    if body is None:
        return tree.root
    whole = len(body.text())
    for selector in CONTENT:
        found = tree.css(selector)
        if len(found) == 1 and len(found[0].text()) >= whole * MIN_SHARE:
            return found[0]
    return body


def _markdown(node: Any, base: str | None) -> str:
    if node is None:
        return ""
    options: Any = html_to_markdown.ConversionOptions(
        extract_metadata=False, base_url=base, compact_tables=True, escape_underscores=False
    )
    converted: Any = html_to_markdown.convert(node.html or "", options)
    return (converted.content or "").strip()
