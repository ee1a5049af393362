"""Files that tools make: types by content, lenient base64, data URLs, digests."""

import base64
import hashlib

import pytest
from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.files.media_types import (
    data_url,
    digest,
    extension,
    from_base64,
    from_data_url,
    is_text,
    sniff,
    split_data_url,
)
from sidestream.testing import pixel_png

PNG = pixel_png(red=7)
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


@requirement("R35", "R40")
@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0....", "image/jpeg"),
        (b"GIF87a....", "image/gif"),
        (b"GIF89a....", "image/gif"),
        (b"RIFF....WEBPVP8 ", "image/webp"),
        (b"....ftypavif", "image/avif"),
        (b"%PDF-1.7", "application/pdf"),
        (b"PK\x03\x04....", "application/zip"),
        (b"\x1f\x8b....", "application/gzip"),
        (b"RIFF....WAVEfmt ", "audio/wav"),
        (b"ID3....", "audio/mpeg"),
        (b"OggS....", "audio/ogg"),
        (b"....ftypisom", "video/mp4"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "image/svg+xml"),
        (b'<?xml version="1.0"?>\n<svg/>', "image/svg+xml"),
        (b"just words", "text/plain"),
        ("grüße".encode(), "text/plain"),
        (b"\x00\x01\x02", "application/octet-stream"),
        (b"\x01\x02\x03", "application/octet-stream"),
    ],
)
def test_type_follows_content(data: bytes, mime_type: str):
    assert sniff(data) == mime_type


@pytest.mark.parametrize("name", ["a.txt", "a.jpg", "a.html", "a", None])
def test_recognisable_content_overrides_name(name: str | None):
    assert sniff(PNG, name) == "image/png"


@pytest.mark.parametrize(
    ("name", "mime_type"),
    [
        ("data.csv", "text/csv"),
        ("data.json", "application/json"),
        ("notes.md", "text/markdown"),
        ("page.html", "text/html"),
        ("picture.png", "text/plain"),
        ("setup.exe", "text/plain"),
        ("README", "text/plain"),
    ],
)
def test_name_selects_only_text_types_for_text(name: str, mime_type: str):
    assert sniff(b"a,b\n1,2\n", name) == mime_type


@pytest.mark.parametrize("name", ["picture.png", "report.pdf", "song.mp3", "notes.txt", "page.html", "data.json"])
def test_name_cannot_claim_recognisable_types(name: str):
    assert sniff(b"\x00\x01\x02\x03", name) == "application/octet-stream"


def test_unrecognisable_binary_type_is_taken_from_name():
    assert sniff(b"\x00\x01\x02\x03", "clip.webm") == "video/webm"


@pytest.mark.parametrize(("name", "mime_type"), [("a.docx", DOCX), ("A.DOCX", DOCX), ("a.zip", "application/zip")])
def test_archive_is_office_document_only_by_name(name: str, mime_type: str):
    assert sniff(b"PK\x03\x04....", name) == mime_type


def test_long_text_is_text_if_sample_splits_character():
    assert is_text(b"x" * 1023 + "ü".encode() * 10)
    assert not is_text(b"x" * 10 + b"\xfc")


@pytest.mark.parametrize(
    ("mime_type", "ending"),
    [
        ("image/png", "png"),
        ("image/jpeg", "jpg"),
        ("image/svg+xml", "svg"),
        ("application/pdf", "pdf"),
        ("application/x-nonsense", "bin"),
    ],
)
def test_each_type_has_file_extension(mime_type: str, ending: str):
    assert extension(mime_type) == ending


@given(st.binary(min_size=1))
def test_base64_is_decoded_with_any_padding_alphabet_or_breaks(data: bytes):
    text = base64.b64encode(data).decode()
    assert from_base64(text) == data
    assert from_base64(text.rstrip("=")) == data
    assert from_base64(f"\n {text} \n") == data
    assert from_base64(base64.urlsafe_b64encode(data).decode()) == data
    assert from_base64(base64.encodebytes(data).decode()) == data


@pytest.mark.parametrize("text", ["", "   ", "=", "A", "not base64!", "…", "\ud83d", "AAAAA", "*" * 8, "abcd!efgh"])
def test_from_base64_returns_none_for_invalid_text(text: str):
    assert from_base64(text) is None


def test_image_base64_with_elided_middle_keeps_beginning():
    text = base64.b64encode(PNG).decode()
    cut = from_base64(text[:40] + "..." + text[-8:])
    assert cut is not None
    assert cut.startswith(PNG[:30])


@given(st.text())
def test_base64_of_any_text_never_raises(text: str):
    assert isinstance(from_base64(text), bytes | None)


@pytest.mark.parametrize(
    ("url", "data"),
    [
        ("data:image/png;base64," + base64.b64encode(PNG).decode(), PNG),
        ("data:text/plain,hello%20world", b"hello world"),
        ("data:;base64,aGk=", b"hi"),
        ("data:image/png;base64", None),
        ("data:image/png;base64,%%%", None),
        ("https://example.com/a.png", None),
        ("", None),
    ],
)
def test_data_url_yields_its_bytes(url: str, data: bytes | None):
    assert from_data_url(url) == data


@given(st.binary(min_size=1, max_size=20))
def test_data_url_round_trips(data: bytes):
    url = data_url(data, "image/png")
    assert split_data_url(url) == ("image/png", True, url.partition(",")[2])
    assert from_data_url(url) == data


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("data:;base64,aGk=", ("", True, "aGk=")),
        ("data:text/plain;charset=utf-8,hi,you", ("text/plain", False, "hi,you")),
        ("data:text/plain", None),
        ("https://a.example/?data:,", None),
    ],
)
def test_split_data_url_keeps_content_verbatim(url: str, found: tuple[str, bool, str] | None):
    assert split_data_url(url) == found


def test_equal_files_have_equal_digests():
    assert digest(PNG) == hashlib.sha256(PNG).hexdigest()
    assert digest(PNG) != digest(PNG + b"\x00")


def test_digest_of_remembered_content_is_right():
    contents = [bytes([number]) * size for number in range(12) for size in (1, 4096)]
    for content in [*contents, *reversed(contents), *contents]:
        assert digest(content) == hashlib.sha256(content).hexdigest()


def test_new_content_never_gets_digest_of_freed_content():
    # A new object often has the id() of the one that was just freed.
    found: set[str] = set()
    for number in range(100):
        content = number.to_bytes(2, "big") * 1024
        found.add(digest(content))
        del content
    assert len(found) == 100
