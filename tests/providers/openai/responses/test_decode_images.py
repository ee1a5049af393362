"""Image generation: the call at once, previews as preliminary results, the finished picture as a file."""

import base64
from typing import Any

import pytest

from requirements import requirement
from sidestream.messages.message import DataPart
from sidestream.messages.references import reference_to
from sidestream.parts import File, Finish, ToolCall, ToolEvent, ToolResult
from sidestream.testing import pixel_png
from support.streams import (
    PNG,
    PNG_BASE64,
    decode,
    event,
    image,
    interleaved,
    items,
    message,
    messages,
    of,
    one,
    response,
    stream,
    without_events,
)

PICTURE = reference_to("ig_1", PNG)
WEBP = base64.b64encode(b"RIFF\x00\x00\x00\x00WEBPVP8L").decode()


def picture(red: int) -> str:
    return base64.b64encode(pixel_png(red=red)).decode()


@requirement("R35", "R6")
def test_image_call_emits_previews_result_and_file():
    found = without_events(items(image(1, "one", "two", quality="low")))
    kinds = [type(part).__name__ for part in found]
    assert kinds == [
        "ToolInputStart",
        "ToolInputDelta",
        "ToolInputEnd",
        "ToolCall",
        "ToolResult",
        "ToolResult",
        "ToolResult",
        "File",
    ]
    same = ("ig_1", "image_generation", "image_generation")
    assert found[3:] == [
        ToolCall(*same, True, {}, provider_tool="image_generation"),
        ToolResult(*same, {"partial_image_index": 0, "partial_image_b64": "one"}, False, True, preliminary=True),
        ToolResult(*same, {"partial_image_index": 1, "partial_image_b64": "two"}, False, True, preliminary=True),
        ToolResult(*same, {"status": "completed", "quality": "low", "result": PICTURE}, False, True),
        File("ig_1", "image/png", "image_1.png", PNG, tool="image_generation", call_id="ig_1"),
    ]


@requirement("R35")
def test_image_call_is_emitted_before_later_events():
    parts = decode(stream(image(0)))
    call = next(n for n, part in enumerate(parts) if isinstance(part, ToolCall))
    assert [part.provider_stage for part in of(parts[:call], ToolEvent)] == ["added"]


@requirement("R35")
def test_message_contains_image_without_previews():
    (stored,) = messages(decode(stream(image(0, picture(1), picture(2)))))
    assert stored.parts == (DataPart(PNG, "image/png", "image_0.png", to="container"),)


@requirement("R35")
@pytest.mark.parametrize(
    ("result", "output_format", "name", "mime_type"),
    [
        (PNG_BASE64, "png", "image_0.png", "image/png"),
        (PNG_BASE64, "webp", "image_0.png", "image/png"),
        (WEBP, None, "image_0.webp", "image/webp"),
        (base64.b64encode(b"\xff\xd8\xff\xe0JFIF").decode(), "jpeg", "image_0.jpg", "image/jpeg"),
        (base64.b64encode(b"GIF89a.....").decode(), "gif", "image_0.gif", "image/gif"),
        (base64.b64encode(b'<svg xmlns="x"/>').decode(), "svg", "image_0.svg", "image/svg+xml"),
    ],
)
def test_image_type_comes_from_content(result: str, output_format: str | None, name: str, mime_type: str):
    file = one(items(image(0, result=result, output_format=output_format)), File)
    assert (file.name, file.mime_type) == (name, mime_type)


@requirement("R35")
def test_finished_image_with_generating_status_is_delivered():
    assert one(items(image(0, status="generating")), File).data == PNG


@requirement("R35")
@pytest.mark.parametrize(
    "fields",
    [
        {"status": "failed", "result": None, "error": {"type": "moderation", "message": "no"}},
        {"status": "failed", "result": PNG_BASE64},
        {"status": "incomplete", "result": PNG_BASE64},
        {"status": "completed", "result": "*** not base64 ***"},
    ],
    ids=["error", "failed", "incomplete", "garbage"],
)
def test_failed_image_is_error_result_without_file(fields: dict[str, Any]):
    parts = decode(stream(image(0, picture(1), **fields)))
    final = [part for part in of(parts, ToolResult) if not part.preliminary]
    assert [part.is_error for part in final] == [True]
    assert of(parts, File) == []
    assert one(parts, Finish).reason == "stop"


