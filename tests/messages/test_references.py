"""Bytes that became a file stand once: elsewhere there is a reference."""

import base64

from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.files import media_types
from sidestream.messages.references import file_ids, with_file_references
from sidestream.parts import File
from sidestream.testing import pixel_png

PNG = pixel_png(red=7)
TEXT = "a fetched page, word by word. " * 5
IDS = file_ids([File("ig_1", "image/png", data=PNG), File("doc", "text/plain", data=TEXT.encode())])
IMAGE = {"$file": "ig_1", "sha256": media_types.digest(PNG)}
PAGE = {"$file": "doc", "sha256": media_types.digest(TEXT.encode())}
BASE64 = base64.b64encode(PNG).decode()


@requirement("R16")
def test_base64_data_urls_and_file_text_become_references() -> None:
    event = {"item": {"result": BASE64, "outputs": [{"url": f"data:image/png;base64,{BASE64}"}]}, "data": TEXT}
    assert with_file_references(event, IDS) == {
        "item": {"result": IMAGE, "outputs": [{"url": IMAGE}]},
        "data": PAGE,
    }
    assert event["data"] == TEXT, "the live event is unchanged"


@requirement("R16")
def test_bytes_of_other_files_are_kept() -> None:
    event = {"partial_image_b64": base64.b64encode(pixel_png(red=8)).decode(), "text": TEXT + "!"}
    assert with_file_references(event, IDS) is event


def test_base64_without_padding_or_with_line_breaks_matches_file() -> None:
    wrapped = "\n".join(BASE64[at : at + 40] for at in range(0, len(BASE64), 40))
    assert with_file_references([BASE64.rstrip("="), wrapped], IDS) == [IMAGE, IMAGE]


def test_references_are_not_replaced_again() -> None:
    once = with_file_references({"result": BASE64}, IDS)
    assert with_file_references(once, IDS) is once


def test_file_known_only_by_url_has_no_reference() -> None:
    assert file_ids([File("a", "text/html", url="https://example.com")]) == {}


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_value_without_file_bytes_is_returned_unchanged(value: object) -> None:
    assert with_file_references(value, IDS) is value
