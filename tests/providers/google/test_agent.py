"""Whole runs against a server on loopback that speaks Google's wire."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from requirements import requirement
from sidestream.agent.agent import Agent
from sidestream.errors import ProviderError, StreamTruncatedError
from sidestream.messages.message import ChatMessage, DataPart, ToolResultPart
from sidestream.parts import Custom, Error, Finish, StreamPart, StreamStart
from sidestream.providers.google import GoogleInteractionsOptions
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, Reply, json_reply, sse
from sidestream.testing.gemini_script import GeminiScript, InteractionScript
from sidestream.tools.server_side import CodeInterpreter, WebSearch
from sidestream.wire.http import HttpTransport
from sidestream.wire.retry import RetryPolicy
from support.streams import PNG, of, one, streamed_text

AT_ONCE = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)


def agent_at(fake: FakeProvider, model: str = "google:gemini-3-flash-preview", **settings: Any) -> Agent:
    return Agent(
        model,
        base_url=fake.base_url,
        api_key="canary-key-000000",
        transport=HttpTransport(retry=AT_ONCE),
        **settings,
    )


def gemini(*replies: Reply) -> FakeProvider:
    return FakeProvider(replies, base_path="")


async def run_parts(agent: Agent, prompt: str = "hi", **fields: Any) -> list[StreamPart]:
    async with agent.stream(prompt, errors="parts", **fields) as run:
        parts = [part async for part in run]
    grammar.check(parts)
    return parts


def weather(city: str) -> dict[str, Any]:
    """Weather of a city."""
    return {"city": city, "temperature": 20}


@requirement("R9", "R10")
@pytest.mark.parametrize("stream", [True, False])
async def test_streamed_and_non_streaming_results_are_equal(stream: bool):
    script = GeminiScript().thought("Hm.").code("plot()", "ok", call_id="c").inline_data(PNG).text("Here it is.")
    async with gemini(script.reply() if stream else script.whole_reply()) as fake:
        result = await agent_at(fake, server_side_tools=[CodeInterpreter()]).send("plot", stream=stream)
    assert (result.output, result.thinking, result.finish_reason) == ("Here it is.", "Hm.", "stop")
    assert [
        event.keys() & {"executableCode", "codeExecutionResult"} for event in result.metadata["code_execution"]
    ] == [
        {"executableCode"},
        {"codeExecutionResult"},
    ]
    assert [part.data for part in result.messages[-1].parts if isinstance(part, DataPart)] == [PNG]
    (request,) = fake.requests
    verb = "streamGenerateContent" if stream else "generateContent"
    assert request.path == f"/v1/models/gemini-3-flash-preview:{verb}"
    assert request.headers["x-goog-api-key"] == "canary-key-000000"


@requirement("R63", "R73")
async def test_tool_round_resends_signed_call_and_result():
    first = (
        GeminiScript().text("Let me see.", signature="s0").function_call("weather", {"city": "Köln"}, signature="s1")
    )
    second = GeminiScript().text("It is 20 degrees.")
    async with gemini(first.reply(), second.reply()) as fake:
        result = await agent_at(fake, tools=[weather]).send("Weather in Köln?")
    assert result.messages[-1].text == "It is 20 degrees."
    sent = json.loads(fake.requests[1].body)["contents"]
    assert sent[1] == {
        "role": "model",
        "parts": [
            {"text": "Let me see."},
            {"text": "", "thoughtSignature": "s0"},
            {"functionCall": {"name": "weather", "args": {"city": "Köln"}}, "thoughtSignature": "s1"},
        ],
    }
    (response,) = sent[2]["parts"]
    assert response["functionResponse"]["name"] == "weather"
    assert "id" not in response["functionResponse"]
    assert response["functionResponse"]["response"]["output"] == {"city": "Köln", "temperature": 20}


async def test_grounding_and_sources_are_on_message_and_result():
    script = GeminiScript().text("Köln ist schön.")
    script.grounding(
        {"web": {"uri": "https://k.example", "title": "K"}},
        supports=[(0, 17, "Köln ist schön.", [0])],
        webSearchQueries=["Köln"],
    )
    async with gemini(script.reply()) as fake:
        result = await agent_at(fake, server_side_tools=[WebSearch()]).send("Köln?")
    (source,) = result.sources
    assert (source.url, source.start, source.end, source.cited_text) == ("https://k.example", 0, 15, "Köln ist schön.")
    assert result.metadata["grounding_metadata"]["webSearchQueries"] == ["Köln"]
    assert result.messages[-1].metadata["grounding_metadata"] == result.metadata["grounding_metadata"]
    assert len(result.metadata["google_search"]) == 1


async def test_stream_warns_when_both_api_keys_are_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "google-key-000000")
    monkeypatch.setenv("GEMINI_API_KEY", "gemini-key-000000")
    async with gemini(GeminiScript().text("Hi").reply()) as fake:
        parts = await run_parts(Agent("gemini", base_url=fake.base_url))
    assert any("GEMINI_API_KEY" in warning for warning in one(parts, StreamStart).warnings)


@requirement("F01")
async def test_truncated_stream_raises_with_partial_result():
    chunks = GeminiScript().text("So far so good").chunks()
    async with gemini(sse(chunks[:-1])) as fake:
        with pytest.raises(StreamTruncatedError) as caught:
            await agent_at(fake).send("hi")
    assert caught.value.result is not None
    assert caught.value.result.output == "So far so"


@requirement("F03")
async def test_stream_error_is_reported_and_not_retried():
    async with gemini(GeminiScript().text("So far").error(503, "UNAVAILABLE", "overloaded").reply()) as fake:
        parts = await run_parts(agent_at(fake))
        assert len(fake.requests) == 1
    assert (one(parts, Error).code, one(parts, Error).retryable) == ("UNAVAILABLE", True)
    assert one(parts, Finish).reason == "error"


@requirement("F05", "R65")
async def test_blocked_prompt_returns_content_filter_result():
    async with gemini(GeminiScript().blocked("PROHIBITED_CONTENT").reply()) as fake:
        result = await agent_at(fake).send("something bad")
    assert (result.finish_reason, result.output) == ("content-filter", "")


async def test_paused_answer_is_continued_automatically():
    first = GeminiScript().text("One, ").finish("CONTINUATION").candidate(continuationToken="t0")
    async with gemini(first.reply(), GeminiScript().text("two.").reply()) as fake:
        result = await agent_at(fake).send("Count.")
    assert "".join(message.text for message in result.messages if message.role == "model") == "One, two."
    again = json.loads(fake.requests[1].body)
    assert again["continuationToken"] == "t0"
    assert again["contents"] == json.loads(fake.requests[0].body)["contents"]


@requirement("R66")
async def test_interaction_continues_from_previous_one():
    first = InteractionScript(interaction_id="v1_a").thought(signature="s").text("Hello Ann.")
    second = InteractionScript(interaction_id="v1_b").text("You are Ann.")
    async with gemini(first.reply(), second.whole_reply()) as fake:
        agent = agent_at(fake, "google:interactions/gemini-3-flash-preview")
        result = await agent.send("I am Ann.")
        later = await agent.send("Who am I?", history=result.messages, stream=False)
    assert (result.output, later.output, later.id) == ("Hello Ann.", "You are Ann.", "v1_b")
    sent = json.loads(fake.requests[1].body)
    assert fake.requests[1].path == "/v1/interactions"
    assert sent["previous_interaction_id"] == "v1_a"
    assert sent["input"] == [{"type": "user_input", "content": [{"type": "text", "text": "Who am I?"}]}]


@requirement("R66")
async def test_interaction_tool_round_sends_only_result():
    first = InteractionScript(interaction_id="v1_a").function_call("weather", {"city": "Köln"}, call_id="f1")
    async with gemini(first.reply(), InteractionScript().text("20 degrees.").reply()) as fake:
        result = await agent_at(fake, "google:interactions/gemini-3-flash-preview", tools=[weather]).send("Köln?")
    assert result.messages[-1].text == "20 degrees."
    sent = json.loads(fake.requests[1].body)
    assert sent["previous_interaction_id"] == "v1_a"
    (step,) = sent["input"]
    assert (step["type"], step["call_id"], step["result"]) == (
        "function_result",
        "f1",
        {"city": "Köln", "temperature": 20},
    )


@requirement("R66")
async def test_refused_session_falls_back_once_with_notice():
    error = {"error": {"code": 404, "message": "Previous interaction not found.", "status": "NOT_FOUND"}}
    first = InteractionScript(interaction_id="v1_a").thought(signature="s").text("Hello.")
    async with gemini(first.reply(), json_reply(error, status=404), InteractionScript().text("Yes.").reply()) as fake:
        agent = agent_at(fake, "google:interactions/gemini-3-flash-preview")
        result = await agent.send("Hi.")
        parts = await run_parts(agent, "Still there?", history=result.messages)
    notice = one(parts, Custom)
    assert (notice.kind, notice.data["reason"]) == ("sidestream.session-fallback", "refused")
    sent = json.loads(fake.requests[2].body)
    assert "previous_interaction_id" not in sent
    assert [step["type"] for step in sent["input"]] == ["user_input", "model_output", "user_input"]


async def test_second_refusal_raises():
    error = {"error": {"code": 404, "message": "Previous interaction not found.", "status": "NOT_FOUND"}}
    async with gemini(json_reply(error, status=404), json_reply(error, status=404)) as fake:
        options = GoogleInteractionsOptions(previous_interaction_id="v1_gone")
        with pytest.raises(ProviderError):
            await agent_at(fake, "google:interactions/gemini-3-flash-preview", options=options).send("Hi.")


async def test_history_moves_between_both_apis():
    first = InteractionScript(interaction_id="v1_a").thought(signature="s").text("Hello.")
    second = GeminiScript().text("Again.", signature="g")
    async with gemini(first.reply(), second.reply(), InteractionScript().text("Third.").reply()) as fake:
        interactions = agent_at(fake, "google:interactions/gemini-3-flash-preview")
        history = list((await interactions.send("One")).messages)
        history += (await agent_at(fake).send("Two", history=history)).messages
        await interactions.send("Three", history=history)
    generate = json.loads(fake.requests[1].body)["contents"]
    assert generate[1] == {"role": "model", "parts": [{"text": "Hello."}]}
    later = json.loads(fake.requests[2].body)
    assert later["previous_interaction_id"] == "v1_a"
    assert [step["type"] for step in later["input"]] == ["user_input", "model_output", "user_input"]


@requirement("R75")
async def test_history_from_other_provider_is_accepted():
    history = [
        ChatMessage.user("Weather?"),
        ChatMessage.model("I do not know.", metadata={"_responses_session": {"response_id": "resp_1"}}),
        ChatMessage("tool", (ToolResultPart("lost", "weather", 1),)),
    ]
    async with gemini(GeminiScript().text("Hi").reply()) as fake:
        await agent_at(fake).send("And now?", history=history)
    assert b"resp_1" not in fake.requests[0].body


@dataclass
class City:
    """A city."""

    name: str
    temperature: int


KOELN = '{"name": "Köln", "temperature": 20}'


@requirement("R64")
async def test_typed_output_with_tools_is_native_when_supported():
    first = GeminiScript().function_call("weather", {"city": "Köln"}, call_id="f", signature="s")
    async with gemini(first.reply(), GeminiScript().text(KOELN).reply()) as fake:
        result = await agent_at(fake, tools=[weather], output_type=City).send("Köln?")
    assert result.output == City("Köln", 20)
    for request in fake.requests:
        assert request.json["generationConfig"]["responseMimeType"] == "application/json"
        assert "tools" in request.json
    assert len(fake.requests) == 2


@requirement("R64")
async def test_typed_output_with_tools_takes_two_phases_as_fallback():
    call = GeminiScript(model="gemini-2.5-flash").function_call("weather", {"city": "Köln"})
    draft = GeminiScript(model="gemini-2.5-flash").thought("Hm.").text("It is 20 degrees in Köln.")
    typed = GeminiScript(model="gemini-2.5-flash").text(KOELN)
    async with gemini(call.reply(), draft.reply(), typed.reply()) as fake:
        agent = agent_at(fake, "google:gemini-2.5-flash", tools=[weather], output_type=City)
        parts = await run_parts(agent, "Köln?")
        requests = [request.json for request in fake.requests]
    assert streamed_text(parts) == KOELN
    assert [part.data for part in of(parts, Custom)] == [{"text": "It is 20 degrees in Köln."}]
    assert ["tools" in request for request in requests] == [True, True, False]
    assert ["responseJsonSchema" in request.get("generationConfig", {}) for request in requests] == [False, False, True]
    said = [part.get("text") for content in requests[2]["contents"] for part in content["parts"]]
    assert "It is 20 degrees in Köln." in said
    assert requests[2]["contents"][-1]["role"] == "user"


@requirement("R64")
async def test_typed_output_draft_is_in_metadata():
    model = {"model": "gemini-2.5-flash"}
    call = GeminiScript(**model).text("I look.").function_call("weather", {"city": "Köln"})
    drafted, typed = GeminiScript(**model).text("It is 20 degrees."), GeminiScript(**model).text(KOELN)
    async with gemini(call.reply(), drafted.reply(), typed.reply()) as fake:
        result = await agent_at(fake, "google:gemini-2.5-flash", tools=[weather], output_type=City).send("Köln?")
    assert result.metadata["draft"] == "I look.\nIt is 20 degrees."


async def test_generate_media_uses_image_output_for_images():
    script = GeminiScript().inline_data(PNG, thought=True).text("Here:").inline_data(PNG)
    async with gemini(script.reply()) as fake:
        agent = agent_at(fake, "google:gemini-2.5-flash-image")
        result = await agent.generate_media("a dot", mime_types=["image/png"])
        config = fake.requests[0].json["generationConfig"]
    assert config == {"responseModalities": ["TEXT", "IMAGE"]}
    assert [(file.mime_type, file.data) for file in result.assets] == [("image/png", PNG)]
    assert (result.metadata["way"], result.text) == ("image_output", "Here:")


async def test_generate_media_uses_code_for_other_files():
    script = GeminiScript().code("write()", "ok").inline_data(b"x,y\n1,2\n", "text/csv").text("Done.")
    async with gemini(script.reply()) as fake:
        result = await agent_at(fake).generate_media("a table", mime_types=["text/csv"])
        body = fake.requests[0].json
    assert body["tools"] == [{"codeExecution": {}}]
    assert "text/csv" in body["systemInstruction"]["parts"][0]["text"]
    assert [(file.mime_type, file.data) for file in result.assets] == [("text/csv", b"x,y\n1,2\n")]
