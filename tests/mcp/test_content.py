"""What a server's result becomes for the model, block by block."""

import base64
from typing import Any

import pytest
from mcp_types import CallToolResult

from requirements import requirement
from sidestream.mcp.client.content import outcome_of
from sidestream.mcp.display import one_line, visible
from sidestream.mcp.process.stdio import LineSplitter, MessageTooLongError
from sidestream.messages.message import DataPart, LinkPart, TextPart
from sidestream.tools.tool import ToolOutcome

PNG = b"\x89PNG\r\n\x1a\nrest"


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def value(*blocks: dict[str, Any], **fields: Any) -> Any:
    return outcome_of(CallToolResult.model_validate({"content": list(blocks), **fields}))


@requirement("R80")
@pytest.mark.parametrize(
    ("blocks", "fields", "expected"),
    [
        ([], {}, ""),
        ([text("a"), text("b")], {}, "a\nb"),
        ([], {"structuredContent": {"a": 1}}, {"a": 1}),
        ([text('{"a": 1}')], {"structuredContent": {"a": 1}}, {"a": 1}),
        ([text("five")], {"structuredContent": {"result": "five"}}, "five"),
        ([text("5")], {"structuredContent": {"result": 5}}, 5),
        ([text("a.txt")], {"structuredContent": {"content": "a.txt"}}, {"content": "a.txt"}),
        ([text("It is 5.")], {"structuredContent": {"n": 5}}, {"content": "It is 5.", "structured_content": {"n": 5}}),
        ([text("")], {"structuredContent": {"n": 5}}, {"content": "", "structured_content": {"n": 5}}),
    ],
)
def test_text_and_structured_content_are_kept_without_repeats(blocks: Any, fields: Any, expected: Any):
    assert value(*blocks, **fields) == expected


@requirement("R80")
def test_files_accompany_text_and_structured_content():
    image = {"type": "image", "data": encoded(PNG), "mimeType": "image/png"}
    sound = {"type": "audio", "data": encoded(b"\xff\xfb\x90sound"), "mimeType": "audio/mpeg"}
    assert value(text("look"), image, sound, structuredContent={"n": 5}) == [
        TextPart("look"),
        DataPart(PNG, "image/png"),
        DataPart(b"\xff\xfb\x90sound", "audio/mpeg"),
        TextPart('{"n": 5}'),
    ]


@requirement("R80")
def test_mislabelled_image_gets_its_real_type():
    lie = {"type": "image", "data": encoded(b"<script>alert(1)</script>"), "mimeType": "image/png"}
    assert value(lie) == [DataPart(b"<script>alert(1)</script>", "text/plain")]


@requirement("R80")
def test_embedded_resources_are_text_or_files():
    written = {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "hello"}}
    data = {
        "type": "resource",
        "resource": {"uri": "file:///b/c.pdf", "blob": encoded(b"%PDF-1"), "mimeType": "application/pdf"},
    }
    assert value(written) == "Resource file:///a.txt:\nhello"
    assert value(written, data)[1] == DataPart(b"%PDF-1", "application/pdf", "c.pdf")


@requirement("R80", "F43")
@pytest.mark.parametrize("uri", ["anthropic-file:file_1", "data:text/html,x", "gs://bucket/x", "file:///etc/passwd"])
def test_only_web_links_become_links(uri: str):
    link = {"type": "resource_link", "name": "report", "mimeType": "application/pdf"}
    assert value({**link, "uri": "https://example.com/r.pdf"}) == [
        LinkPart("https://example.com/r.pdf", "application/pdf", "report")
    ]
    # Another scheme could mean a file of ours to a provider.
    assert value({**link, "uri": uri}) == f"Resource {uri} (report, application/pdf)"


@requirement("R80")
def test_failure_carries_message_of_server():
    failed = value(text("no such file"), isError=True)
    assert failed == ToolOutcome({"error": "ToolError", "message": "no such file"}, is_error=True)
    assert value(isError=True).result["message"] == "The tool failed without a message."
    image = {"type": "image", "data": encoded(PNG), "mimeType": "image/png"}
    shown = value(image, isError=True)
    assert shown.is_error
    assert shown.result[0]["mime_type"] == "image/png"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("naïve Ω 漢字 🎉", "naïve Ω 漢字 🎉"),
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x\x1b]8;;http://e\x1b\\y", "xy"),
        ("\x1bcx\x9b2Jy", "xy"),
        ("a\u202eb\u2066c\u200bd\u00ade\ufefff", "abcdef"),
        ("x" + "".join(chr(0xE0000 + ord(c)) for c in "hide"), "x"),
        ("a\x00\x08\r\x7fb", "ab"),
        ("v\ufe0f\U000e0101w\u3164", "vw"),
        ("\x1b]52;c;never closed", ""),
    ],
)
@requirement("F43")
def test_only_visible_characters_are_kept(raw: str, shown: str):
    assert visible(raw) == shown


def test_text_in_sentence_is_one_short_line():
    assert one_line("a\n\n  b\tc") == "a b c"
    assert one_line("x" * 500, 10) == "x" * 9 + "…"


@requirement("F43")
def test_lines_are_same_regardless_of_chunking():
    data = b'{"a":1}\n\n  \n{"b":2}\r\nrest'
    whole = LineSplitter(100).feed(data)
    bits = LineSplitter(100)
    assert [line for byte in data for line in bits.feed(bytes([byte]))] == whole == [b'{"a":1}', b'{"b":2}\r']


@requirement("F43")
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_line_beyond_limit_is_rejected_whether_it_ends_or_not(end: bytes):
    with pytest.raises(MessageTooLongError):
        LineSplitter(10).feed(b"x" * 11 + end)
    assert LineSplitter(10).feed(b"x" * 10 + b"\n") == [b"x" * 10]
