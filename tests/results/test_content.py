"""Files, links, previews: each its own kind, with bytes and `save`, on every provider that has them."""

import base64
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import (
    Agent,
    ChatResult,
    ConfigurationError,
    DataPart,
    File,
    Preview,
    Source,
    StreamPart,
    ToolResult,
    Usage,
)
from sidestream.parts import Finish, ToolCall, preview_of
from sidestream.results.chunks import ChunkFold
from sidestream.results.results import fold
from sidestream.testing import FakeProvider, GeminiScript, InteractionScript, MessagesScript, ResponsesScript, pixel_png

URL = "https://a.example/"
HIT = {"type": "web_search_result", "url": URL, "title": "A", "encrypted_content": "x"}
CITATION = {"type": "web_search_result_location", "url": URL, "title": "A", "encrypted_index": "x", "cited_text": "q"}
ANNOTATION = {"type": "url_citation", "url": URL, "title": "A", "start_index": 0, "end_index": 2}
WEB = {"web": {"uri": URL, "title": "A"}}


async def sent(provider: str, script: Any) -> ChatResult[str]:
    async with FakeProvider([script.reply()]) as fake:
        return await Agent(provider, base_url=fake.base_url).send("hi")


@requirement("R105")
async def test_search_hits_are_links_and_files_are_files() -> None:
    result = await sent("anthropic", MessagesScript().web_search("q", [HIT]).text("Found."))
    assert result.files == []
    assert [(link.url, link.title, link.tool) for link in result.links] == [("https://a.example/", "A", "web_search")]


@requirement("R105")
async def test_links_are_search_pages_on_every_provider() -> None:
    openai = await sent("openai-responses", ResponsesScript().web_search("q", sources=["https://a.example/"]).text("x"))
    hit = {"web": {"uri": "https://a.example/", "title": "A"}}
    google = await sent("google", GeminiScript().text("x").grounding(hit))
    assert [link.url for link in openai.links] == [link.url for link in google.links] == ["https://a.example/"]


LINKED = {
    "anthropic": ("anthropic", MessagesScript().web_search("q", [HIT]).text("x", citations=[CITATION])),
    "openai-responses": (
        "openai-responses",
        ResponsesScript().web_search("q", sources=[URL]).text("xyz", annotations=[ANNOTATION]),
    ),
    "google": ("google", GeminiScript().text("xyz").grounding(WEB, supports=[(0, 2, "xy", [0])])),
}


@pytest.mark.parametrize(("provider", "script"), LINKED.values(), ids=LINKED)
async def test_chunks_have_each_link_once(provider: str, script: Any) -> None:
    async with FakeProvider([script.reply()]) as fake:
        chunks = [chunk async for chunk in Agent(provider, base_url=fake.base_url).send_stream("hi")]
    assert [link.url for chunk in chunks for link in chunk.links] == [URL]
    assert [link.url for link in fold(chunks).links] == [URL]


@requirement("R105")
def test_page_found_cited_and_opened_is_one_link() -> None:
    url = "https://a.example/"
    parts: list[StreamPart] = [
        ToolResult("c", "web_search", "web_search", {"sources": [{"type": "url", "url": url}, "?"]}, False, True),
        Source("s", "url", url=url, title="A"),
        ToolCall("o", "web_search", "web_search", True, input={"type": "open_page", "url": url}),
        ToolResult("d", "web_fetch", "web_fetch", {"url": url, "content": {}}, False, True),
        ToolResult("e", "get", "get", {"url": "https://other.example/"}, False, False),
    ]
    folding = ChunkFold()
    (link,) = fold(chunk for part in parts for chunk in folding.feed(part)).links
    assert (link.url, link.title) == (url, "A")


@requirement("R105")
async def test_file_at_url_says_why_it_cannot_be_saved(tmp_path: Path) -> None:
    part = {"fileData": {"fileUri": "https://files.example/v.mp4", "mimeType": "video/mp4"}}
    (file,) = (await sent("google", GeminiScript().part(part))).files
    with pytest.raises(ConfigurationError, match=r"https://files\.example/v\.mp4"):
        file.save(tmp_path)


@requirement("R105")
async def test_previews_have_index_bytes_and_type(tmp_path: Path) -> None:
    script = ResponsesScript().image(pixel_png(blue=9), partials=2)
    async with FakeProvider([script.reply()]) as fake:
        chunks = [chunk async for chunk in Agent("openai-responses", base_url=fake.base_url).send_stream("hi")]
    live = [preview for chunk in chunks for preview in chunk.previews]
    assert live == fold(chunks).previews
    assert [(p.index, p.data, p.mime_type, p.tool) for p in live] == [
        (number, pixel_png(red=number), "image/png", "image_generation") for number in range(2)
    ]
    assert live[1].save(tmp_path).name == "preview-1.png"
    assert live[1].save(tmp_path / "own.png").read_bytes() == pixel_png(red=1)
    assert [file.data for file in fold(chunks).files] == [pixel_png(blue=9)]


