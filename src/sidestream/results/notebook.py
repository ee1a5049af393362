"""Markdown of a result for notebooks, with citations, images and collapsed tool details."""

import html
import re

from sidestream import jsontext
from sidestream.results.citations import CitedSource, citations_of
from sidestream.results.content import Content
from sidestream.results.tool_runs import ToolRun
from sidestream.text import html as display

_OPEN, _CLOSE = "\ue000", "\ue001"
_MARKER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_RESERVED = {ord(_OPEN): 0xFFFD, ord(_CLOSE): 0xFFFD}
"""Private characters that delimit placeholders of markers; in the text itself they are replaced."""


def markdown(result: Content) -> str:
    """Return the result as Markdown, with the model's own HTML escaped."""
    citations = citations_of(result)
    text = citations.rendered(_placeholder, _RESERVED)
    if not text:
        text = result.text.translate(_RESERVED)
    links = {source.number: source for source in citations.sources}
    shown = _json_block(text) or display.safe_markdown(text)
    body = [
        _MARKER.sub(lambda found: _superscript(links[int(found[1])]), shown),
        *(display.file_html(file.data, file.mime_type, file.name or file.id, file.url) for file in result.files),
        "\n".join(f"{source.number}. {_link(source, source.label)}" for source in citations.sources),
        "\n".join(display.folded(_summary(run), _details(run)) for run in result.tool_runs),
        _ending(result),
    ]
    return "\n\n".join(filter(None, body)).encode("utf-8", "replace").decode()


def _placeholder(source: CitedSource) -> str:
    return f"{_OPEN}{source.number}{_CLOSE}"


def _superscript(source: CitedSource) -> str:
    # HTML, because links work inside code too.
    url = source.shown_url if source.shown_url and display.is_web(source.shown_url) else None
    link = f'<a href="{html.escape(display.link_target(url))}">{source.number}</a>' if url else f"{source.number}"
    return f"<sup>{link}</sup>"


def _link(source: CitedSource, label: str) -> str:
    shown = display.plain(label)
    url = source.shown_url
    return f"[{shown}]({display.link_target(url)})" if url and display.is_web(url) else shown


def _json_block(text: str) -> str | None:
    """Return text that is a JSON object or list, such as a typed answer, as a code block, or None if it is not."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        jsontext.loads(text)
    except (ValueError, RecursionError):
        return None
    return display.safe_markdown(f"```json\n{text}\n```")


def _summary(run: ToolRun) -> str:
    called = run.name if run.name == run.tool else f"{run.tool}: {run.name}"
    count = "" if run.result_count is None else f", {run.result_count} found"
    seconds = "" if run.seconds is None else f", {run.seconds:.1f} s"
    return f"{called} ({run.status}{count}{seconds})"


def _details(run: ToolRun) -> str:
    given = run.code or ("" if run.input in (None, {}) else jsontext.dumps(run.input).decode("utf-8", "replace"))
    answer = run.error or run.snippet
    return "\n\n".join(filter(None, [", ".join(run.queries) or given, answer])) or "no details"


def _ending(result: Content) -> str:
    reason = result.finish_reason
    return "" if reason in (None, "stop") else f"<em>finished: {display.plain(reason)}</em>"