@requirement("R35")
@pytest.mark.parametrize("result", [None, ""])
def test_completed_item_without_image_or_preview_is_error_result(result: str | None):
    parts = items(image(0, result=result))
    assert one(parts, ToolResult).is_error
    assert of(parts, File) == []


def test_unreadable_image_data_is_named_in_result():
    result = one(items(image(0, result="*** not base64 ***")), ToolResult)
    assert result.result["error"]["message"]
    assert "error" not in one(items(image(0)), ToolResult).result


@requirement("R35", "F18")
def test_parallel_images_stay_separate():
    first = image(0, picture(1), picture(2), item_id="ig_a", result=picture(3))
    second = image(1, picture(11), picture(12), item_id="ig_b", result=picture(13))
    text = message(2, "Here ", "they ", "are ", "both")
    found = items(interleaved(first, second, text))
    previews = [(part.id, part.result["partial_image_b64"]) for part in of(found, ToolResult) if part.preliminary]
    assert previews == [("ig_a", picture(1)), ("ig_b", picture(11)), ("ig_a", picture(2)), ("ig_b", picture(12))]
    assert {(file.call_id, file.name, file.data) for file in of(found, File)} == {
        ("ig_a", "image_0.png", pixel_png(red=3)),
        ("ig_b", "image_1.png", pixel_png(red=13)),
    }


@requirement("R35", "F11")
def test_images_with_changing_ids_are_told_apart_by_index():
    events = interleaved(image(0, picture(1), item_id="ig_a", result=picture(3)), image(1, picture(11), item_id="ig_b"))
    rotated = [
        {**e, "item_id": f"x{n}"} if "item_id" in e else {**e, "item": {**e["item"], "id": f"x{n}"}}
        for n, e in enumerate(events)
    ]
    found = items(rotated)
    assert [file.name for file in of(found, File)] == ["image_0.png", "image_1.png"]
    assert len(of(found, ToolCall)) == 2


@requirement("F04", "R35")
def test_incomplete_response_delivers_only_finished_images():
    begun = {"id": "ig_2", "type": "image_generation_call", "status": "generating", "result": PNG_BASE64}
    events = [*image(0), *image(1, picture(1), item_id="ig_2")[:-2]]
    finished = image(0)[-1]["item"]
    parts = decode([*events, event("incomplete", response=response([finished, begun], "incomplete"))])
    assert [file.call_id for file in of(parts, File)] == ["ig_1"]
    assert one(parts, Finish).reason == "length"


@requirement("F01", "R35")
def test_preview_is_not_delivered_when_stream_is_cut():
    parts = decode(stream(image(0, picture(1)))[:-2])
    assert of(parts, File) == []
    assert [part.preliminary for part in of(parts, ToolResult)] == [True]


@requirement("F10")
def test_preview_without_start_emits_call():
    events = [e for e in image(0, picture(1)) if e["type"] != "response.output_item.added"]
    found = without_events(items(events))
    assert [type(part).__name__ for part in found[3:]] == ["ToolCall", "ToolResult", "ToolResult", "File"]


@requirement("F09")
def test_preview_after_image_is_not_result():
    late = event("image_generation_call.partial_image", output_index=0, partial_image_index=9, partial_image_b64="x")
    results = of(items(image(0), late), ToolResult)
    assert [part.preliminary for part in results] == [False]


@requirement("R35")
def test_last_preview_replaces_missing_image():
    found = items(image(0, picture(1), picture(2), result=None))
    file = one(found, File)
    assert file.data == pixel_png(red=2)
    final = of(found, ToolResult)[-1]
    assert (final.is_error, final.result["from_preview"]) == (False, True)
    (stored,) = messages(decode(stream(image(0, picture(1), result=None))))
    assert [part.data for part in stored.parts if isinstance(part, DataPart)] == [pixel_png(red=1)]


@requirement("R35")
@pytest.mark.parametrize("fields", [{"status": "failed"}, {"status": "generating"}, {"error": {"message": "no"}}])
def test_preview_never_replaces_image_of_unfinished_item(fields: dict[str, Any]):
    found = items(image(0, picture(1), result=None, **fields))
    assert of(found, File) == []
    assert of(found, ToolResult)[-1].is_error