@requirement("R105")
@pytest.mark.parametrize("api", ["", "interactions/gemini-3-flash-preview"])
async def test_images_of_thought_are_previews(api: str) -> None:
    if api:
        images = [
            {"type": "image", "mime_type": "image/png", "data": base64.b64encode(pixel_png(red=n)).decode()}
            for n in range(2)
        ]
        script: Any = InteractionScript().step({"type": "thought", "summary": images}).text("ok")
    else:
        script = GeminiScript().inline_data(pixel_png(red=0), thought=True).inline_data(pixel_png(red=1), thought=True)
    result = await sent(f"google:{api}" if api else "google", script)
    assert [(preview.index, preview.data) for preview in result.previews] == [(n, pixel_png(red=n)) for n in range(2)]
    assert result.notices == []


@requirement("R105")
@pytest.mark.parametrize("result", [None, {}, {"partial_image_b64": "é"}, {"partial_image_b64": 1}, []])
def test_preliminary_result_without_image_is_not_preview(result: Any) -> None:
    assert preview_of(ToolResult("c", "n", "t", result, False, True, preliminary=True)) is None


@requirement("R105")
@pytest.mark.parametrize(
    "made", [File("f", "image/png", "../../.plot.png", b"x"), DataPart(b"x", "image/png", "/etc/plot.png")]
)
def test_file_saved_to_folder_gets_safe_unused_name(made: File | DataPart, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert made.save(f"{folder}/") == folder / "plot.png"
    assert made.save(folder) == folder / "plot-1.png"
    assert sorted(path.name for path in folder.iterdir()) == ["plot-1.png", "plot.png"]


@requirement("R105")
def test_file_saved_to_path_overwrites_it_when_asked(tmp_path: Path) -> None:
    target = tmp_path / "my plot"
    target.write_bytes(b"old")
    assert File("f", "image/png", "a.png", b"new").save(str(target), overwrite=True) == target
    assert target.read_bytes() == b"new"


def test_preview_name_follows_its_type(tmp_path: Path) -> None:
    preview = Preview(index=0, data=b"\xff\xd8\xff", mime_type="image/jpeg")
    assert preview.save(tmp_path).name == "preview-0.jpg"


@requirement("R24")
def test_tool_results_are_ordered_without_previews() -> None:
    first = ToolResult("a", "get", "get", {"n": 1}, False, False)
    preview = ToolResult("b", "image_generation", "image_generation", {"n": 2}, False, True, preliminary=True)
    last = ToolResult("b", "image_generation", "image_generation", {"n": 3}, False, True)
    folding = ChunkFold()
    parts = [first, ToolCall("c", "get", "get", False, input={}), preview, last, Finish("stop", Usage())]
    chunks = [chunk for part in parts for chunk in folding.feed(part)]
    assert fold(chunks).tool_results == [first, last]
    assert fold(chunks[-1:]).tool_results == []


@requirement("R24")
def test_sandbox_is_newest_of_several_or_none() -> None:
    ran = [
        ToolResult(f"c{n}", "code_interpreter", "code_interpreter", {"container_id": f"cntr_{n}"}, False, True)
        for n in (1, 2)
    ]
    for parts, sandbox in ((ran, "cntr_2"), ([], None)):
        folding = ChunkFold()
        chunks = [chunk for part in [*parts, Finish("stop", Usage())] for chunk in folding.feed(part)]
        assert fold(chunks).container_id == sandbox


@requirement("R24")
def test_sandbox_of_last_result_overrides_response_sandbox() -> None:
    ran = ToolResult("c", "code_interpreter", "code_interpreter", {"container_id": "cntr_1"}, False, True)
    for parts, sandbox in (([ran], "cntr_1"), ([], "container_2")):
        finish = Finish("stop", Usage(), metadata={"container_id": "container_2"})
        folding = ChunkFold()
        chunks = [chunk for part in [*parts, finish] for chunk in folding.feed(part)]
        assert fold(chunks).container_id == fold(chunks, "response").container_id == sandbox


@requirement("R24")
async def test_sandbox_named_only_by_response_is_known() -> None:
    script = (
        MessagesScript().code_execution("1", stdout="1").text("ok").stop("end_turn", container={"id": "container_3"})
    )
    assert (await sent("anthropic", script)).container_id == "container_3"
