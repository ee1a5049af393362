"""File search with the embedded model: the files are searched before the model is asked."""

from pathlib import Path
from typing import Any

import pytest

from providers.local.embedded import OPTIONS, skip_without
from requirements import requirement
from sidestream import Agent, FileSearch, Limits
from sidestream.jsontext import loads
from sidestream.messages.message import ChatMessage, ToolCallPart, ToolResultPart
from sidestream.providers.local.provider import LocalModel
from sidestream.providers.protocol import ModelRequest, Settings
from sidestream.testing import ChatScript, FakeProvider
from sidestream.tools.spec import ToolSpec

skip_without("xllamacpp", model="smollm2-135m")
skip_without("safetensors", model="all-minilm-l6-v2")
pytestmark = pytest.mark.usefixtures("connections")

TRAVEL = """# Travel policy

## Flights

Employees book economy class for flights under six hours. Premium economy needs the approval of a director.

## Hotels

The nightly limit is 180 euros in Zurich and 140 euros elsewhere. Breakfast may be claimed.

## Receipts

Receipts are handed in within 30 days of the return; without a receipt at most 25 euros are reimbursed.
"""
PUMP = """# Pump manual

The pump is model KX-40. It weighs 32 kg. The filter is replaced every 500 hours. The operating temperature is at most 60
degrees.
"""
QUESTIONS = {
    "What is the nightly hotel limit in Zurich?": "180",
    "Within how many days are receipts handed in?": "30",
    "How much does the pump weigh?": "32",
    "How often is the filter replaced?": "500",
    "What is the maximum operating temperature of the pump?": "60",
    "Which class do employees book for short flights?": "economy",
    "What is reimbursed at most without a receipt?": "25",
    "Who approves premium economy?": "director",
    "What is the model of the pump?": "KX-40",
    "What is the hotel limit outside Zurich?": "140",
}
SEARCH = ToolSpec("file_search", "Searches files.", {"type": "object", "properties": {}}, retrieve="auto")


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SIDESTREAM_INDEX", str(tmp_path / "index.db"))
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "travel.md").write_text(TRAVEL)
    (folder / "pump.md").write_text(PUMP)
    return str(folder)


async def asked(question: str, *tools: Any, limits: Limits, **settings: Any) -> Any:
    async with Agent("local", options=OPTIONS, server_side_tools=tools, limits=limits) as agent:
        return await agent.send(question, **settings)


@requirement("R126")
async def test_ten_questions_find_passage_before_model_is_asked(docs: str) -> None:
    for question, answer in QUESTIONS.items():
        # The only step is the search: the model itself is not asked.
        result = await asked(question, FileSearch(stores=[docs], max_results=1), limits=Limits(max_steps=1))
        (run,) = result.tool_runs
        assert run.input == {"queries": [question]}
        (passage,) = result.tool_results[0].result["results"]
        assert passage["cite"] == 1
        assert answer in passage["text"], question


async def test_answer_follows_search_in_one_run(docs: str) -> None:
    result = await asked("How much does the pump weigh?", FileSearch(stores=[docs], max_results=1), limits=Limits())
    assert len(result.tool_runs) == 1
    assert result.finish_reason in ("stop", "length")
    assert result.output


@pytest.mark.parametrize(
    ("tools", "last", "is_first"),
    [
        ([SEARCH], "user", True),
        ([SEARCH, ToolSpec("other", "Other.", {"type": "object", "properties": {}})], "user", False),
        (
            [ToolSpec("file_search", "Searches.", {"type": "object", "properties": {}}, retrieve="called")],
            "user",
            False,
        ),
        ([ToolSpec("file_search", "Mine.", {"type": "object", "properties": {}})], "user", False),
        ([SEARCH], "tool", False),
    ],
)
def test_search_comes_first_only_alone_and_once(tools: list[ToolSpec], last: str, is_first: bool) -> None:
    passages = {"results": [{"cite": 1, "text": "The pump weighs 32 kg.", "score": 0.5}]}
    searched = [
        ChatMessage.model(ToolCallPart("c", "file_search", {"queries": ["pump"]})),
        ChatMessage("tool", (ToolResultPart("c", "file_search", passages, passages=(1, 1)),)),
    ]
    messages = [ChatMessage.user("How heavy is the pump?"), *(searched if last == "tool" else [])]
    model = LocalModel("smollm2-135m", Settings())
    call = model.encode(ModelRequest(messages=tuple(messages), tools=tuple(tools))).call
    assert call.url.endswith("/first-search") is is_first
    if is_first:
        assert loads(call.body or b"")["queries"] == ["How heavy is the pump?"]
    if last == "tool":
        assert loads(call.body or b"")["messages"][-1]["content"] == "[1] The pump weighs 32 kg."


async def test_other_models_warn_that_they_decide(docs: str) -> None:
    search = FileSearch(stores=[docs], retrieve="first")
    async with FakeProvider([ChatScript().text("ok").reply()]) as fake:
        agent = Agent("groq:m", base_url=fake.base_url, api_key="k", server_side_tools=[search])
        result = await agent.send("hi")
        await agent.aclose()
    assert any("retrieve" in warning for warning in result.warnings)
