"""Typed results have the same fields on every provider."""

from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, ToolRun
from sidestream.results import CodeInterpreterResult, WebSearchResult
from sidestream.results.typed_results import TYPES, hits_in
from sidestream.testing import FakeProvider, GeminiScript, MessagesScript, ResponsesScript
from sidestream.tools.server_side import TOOLS

URL = "https://rivers.example/"
HIT = {"type": "web_search_result", "url": URL, "title": "Rhine", "encrypted_content": "x"}
SEARCHES: dict[str, Any] = {
    "openai-responses": ResponsesScript().web_search("rhine", sources=[URL]).text("Long."),
    "anthropic": MessagesScript().web_search("rhine", results=[HIT]).text("Long."),
    "google": GeminiScript().text("Long.").grounding({"web": {"uri": URL, "title": "R"}}, webSearchQueries=["rhine"]),
}
CODE: dict[str, Any] = {
    "openai-responses": ResponsesScript().code_interpreter("print(2)", logs="2\n").text("2"),
    "anthropic": MessagesScript().code_execution("print(2)", stdout="2\n").text("2"),
    "google": GeminiScript().code("print(2)", "2\n").text("2"),
}


async def ran(provider: str, script: Any) -> ToolRun:
    async with FakeProvider([script.reply()]) as fake:
        result = await Agent(provider, api_key="k", base_url=fake.base_url).send("hi")
    (run,) = result.tool_runs
    return run


@requirement("R191")
@pytest.mark.parametrize("provider", SEARCHES)
async def test_search_result_is_typed_on_every_provider(provider: str):
    run = await ran(provider, SEARCHES[provider])
    found = run.typed
    assert isinstance(found, WebSearchResult)
    assert (found.tool, found.queries, found.error) == ("web_search", ("rhine",), None)
    assert [hit.url for hit in found.results] == [URL]
    assert found.result == run.result


@requirement("R191")
@pytest.mark.parametrize("provider", CODE)
async def test_code_result_is_typed_on_every_provider(provider: str):
    found = (await ran(provider, CODE[provider])).typed
    assert isinstance(found, CodeInterpreterResult)
    assert (found.tool, found.code, found.logs.strip(), found.error) == ("code_interpreter", "print(2)", "2", None)


async def test_code_of_file_editor_is_text_of_file():
    given = {"command": "create", "path": "a.py", "file_text": "print(1)"}
    run = await ran("anthropic", MessagesScript().server_tool_use("text_editor_code_execution", given).text("Done."))
    assert (run.tool, run.provider_tool, run.code) == ("code_interpreter", "text_editor_code_execution", "print(1)")


def test_every_searching_and_running_tool_has_class():
    assert TYPES.keys() - {"google_maps", "x_search"} <= TOOLS.keys()


@pytest.mark.parametrize(
    "value", [None, "x", [1], {"sources": 3}, {"results": [{"text": 5}]}, {"groundingMetadata": []}]
)
def test_hits_in_finds_nothing_in_malformed_value(value: Any):
    assert hits_in(value) == ()
