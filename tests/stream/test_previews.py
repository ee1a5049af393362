"""Previews: which parts hold one, and what they say of it."""

import base64

import pytest

from requirements import requirement
from sidestream.parts import Custom, Preview, StreamPart, TextDelta, ToolResult, preview_of
from sidestream.testing import pixel_png

PNG = pixel_png()
ENCODED = base64.b64encode(PNG).decode()


def result(index: object, *, preliminary: bool = True, data: object = ENCODED) -> ToolResult:
    fields = {"partial_image_b64": data, "partial_image_index": index}
    return ToolResult("ig_1", "image_generation", "image_generation", fields, False, True, preliminary=preliminary)


@requirement("R35")
def test_preliminary_image_is_preview_with_index_and_call():
    shown = Preview(index=2, data=PNG, mime_type="image/png", tool="image_generation", call_id="ig_1")
    assert preview_of(result(2)) == shown


@pytest.mark.parametrize("index", [None, "1", True, 1.0])
def test_preview_without_number_is_first(index: object):
    found = preview_of(result(index))
    assert found is not None
    assert found.index == 0


def test_image_of_reasoning_belongs_to_no_tool():
    part = Custom("google.thought-image", {"data": ENCODED, "index": 1})
    assert preview_of(part) == Preview(index=1, data=PNG, mime_type="image/png")


@pytest.mark.parametrize(
    "part",
    [
        result(0, preliminary=False),
        result(0, data=None),
        result(0, data="no base64 at all!"),
        ToolResult("c", "look", "look", "text", False, True, preliminary=True),
        Custom("google.other", {"data": ENCODED, "index": 1}),
        TextDelta("t", "Hi"),
    ],
    ids=["final", "no picture", "not base64", "text", "another kind", "delta"],
)
def test_other_parts_hold_no_preview(part: StreamPart):
    assert preview_of(part) is None
