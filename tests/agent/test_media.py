"""Media: files made to order, each provider in its own way."""

import json
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, ConfigurationError, ProviderError, UnsupportedError
from sidestream.replay.provider import ReplayModel
from sidestream.testing import (
    FakeProvider,
    GeminiScript,
    MessagesScript,
    Recording,
    ResponsesScript,
    error_reply,
    pixel_png,
)

PDF = b"%PDF-1.4 ..."


async def test_openai_makes_images_with_previews() -> None:
    async with FakeProvider([ResponsesScript().image(pixel_png(), partials=2).reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        chunks = [chunk async for chunk in agent.generate_media_stream("a dot", mime_types=["image/png"])]
        (tool,) = fake.requests[0].json["tools"]
    assert tool["type"] == "image_generation"
    previews = [preview for chunk in chunks for preview in chunk.previews]
    assert [(preview.index, preview.data) for preview in previews] == [(n, pixel_png(red=n)) for n in range(2)]
    assert [file.data for chunk in chunks for file in chunk.assets] == [pixel_png()]
    assert chunks[-1].metadata["way"] == "image_generation"


async def test_openai_makes_other_files_by_code() -> None:
    cited = {"type": "container_file_citation", "container_id": "cntr_1", "file_id": "cf_1", "filename": "a.csv"}
    script = ResponsesScript().code_interpreter("write()", container_id="cntr_1")
    script.text("Done", annotations=[{**cited, "start_index": 0, "end_index": 4}])
    async with FakeProvider([script.reply()]) as fake:
        fake.add_file("/v1/containers/cntr_1/files/cf_1/content", b"x,y\n")
        result = await Agent("openai-responses", base_url=fake.base_url).generate_media(
            "a table", mime_types=["text/csv"]
        )
        body = fake.requests[0].json
    assert body["tools"][0]["type"] == "code_interpreter"
    assert "text/csv" in body["instructions"]
    assert [(file.name, file.mime_type) for file in result.assets] == [("a.csv", "text/csv")]
    assert (result.metadata["way"], result.text, result.finish_reason) == ("code_interpreter", "Done", "stop")
    assert result.usage is not None


@requirement("R57")
async def test_anthropic_makes_documents_by_code_execution() -> None:
    async with FakeProvider([MessagesScript().code_execution("make()", files=["file_1"]).text("Done").reply()]) as fake:
        fake.add_file("/v1/files/file_1/content", PDF)
        known = {"type": "file", "id": "file_1", "filename": "report.pdf", "mime_type": "application/pdf"}
        fake.add_file("/v1/files/file_1", json.dumps(known).encode(), "application/json")
        result = await Agent("anthropic", base_url=fake.base_url).generate_media(
            "a report", mime_types=["application/pdf"]
        )
        tools = fake.requests[0].json["tools"]
    assert any("code_execution" in tool["type"] for tool in tools)
    assert [(file.name, file.data) for file in result.assets] == [("report.pdf", PDF)]
    assert result.metadata["way"] == "code_execution"


@requirement("R57")
async def test_anthropic_summarizes_output_when_no_file_was_made() -> None:
    script = MessagesScript().code_execution("print('the sum is 42')", stdout="the sum is 42\n").text("No file.")
    async with FakeProvider([script.reply(), script.reply()]) as fake:
        agent = Agent("anthropic", base_url=fake.base_url)
        result = await agent.generate_media("a report", mime_types=["application/pdf"])
        other = await agent.generate_media("a picture", mime_types=["image/png"])
    (summary,) = result.assets
    assert summary.mime_type == "application/pdf"
    assert summary.data is not None
    assert summary.data.startswith(b"%PDF-")
    assert b"the sum is 42" in summary.data
    assert "summary" in result.metadata["way"]
    assert other.assets == ()


async def test_media_failure_is_raised_and_missing_types_are_error() -> None:
    async with FakeProvider([error_reply(400, "bad", "no")]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        with pytest.raises(ProviderError):
            await agent.generate_media("x", mime_types=["image/png"])
        with pytest.raises(ConfigurationError):
            await agent.generate_media("x", mime_types=[])
    silent: Any = Agent(ReplayModel("none", Recording(exchanges=())))
    with pytest.raises(UnsupportedError):
        await silent.generate_media("x", mime_types=["image/png"])


@requirement("R67")
@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("google", "gemini-2.5-flash-image"),
        ("google?media=my-image-model", "my-image-model"),
        ("google:gemini-3-image", "gemini-3-image"),
    ],
)
async def test_google_makes_images_with_capable_model(model: str, asked: str) -> None:
    async with FakeProvider([GeminiScript().inline_data(pixel_png()).text("A dot.").reply()], base_path="") as fake:
        result = await Agent(model, base_url=fake.base_url).generate_media("a dot", mime_types=["image/png"])
        path = fake.requests[0].path
    assert f"models/{asked}:" in path
    assert [file.data for file in result.assets] == [pixel_png()]
