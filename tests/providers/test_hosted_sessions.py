"""Sessions of several turns with hosted tools: search, fetch, cite and follow up; plot and follow up; approve and go on.

Each turn opens the conversation again from its log, and the last one continues on another provider.
"""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, CodeInterpreter, RemoteMCP, WebFetch, WebSearch, XSearch
from sidestream.providers.google import GoogleInteractionsOptions
from sidestream.stream import grammar
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    GeminiScript,
    InteractionScript,
    MessagesScript,
    ResponsesScript,
    pixel_png,
)

OSLO, PAGE = "https://oslo.example/", "https://oslo.example/history"
SAID = ("Oslo is the capital.", "It was founded in 1040.", "That is all.")


def _openai() -> list[Any]:
    cited = {"type": "url_citation", "url": OSLO, "title": "Oslo", "start_index": 0, "end_index": len(SAID[0])}
    later = {**cited, "url": PAGE, "end_index": len(SAID[1])}
    opened = {"type": "web_search_call", "status": "completed", "action": {"type": "open_page", "url": PAGE}}
    return [
        ResponsesScript().web_search("Oslo", sources=[OSLO]).text(SAID[0], annotations=[cited]),
        ResponsesScript().item(opened).text(SAID[1], annotations=[later]),
        ResponsesScript().text(SAID[2]),
    ]


def _xai() -> list[Any]:
    cited = [{"type": "url_citation", "url": OSLO, "title": OSLO, "start_index": 0, "end_index": len(SAID[0])}]
    later = [{**cited[0], "url": PAGE, "end_index": len(SAID[1])}]
    return [
        ResponsesScript(dialect="xai")
        .reasoning("Hm.")
        .web_search("Oslo", sources=[OSLO])
        .text(SAID[0], annotations=cited),
        ResponsesScript(dialect="xai").x_search({"query": "Oslo"}).text(SAID[1], annotations=later),
        ResponsesScript(dialect="xai").text(SAID[2]),
    ]


def _anthropic() -> list[Any]:
    hit = {"type": "web_search_result", "url": OSLO, "title": "Oslo", "encrypted_content": "sealed"}
    cited = {"type": "web_search_result_location", "url": OSLO, "title": "Oslo", "encrypted_index": "x"}
    place = {"type": "char_location", "document_index": 0, "document_title": PAGE, "start_char_index": 0}
    return [
        MessagesScript().web_search("Oslo", [hit]).text(SAID[0], citations=[{**cited, "cited_text": "Oslo"}]),
        MessagesScript()
        .web_fetch(PAGE, "Founded in 1040. " * 2000, title="History")
        .text(SAID[1], citations=[{**place, "end_char_index": 16, "cited_text": "Founded in 1040."}]),
        MessagesScript().text(SAID[2]),
    ]


def _google() -> list[Any]:
    chunk, later = ({"web": {"uri": url, "title": "Oslo"}} for url in (OSLO, PAGE))
    return [
        GeminiScript().text(SAID[0]).grounding(chunk, supports=[(0, len(SAID[0]), SAID[0], [0])]),
        GeminiScript().text(SAID[1]).grounding(later, supports=[(0, len(SAID[1]), SAID[1], [0])]).url_context(PAGE),
        GeminiScript().text(SAID[2]),
    ]


def _groq() -> list[Any]:
    hit, page = ({"url": url, "title": "Oslo", "content": "Founded in 1040."} for url in (OSLO, PAGE))
    return [
        ChatScript().executed_tool("search", {"query": "Oslo"}, output="Title: Oslo", results=[hit]).text(SAID[0]),
        ChatScript().executed_tool("visit_website", {"url": PAGE}, browser_results=[page]).text(SAID[1]),
        ChatScript().text(SAID[2]),
    ]


SEARCHES: dict[str, Any] = {
    "openai-responses": (_openai, [WebSearch()]),
    "xai": (_xai, [WebSearch(), XSearch()]),
    "anthropic": (_anthropic, [WebSearch(), WebFetch(citations=True)]),
    "google": (_google, [WebSearch(), WebFetch()]),
    "groq:groq/compound": (_groq, [WebSearch(), WebFetch()]),
}
WITHOUT_SPANS = ("anthropic", "groq:groq/compound")
"""Providers whose sources do not name the text that they support."""


def fake_of(model: str, script: list[Any]) -> FakeProvider:
    replies = [entry.reply() for entry in script]
    return FakeProvider(replies, **({"base_path": ""} if model.startswith("google") else {}))


