"""The summary that stands in where no file came."""

import re

from providers.anthropic.messages_wire import EVERY_BLOCK, decode
from sidestream.files.media_types import sniff
from sidestream.providers.anthropic.provider import fallback_file, printed, text_pdf
from sidestream.testing.messages_script import MessagesScript


def test_printed_output_becomes_pdf_when_no_file_exists():
    script = (
        MessagesScript().bash("a", stdout="Total (net): 7\n", stderr="warned\\\n").code_execution("b", stdout="é 日\n")
    )
    parts = decode(script.text("Done.").events())
    assert printed(parts) == "Total (net): 7\nwarned\\\né 日"
    file = fallback_file(parts)
    assert file is not None
    assert (file.name, file.mime_type) == ("summary.pdf", "application/pdf")
    data = file.data or b""
    assert sniff(data) == "application/pdf"
    assert b"(Total \\(net\\): 7) Tj" in data
    assert b"(warned\\\\) Tj" in data
    assert b"(\xe9 ?) Tj" in data


def test_fallback_file_is_none_with_file_or_without_output():
    assert fallback_file(decode(EVERY_BLOCK["text_editor_code_execution_tool_result"].events())) is None
    assert fallback_file(decode(MessagesScript().text("Hi").events())) is None


def test_long_pdf_has_valid_xref_table():
    data = text_pdf("\n".join(f"line {number} " + "x" * 100 for number in range(200)))
    start = int(data.rsplit(b"startxref\n", 1)[1].split()[0])
    assert data[start:].startswith(b"xref")
    offsets = [int(line.split()[0]) for line in re.findall(rb"\d{10} 00000 n ", data)]
    for number, offset in enumerate(offsets, start=1):
        assert data[offset:].startswith(b"%d 0 obj" % number)
    assert data.count(b"/Type /Page ") == 8
    assert all(len(line) <= 120 for line in re.findall(rb"\((.*)\) Tj", data))
