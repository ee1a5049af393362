"""Files whose bytes, names and types are what a stranger says: sniffed, bounded, never unpacked and never rendered."""

import ast
import base64
import gzip
import io
import re
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sidestream
from hostile.streams import HOSTILE, wire
from requirements import requirement
from sidestream import Agent
from sidestream.files import media_types
from sidestream.limits import Limits
from sidestream.parts import Error, File, StreamPart, preview_of
from sidestream.testing import FakeProvider, pixel_png, sse

HTML = b"<html><script>alert(1)</script></html>"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"


def png(width: int, height: int) -> bytes:
    """A picture whose header claims these dimensions."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def zip_bomb() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(20_000_000))
    return held.getvalue()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def gemini(data: str, mime_type: str) -> list[Any]:
    part = {"inlineData": {"data": data, "mimeType": mime_type}}
    return [{"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}]


def interactions(data: str, mime_type: str) -> list[Any]:
    image = {"type": "image", "data": data, "mime_type": mime_type}
    return [
        {"event_type": "step.start", "index": 0, "step": {"type": "model_output"}},
        {"event_type": "step.delta", "index": 0, "delta": image},
        {"event_type": "step.stop", "index": 0},
        {"event_type": "interaction.completed", "interaction": {"id": "i", "status": "completed"}},
    ]


def responses(data: str, mime_type: str) -> list[Any]:
    image = {"type": "image_generation_call", "id": "ig", "status": "completed", "result": data}
    return [
        {"type": "response.output_item.done", "output_index": 0, "item": {**image, "output_format": "png"}},
        {"type": "response.completed", "response": {"id": "r", "status": "completed"}},
    ]


def anthropic(data: str, mime_type: str) -> list[Any]:
    use = {"type": "server_tool_use", "id": "t", "name": "web_fetch", "input": {}}
    document = {"type": "document", "source": {"type": "base64", "media_type": mime_type, "data": data}}
    content = {"type": "web_fetch_result", "url": "https://a.example/x", "content": document}
    result = {"type": "web_fetch_tool_result", "tool_use_id": "t", "content": content}
    return [
        {"type": "message_start", "message": {"id": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": use},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": result},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_stop"},
    ]


Events = Callable[[str, str], list[Any]]
PROVIDERS: dict[str, tuple[str, Events]] = {
    "google": ("google: texts and thoughts", gemini),
    "interactions": ("interactions: open steps", interactions),
    "responses": ("responses: searches", responses),
    "anthropic": ("anthropic: open blocks", anthropic),
}


def decoded(provider: str, data: str, mime_type: str = "image/png") -> list[StreamPart]:
    name, events = PROVIDERS[provider]
    decoder = HOSTILE[name].decoder()
    return [part for event in events(data, mime_type) for part in decoder.feed(wire(event))] + decoder.close()


def files(provider: str, data: str, mime_type: str = "image/png") -> list[File]:
    return [part for part in decoded(provider, data, mime_type) if isinstance(part, File)]


each_provider = pytest.mark.parametrize("provider", list(PROVIDERS))


@requirement("F38")
@each_provider
@pytest.mark.parametrize(
    ("data", "claimed", "found"),
    [
        (HTML, "image/png", "text/plain"),
        (SVG, "image/png", "image/svg+xml"),
        (b"\x00\x01\x02\x03", "image/png", "application/octet-stream"),
        (zip_bomb(), "image/png", "application/zip"),
        (b"%PDF-1.7 \x00<html>", "image/gif", "application/pdf"),
        (pixel_png(), "text/html", "image/png"),
        (pixel_png(), "IMAGE/JPEG; q=1", "image/png"),
    ],
    ids=["html", "svg", "noise", "zip", "pdf", "png as html", "png as jpeg"],
)
def test_wrong_media_type_is_corrected_by_sniffing(provider: str, data: bytes, claimed: str, found: str):
    (file,) = files(provider, b64(data), claimed)
    assert file.mime_type == found
    assert file.data == data


@requirement("F39")
@each_provider
@pytest.mark.parametrize("text", ["%%%not base64%%%", "a", "", "AAAA\x00", "====", "é" * 40])
def test_invalid_base64_gives_no_file_and_does_not_raise(provider: str, text: str):
    assert files(provider, text) == []
    assert decoded(provider, text)[-1].type == "finish"


@requirement("F39")
@each_provider
def test_wrong_padding_and_line_breaks_are_accepted(provider: str):
    data = pixel_png() + b"!"
    for text in (b64(data).rstrip("="), b64(data) + "==", "\n".join(b64(data)[k : k + 7] for k in range(0, 400, 7))):
        assert [file.data for file in files(provider, text)] == [data]


@requirement("F39")
@each_provider
@pytest.mark.parametrize("data", [zip_bomb(), gzip.compress(bytes(20_000_000))], ids=["zip", "gzip"])
def test_archive_is_passed_through_verbatim(provider: str, data: bytes):
    tracemalloc.start()
    try:
        (file,) = files(provider, b64(data))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert file.data == data
    assert peak < 2_000_000


@requirement("F39")
@each_provider
def test_image_claiming_huge_size_is_not_rendered(provider: str):
    data = png(50_000, 50_000)
    tracemalloc.start()
    try:
        (file,) = files(provider, b64(data))
        repr(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (file.mime_type, file.data) == ("image/png", data)
    assert peak < 2_000_000


@requirement("F39")
def test_invalid_preview_image_is_none():
    for text in ("%%%", "", "a"):
        event = {"type": "response.image_generation_call.partial_image", "output_index": 0, "item_id": "ig"}
        decoder = HOSTILE["responses: searches"].decoder()
        parts = decoder.feed(wire({**event, "partial_image_index": 0, "partial_image_b64": text}))
        assert [preview_of(part) for part in parts if preview_of(part) is not None] == []


@requirement("F39")
async def test_base64_above_event_limit_is_error_before_decoding():
    limit = 200_000
    events = gemini("A" * 4 * limit, "image/png")
    async with FakeProvider([sse(events)]) as fake:
        agent = Agent("google", base_url=fake.base_url, api_key="k", limits=Limits(max_event_bytes=limit))
        async with agent.stream("draw", errors="parts") as run:
            parts = [part async for part in run]
    (error,) = [part for part in parts if isinstance(part, Error)]
    assert error.kind == "protocol"
    assert not any(isinstance(part, File) for part in parts)


@requirement("F39")
def test_only_limited_child_unpacks_archives_or_decodes_images():
    """Neither is possible without one of these modules, so no other cap of either is needed."""
    bounded = {
        "portable/documents/binary.py"
    }  # its memory, time and sizes have limits: tests/portable/documents/test_documents.py
    forbidden = {"zipfile", "tarfile", "gzip", "bz2", "lzma", "shutil.unpack_archive", "PIL", "cv2", "imageio"}
    root = Path(sidestream.__file__).parent
    writers = {root / "cli/commands/logs_export.py"}  # packs an evidence bundle, and opens no archive
    for path in writers:
        text = path.read_text("utf-8")
        assert re.findall(r"zipfile\.(?!ZipInfo\b)\w+\([^)]*\)", text) == ['zipfile.ZipFile(packed, "w")']
    for path in root.rglob("*.py"):
        text = path.read_text("utf-8")
        if path.relative_to(root).as_posix() in bounded or path in writers:
            continue
        if not any(name in text for name in forbidden):
            continue
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & forbidden, path


@requirement("F38")
def test_claimed_type_is_kept_when_content_is_ambiguous():
    assert media_types.checked_type(b"a,b\n1,2", "text/csv") == "text/csv"
    assert media_types.checked_type(b'{"a":1}', "application/json; charset=utf-8") == "application/json; charset=utf-8"
    assert media_types.checked_type(b"\x00\x01", "audio/pcm") == "audio/pcm"
