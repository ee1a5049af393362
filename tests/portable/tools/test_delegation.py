"""Tools by delegation: a run inside the run, on a model that hosts the tool."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from requirements import requirement
from sidestream import (
    Agent,
    Chat,
    ConfigurationError,
    DataPart,
    File,
    ImageGeneration,
    Memory,
    RemoteMCP,
    RunState,
    Source,
    StreamPart,
    ToolResult,
    UnsupportedError,
    WebSearch,
    open_store,
)
from sidestream.parts import ToolEvent
from sidestream.testing import ChatScript, FakeProvider, ResponsesScript, ScriptedModel, check_stream, tool_call

BY = "openai-responses"


@asynccontextmanager
async def host(patch: pytest.MonkeyPatch, *script: ResponsesScript) -> AsyncGenerator[FakeProvider]:
    """A provider that hosts tools, found through the environment as a delegate is."""
    async with FakeProvider([entry.reply() for entry in script]) as fake:
        patch.setenv("OPENAI_API_KEY", "k")
        patch.setenv("OPENAI_BASE_URL", fake.base_url)
        yield fake


async def parts_of(agent: Agent) -> list[StreamPart]:
    async with agent.stream("Draw a cat") as run:
        parts = [part async for part in run]
    check_stream(parts)
    return parts


@requirement("R127")
async def test_delegated_image_has_stages_previews_and_file(
    monkeypatch: pytest.MonkeyPatch,
):
    async with host(monkeypatch, ResponsesScript().image(b"\x89PNG\r\n\x1a\nimage", partials=2).text("A cat")) as fake:
        model = ScriptedModel([tool_call("image_generation", prompt="a cat"), "Here it is"])
        agent = Agent(model, server_side_tools=[ImageGeneration(via=BY, partial_images=2)])
        parts = await parts_of(agent)
        asked = fake.requests[0].json
    assert asked["tools"] == [{"type": "image_generation", "partial_images": 2}]
    assert "a cat" in str(asked["input"])
    stages = [part.provider_stage for part in parts if isinstance(part, ToolEvent)]
    assert stages == [
        *("added", "in_progress", "generating", "partial_image", "partial_image", "completed", "done"),
        "finish",
    ]
    results = [part for part in parts if isinstance(part, ToolResult)]
    assert [part.preliminary for part in results] == [True, True, False]
    final = results[-1].result
    assert (final["status"], final["text"], final["by"]) == ("completed", "A cat", BY)
    file = next(part for part in parts if isinstance(part, File))
    assert (file.data, file.tool, file.call_id) == (b"\x89PNG\r\n\x1a\nimage", "image_generation", results[-1].id)
    marked = [part for part in parts if isinstance(part, ToolEvent | File) or (part in results and part.preliminary)]
    by = [
        (part.provider_metadata or {}).get("sidestream")
        for part in marked
        if getattr(part, "provider_stage", "") != "finish"
    ]
    assert by == [{"by": BY}] * len(by)


@requirement("R127")
async def test_delegate_usage_counts_for_run(monkeypatch: pytest.MonkeyPatch):
    async with host(monkeypatch, ResponsesScript().image().text("A cat")):
        model = ScriptedModel([tool_call("image_generation", prompt="a cat"), "ok"])
        result = await Agent(model, server_side_tools=[ImageGeneration(via=BY)]).send("Draw")
    assert result.usage is not None
    assert result.usage.server_tool_use == {"image_generation": 1}
    assert [type(part) for part in result.messages[-1].parts][:1] == [DataPart]
    assert result.metadata["image_generation"][0]["type"] == "response.output_item.added"


@requirement("R127")
async def test_delegated_search_keeps_sources(monkeypatch: pytest.MonkeyPatch):
    cites = [
        {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 0, "end_index": 4},
    ]
    script = ResponsesScript().web_search("oslo", sources=["https://a.example"]).text("Oslo", annotations=cites)
    async with (
        host(monkeypatch, script),
        FakeProvider(
            [ChatScript().tool_call("web_search", {"query": "oslo"}).reply(), ChatScript().text("It is Oslo").reply()]
        ) as fake,
    ):
        agent = Agent("groq:m", base_url=fake.base_url, api_key="k", server_side_tools=[WebSearch(via=BY)])
        parts = await parts_of(agent)
    source = next(part for part in parts if isinstance(part, Source))
    assert (source.url, source.title, source.text_id) == ("https://a.example", "A", None)
    result = next(part for part in parts if isinstance(part, ToolResult))
    found = {"cite": 1, "type": "url", "url": "https://a.example", "title": "A", "snippet": "Oslo"}
    assert result.result["sources"] == [found]
    assert result.result["text"] == "Oslo"


@requirement("R129")
async def test_delegated_search_can_be_cited(monkeypatch: pytest.MonkeyPatch):
    said = (
        "Oslo has 717,000 people. ([a.example](https://a.example)) Bergen has 291,000. ([b.example](https://b.example))"
    )
    cites = [
        {
            "type": "url_citation",
            "url": f"https://{name}.example",
            "title": name.upper(),
            "start_index": said.index(f"([{name}"),
            "end_index": said.index(")", said.index(f"(https://{name}")) + 2,
        }
        for name in ("a", "b")
    ]
    script = ResponsesScript().web_search("oslo", sources=["https://c.example", "https://b.example"])
    async with host(monkeypatch, script.text(said, annotations=cites)):
        model = ScriptedModel([tool_call("web_search", query="oslo"), "Bergen has 291,000 [cite:1]."])
        result = await Agent(model, server_side_tools=[WebSearch(via=BY)]).send("How large is Bergen?")
    sources = result.tool_results[0].result["sources"]
    assert [(entry.get("cite"), entry["url"]) for entry in sources] == [
        (None, "https://c.example"), (1, "https://b.example"), (2, "https://a.example"),
    ]  # fmt: skip
    assert "291,000" in sources[1]["snippet"]
    assert result.output == "Bergen has 291,000."
    (cited,) = [source for source in result.sources if source.start is not None]
    assert (cited.url, cited.title, cited.evidence.state) == ("https://b.example", "B", "quoted")
    assert result.output[cited.start : cited.end] == "Bergen has 291,000"


@requirement("R125")
async def test_model_can_be_search_engine(monkeypatch: pytest.MonkeyPatch):
    async with host(monkeypatch, ResponsesScript().web_search("oslo", sources=["https://a.example"]).text("Oslo")):
        model = ScriptedModel([tool_call("web_search", query="oslo"), "ok"])
        result = await Agent(model, server_side_tools=[WebSearch(engine=f"{BY}:gpt-5.6")]).send("x")
    assert result.tool_results[0].result["by"] == f"{BY}:gpt-5.6"
    assert result.tool_results[0].result["sources"] == [{"type": "url", "url": "https://a.example"}]


@requirement("R127")
async def test_default_delegate_is_first_provider_with_key(monkeypatch: pytest.MonkeyPatch, without_keys: None):
    with pytest.raises(UnsupportedError, match="via="):
        await Agent(ScriptedModel([]), server_side_tools=[ImageGeneration(execution="here")]).send("x")
    async with host(monkeypatch, ResponsesScript().image().text("ok")):
        model = ScriptedModel([tool_call("image_generation", prompt="x"), "ok"])
        result = await Agent(model, server_side_tools=[ImageGeneration(execution="here")]).send("x")
    assert len(result.files) == 1


@pytest.fixture
def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("tool", "error"),
    [
        (lambda: ImageGeneration(via="anthropic"), ConfigurationError),
        (lambda: Memory(via="anthropic"), UnsupportedError),
        (lambda: ImageGeneration(via=BY, execution="provider"), UnsupportedError),
    ],
)
async def test_unsupported_delegation_is_refused(tool: Callable[[], ImageGeneration], error: type[Exception]):
    with pytest.raises(error):
        await Agent(ScriptedModel([]), server_side_tools=[tool()]).send("x")


async def test_failed_or_unused_delegate_is_error_result(monkeypatch: pytest.MonkeyPatch):
    async with host(monkeypatch, ResponsesScript().text("I would rather not"), ResponsesScript().failed()):
        call = tool_call("image_generation", prompt="x")
        agent = Agent(ScriptedModel([call, call, "ok"]), server_side_tools=[ImageGeneration(via=BY)])
        results = (await agent.send("x")).tool_results
    assert [entry.is_error for entry in results] == [True, True]
    assert "I would rather not" in results[0].result["message"]


@requirement("R127")
async def test_delegate_approval_is_asked_by_outer_run(monkeypatch: pytest.MonkeyPatch):
    """The delegate's provider requests approval of an MCP call of its own before it searches."""
    asks = ResponsesScript().mcp_approval_request("docs", "read", {"page": 1})
    answers = ResponsesScript().web_search("x").text("found")
    async with host(monkeypatch, asks, answers):
        model = ScriptedModel([tool_call("web_search", query="x"), "done"])
        agent = Agent(model, server_side_tools=[WebSearch(via=BY)])
        waiting = await agent.send("x")
        assert waiting.finish_reason == "approval"
        assert waiting.run_state is not None
        state = RunState.from_json(waiting.run_state.to_json())
        result = await agent.resume(state, [entry.approve() for entry in state.approvals])
    assert result.output == "done"
    assert RemoteMCP.key not in result.metadata


async def test_chat_continues_with_other_provider_after_delegation(monkeypatch: pytest.MonkeyPatch, tmp_path):
    async with host(monkeypatch, ResponsesScript().image().text("A cat"), ResponsesScript().text("A cat, I said")):
        store = open_store(tmp_path / "talks.db")
        model = ScriptedModel([tool_call("image_generation", prompt="a cat"), "Here"])
        chat = Chat(Agent(model, server_side_tools=[ImageGeneration(via=BY)]), store=store, id="c")
        await chat.send("Draw a cat")
        later = Chat(Agent(BY, server_side_tools=[ImageGeneration()]), store=store, id="c")
        result = await later.send("What is it?")
        await store.aclose()
    assert result.output == "A cat, I said"
