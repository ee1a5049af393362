"""Sessions of four to six turns whose answers real providers gave, driven through the run loop with a store.

No recording has more than two turns, so a session joins several of one provider. The prompts are the recorded ones.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from requirements import requirement
from sidestream import Agent, Chat, CodeInterpreter, Limits, WebFetch, WebSearch, open_store
from sidestream.replay.recording import Exchange, Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.stream import grammar
from sidestream.transport.calls import HttpCall, HttpResponse
from support.places import RECORDINGS

MODEL = re.compile(r"/(responses|messages|models/[^/]+:\w+)$")


class Session(Struct, frozen=True):
    """Recordings of one provider, in order."""

    provider: str
    names: tuple[str, ...]
    tools: tuple[Any, ...]
    ran: tuple[tuple[str, ...], ...]
    """Portable names of the tools that ran in each turn."""
    files: tuple[str, ...] = ()
    """Names of the deliverables."""


SEARCHED, FETCHED, RAN = ("web_search",), ("web_fetch",), ("code_interpreter",)
SESSIONS = {
    "anthropic-research": Session(
        "anthropic",
        ("anthropic_web_search_tool", "anthropic_web_fetch_tool"),
        (WebSearch(), WebFetch()),
        (SEARCHED, SEARCHED, FETCHED, ()),
        ("Pydantic AI.txt",),
    ),
    "anthropic-code": Session(
        "anthropic",
        ("anthropic_code_execution_tool_container_reuse", "anthropic_model_thinking_part"),
        (CodeInterpreter(),),
        (RAN, RAN, (), ()),
    ),
    "openai-research": Session(
        "openai-responses",
        ("openai_responses_model_web_search_tool", "openai_responses_model_web_search_tool_stream"),
        (WebSearch(),),
        (SEARCHED, SEARCHED, SEARCHED, SEARCHED),
    ),
    "openai-code": Session(
        "openai-responses",
        ("openai_responses_thinking_with_code_execution_tool", "openai_responses_code_execution_return_image"),
        (CodeInterpreter(),),
        (RAN, (), RAN, RAN),
        ("output_1_0.png", "output_1_1.png"),
    ),
    "google-research": Session(
        "google",
        ("google_model_web_search_tool", "google_model_web_search_tool_stream"),
        (WebSearch(),),
        (SEARCHED, SEARCHED, SEARCHED, SEARCHED),
    ),
    "google-code": Session(
        "google",
        ("code_execution", "google_model_thinking_part"),
        (CodeInterpreter(),),
        (RAN * 2, RAN * 2, (), ()),
    ),
}


class Heard(ReplayTransport):
    """A replay that keeps the calls."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self.calls: list[HttpCall] = []

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        self.calls.append(call)
        return await super().open(call, limits)


def answers_of(session: Session) -> list[Exchange]:
    found: list[Exchange] = []
    for name in session.names:
        (path,) = RECORDINGS.glob(f"{session.provider}/p-test_{name}.json")
        exchanges = Recording.load(path).exchanges
        found += [each for each in exchanges if MODEL.search(each.request.path.partition("?")[0])]
    return found


def prompt_of(exchange: Exchange) -> str:
    """The text of the request's last message."""
    body = exchange.request.body
    body = json.loads(body) if isinstance(body, str) else body
    messages: Any = body.get("messages") or body.get("input") or body.get("contents")
    last = messages[-1]
    content = last.get("content") or last.get("parts")
    return content if isinstance(content, str) else content[-1]["text"]


@requirement("R193")
@pytest.mark.skipif(not RECORDINGS.exists(), reason="there are no recordings")
@pytest.mark.parametrize("name", SESSIONS)
async def test_recorded_session_runs_turn_by_turn(name: str, tmp_path: Path) -> None:
    session = SESSIONS[name]
    answers = answers_of(session)
    prompts = [prompt_of(each) for each in answers]
    transport = Heard(Recording(tuple(answers)))
    store = open_store(tmp_path / "talk.db")
    agent = Agent(session.provider, api_key="k", transport=transport, server_side_tools=session.tools)
    async with agent:
        # Each turn opens the conversation again.
        results = [await Chat(agent, store=store, id="talk").send(prompt) for prompt in prompts]
        chat = Chat(agent, store=store, id="talk")
        await chat.load()
    await store.aclose()
    assert transport.remaining == 0
    for result, ran in zip(results, session.ran, strict=True):
        grammar.check(result.parts)
        assert (result.finish_reason, tuple(run.tool for run in result.tool_runs)) == ("stop", ran)
        for run in result.tool_runs:
            assert [stage.stage for stage in run.stages] == ["started", "running", "completed"]
    assert tuple(file.name for result in results for file in result.files) == session.files
    assert [message.text for message in chat.messages if message.role == "user"] == prompts
    said = [message.text for message in chat.messages if message.role == "model"]
    assert said == [result.output for result in results]
    for number, call in enumerate(transport.calls[1:], 1):
        sent = json.loads(call.body or b"")
        # The provider has the earlier turns, or gets them all.
        earlier = prompts[:0] if sent.get("previous_response_id") else prompts[:number]
        assert all(json.dumps(prompt) in json.dumps(sent) for prompt in [*earlier, prompts[number]])