@requirement("R192")
@pytest.mark.parametrize("model", SEARCHES)
async def test_search_fetch_cite_and_follow_up(model: str, tmp_path: Path) -> None:
    script, tools = SEARCHES[model]
    store = tmp_path / "talk.db"
    async with fake_of(model, script()) as fake:
        async with Agent(model, base_url=fake.base_url, api_key="k", server_side_tools=tools) as agent:
            prompts = ["What is Oslo?", f"Read {PAGE}.", "Thanks."]
            results = [await Chat(agent, store=store, id="talk").send(prompt) for prompt in prompts]
        assert fake.unexpected == []
    for result in results:
        grammar.check(result.parts)
    assert [result.output for result in results] == [*SAID]
    spans = [(source.start, source.end) for source in (results[0].sources[-1], results[1].sources[-1])]
    assert model in WITHOUT_SPANS or spans == [(0, len(SAID[0])), (0, len(SAID[1]))]
    assert not results[2].sources

    async with FakeProvider([ChatScript().text("Oslo.").reply()]) as other:
        async with Agent("groq:m", base_url=other.base_url, api_key="k") as agent:
            last = await Chat(agent, store=store, id="talk").send("Which city was it?")
        (request,) = other.requests
    assert last.output == "Oslo."
    assert all(text in request.body.decode() for text in SAID)
    assert "sealed" not in request.body.decode()


PLOT = pixel_png() + bytes(30_000)


def _interaction_plot() -> Any:
    content = {"type": "image", "mime_type": "image/png", "data": b64encode(PLOT).decode()}
    return InteractionScript().hosted("code_execution", {"code": "plot()"}, [content]).text("See the plot.")


def _plot() -> Any:
    return GeminiScript().code("plot()", "ok").inline_data(PLOT).text("See the plot.")


def _printed_plot() -> Any:
    url = f"data:image/png;base64,{b64encode(PLOT).decode()}"
    return GeminiScript().code("plot()", url).text("See the plot.")


def _groq_plot() -> Any:
    images = [{"png": b64encode(PLOT).decode()}]
    return ChatScript().executed_tool("python", {"code": "plot()"}, code_results=images).text("See the plot.")


INTERACTIONS = "google:interactions/gemini-3-flash-preview"
PLOTS: dict[str, Any] = {
    "file": ("google", _plot, GeminiScript, None),
    "printed": ("google", _printed_plot, GeminiScript, None),
    "groq": ("groq", _groq_plot, ChatScript, None),
    "stored": (INTERACTIONS, _interaction_plot, InteractionScript, None),
    "unstored": (INTERACTIONS, _interaction_plot, InteractionScript, GoogleInteractionsOptions(store=False)),
}


@requirement("R192")
@pytest.mark.parametrize("case", PLOTS)
async def test_plot_without_container_is_not_resent(case: str, tmp_path: Path) -> None:
    model, plotted, script, options = PLOTS[case]
    answers = [plotted(), *(script().text(text) for text in ("Red.", "Bye."))]
    async with fake_of(model, answers) as fake:
        async with Agent(
            model, base_url=fake.base_url, api_key="k", server_side_tools=[CodeInterpreter()], options=options
        ) as agent:
            prompts = ["Plot it.", "Which colour?", "Thanks."]
            results = [await Chat(agent, store=tmp_path / "talk.db", id="talk").send(prompt) for prompt in prompts]
        assert max(len(request.body) for request in fake.requests) < 10_000
    assert [len(result.files) for result in results] == [1, 0, 0]


@requirement("R192")
async def test_hosted_approval_is_resumed_and_followed_up(tmp_path: Path) -> None:
    listed = {"name": "buy", "input_schema": {"type": "object"}, "annotations": None, "description": None}
    asks = ResponsesScript().mcp_list_tools("shop", listed).mcp_approval_request("shop", "buy", {"item": "tea"})
    done = ResponsesScript().mcp_call("shop", "buy", {"item": "tea"}, output="bought").text("Tea is on its way.")
    server = RemoteMCP(label="shop", url="https://shop.example/mcp", require_approval="always")
    store = tmp_path / "talk.db"
    async with fake_of("openai-responses", [asks, done, ResponsesScript().text("You bought tea.")]) as fake:
        async with Agent("openai-responses", base_url=fake.base_url, api_key="k", server_side_tools=[server]) as agent:
            asked = await Chat(agent, store=store, id="talk").send("Buy tea.")
            again = Chat(agent, store=store, id="talk")
            await again.load()
            bought = await again.resume([entry.approve() for entry in again.approvals])
            last = await Chat(agent, store=store, id="talk").send("What did I buy?")
        bodies = [request.json for request in fake.requests]
    assert (asked.finish_reason, bought.output, last.output) == ("approval", "Tea is on its way.", "You bought tea.")
    assert [item["type"] for item in bodies[1]["input"]] == ["mcp_approval_response"]
    assert "mcp_approval_response" not in json.dumps(bodies[2])
