"""Conversations that go on by the id of the interaction before, and what happens where they cannot."""

import base64
import json
from typing import Any

import msgspec
import pytest

from providers.google.gemini_wire import MODEL, interaction
from requirements import requirement
from sidestream.errors import ConfigurationError, ProtocolError, ProviderError
from sidestream.messages.message import ChatMessage, DataPart, LinkPart, TextPart, ToolCallPart, ToolResultPart
from sidestream.output import OutputSchema
from sidestream.parts import Custom
from sidestream.providers.google import PROVIDER, GoogleInteractionsOptions
from sidestream.providers.google.interactions.model import InteractionsModel
from sidestream.providers.protocol import Encoded, FileRef, ModelRequest, Settings
from sidestream.testing.gemini_script import InteractionScript
from sidestream.tools.server_side import CodeInterpreter
from sidestream.tools.spec import ToolSpec
from support.streams import PNG, messages as folded

HELLO, MORE = ChatMessage.user("Hello"), ChatMessage.user("And now?")
BASE_URL = "https://gemini.example/v1"
TOOL = ToolSpec("weather", "Weather.", {"type": "object"})


def model(name: str = MODEL, base_url: str = BASE_URL) -> InteractionsModel:
    chat = PROVIDER.chat_model(f"interactions/{name}", Settings(api_key="key-0123456789", base_url=base_url))
    assert isinstance(chat, InteractionsModel)
    return chat


def encoded(*messages: ChatMessage, name: str = MODEL, base_url: str = BASE_URL, **fields: Any) -> Encoded:
    return model(name, base_url).encode(ModelRequest(messages=messages, **fields))


def body(*messages: ChatMessage, **fields: Any) -> dict[str, Any]:
    return json.loads(encoded(*messages, **fields).call.body or b"")


def answer(script: InteractionScript, *history: ChatMessage, store: bool = True, **context: Any) -> ChatMessage:
    """The message that an interaction folds to, asked for with this history."""
    known = {"model": MODEL, "base_url": BASE_URL, "messages": history or (HELLO,), "store": store}
    (message,) = folded(interaction(script.chunks(), **{**known, **context}))
    return message


def said(text: str = "Hi!", identity: str = "v1_first") -> InteractionScript:
    return InteractionScript(interaction_id=identity).thought(signature="sig").text(text)


def user_input(text: str) -> dict[str, Any]:
    return {"type": "user_input", "content": [{"type": "text", "text": text}]}


def test_first_request_has_model_input_and_instructions():
    made = encoded(ChatMessage.system("Be brief."), HELLO, system="Be kind.")
    assert made.call.url == f"{BASE_URL}/interactions"
    assert json.loads(made.call.body or b"") == {
        "model": MODEL,
        "input": [user_input("Hello")],
        "system_instruction": "Be kind.\n\nBe brief.",
        "stream": True,
    }


def test_agent_names_are_sent_as_agents():
    assert body(HELLO, name="deep-research-preview-04-2026")["agent"] == "deep-research-preview-04-2026"
    assert body(HELLO, name="agents/mine")["agent"] == "mine"
    assert body(HELLO, name="mine", options=GoogleInteractionsOptions(agent=True))["agent"] == "mine"


@requirement("R66")
def test_only_messages_after_newest_session_are_sent():
    sent = body(HELLO, answer(said()), MORE)
    assert sent["previous_interaction_id"] == "v1_first"
    assert sent["input"] == [user_input("And now?")]


@requirement("R66")
def test_foreign_messages_after_session_are_sent_in_order():
    foreign = ChatMessage.model("Elsewhere.", metadata={"_responses_session": {"response_id": "resp_1"}})
    sent = body(HELLO, answer(said()), MORE, foreign, HELLO)
    assert sent["previous_interaction_id"] == "v1_first"
    assert sent["input"] == [
        user_input("And now?"),
        {"type": "model_output", "content": [{"type": "text", "text": "Elsewhere."}]},
        user_input("Hello"),
    ]


def test_every_stored_call_gets_function_result():
    script = InteractionScript(interaction_id="v1_first").function_call("weather", {"city": "A"}, call_id="f1")
    call = answer(script.function_call("weather", {"city": "B"}, call_id="f2"))
    sent = body(HELLO, call, ChatMessage("tool", (ToolResultPart("f1", "weather", {"t": 20}),)))
    assert sent["input"] == [
        {"type": "function_result", "call_id": "f1", "name": "weather", "result": {"t": 20}},
        {
            "type": "function_result",
            "call_id": "f2",
            "name": "weather",
            "result": "This call was not executed.",
            "is_error": True,
        },
    ]


@requirement("R66")
@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("model-changed", {"name": "gemini-2.5-flash"}),
        ("base-url-changed", {"base_url": "https://other.example/v1"}),
    ],
)
def test_other_model_or_server_gets_full_history_with_notice(reason: str, fields: dict[str, Any]):
    made = encoded(HELLO, answer(said()), MORE, **fields)
    sent = json.loads(made.call.body or b"")
    assert "previous_interaction_id" not in sent
    assert sent["input"] == [
        user_input("Hello"),
        {"type": "model_output", "content": [{"type": "text", "text": "Hi!"}]},
        user_input("And now?"),
    ]
    (notice,) = made.notices
    assert isinstance(notice, Custom)
    assert (notice.kind, notice.data["reason"]) == ("sidestream.session-fallback", reason)


@requirement("R66")
def test_edited_history_is_resent_in_full_with_notice():
    first = answer(said())
    edited = msgspec.structs.replace(first, parts=(TextPart("Changed", "text-1"),))
    for history, reason in (((HELLO, edited), "message-edited"), ((MORE, first), "history-edited")):
        made = encoded(*history, MORE)
        (notice,) = made.notices
        assert isinstance(notice, Custom)
        assert notice.data["reason"] == reason
        sent = json.loads(made.call.body or b"")["input"]
        assert [step["type"] for step in sent] == ["user_input", "model_output", "user_input"]
        assert sent[1]["content"][0]["text"] == ("Changed" if reason == "message-edited" else "Hi!")


@requirement("R66")
def test_refused_session_is_dropped_once():
    refused = ProviderError("Previous interaction v1_first not found", status=404)
    recovery = model().recover(refused)
    assert recovery is not None
    assert recovery.drop == "session"
    sent = body(HELLO, answer(said()), MORE, without=frozenset({"session"}))
    assert "previous_interaction_id" not in sent
    assert [step["type"] for step in sent["input"]] == ["user_input", "model_output", "user_input"]
    assert model().recover(ProviderError("model not found", status=404)) is None
    assert model().recover(ProviderError("previous interaction", status=500)) is None


@requirement("R66")
def test_store_false_replays_steps_without_session():
    options = GoogleInteractionsOptions(store=False)
    unstored = answer(InteractionScript(stored=False).thought(signature="sig").text("Hi!"), store=False)
    assert unstored.metadata.keys() == {"_google_interactions_replay_session"}
    sent = body(HELLO, unstored, MORE, options=options)
    assert [step["type"] for step in sent["input"]] == ["user_input", "thought", "model_output", "user_input"]
    assert sent["store"] is False
    assert "previous_interaction_id" not in body(HELLO, answer(said()), MORE, options=options)


def test_option_sets_previous_interaction():
    options = GoogleInteractionsOptions(previous_interaction_id="v1_first")
    assert body(HELLO, answer(said()), MORE, options=options)["input"] == [user_input("And now?")]
    sent = body(MORE, options=GoogleInteractionsOptions(previous_interaction_id="v1_elsewhere"))
    assert sent["previous_interaction_id"] == "v1_elsewhere"


def test_full_replay_keeps_step_order():
    script = said().hosted("google_search", {"queries": ["x"]}, ["y"], call_id="t").file(PNG)
    call = answer(script.function_call("weather", {"city": "A"}, call_id="f1"), store=False)
    result = ChatMessage("tool", (ToolResultPart("f1", "weather", [1], is_error=True),))
    fields: dict[str, Any] = {"tools": (TOOL,), "without": frozenset({"session"})}
    sent = body(HELLO, call, result, **fields)["input"]
    assert sent == [
        user_input("Hello"),
        {"type": "thought", "signature": "sig"},
        {"type": "model_output", "content": [{"type": "text", "text": "Hi!"}]},
        {"type": "google_search_call", "id": "t", "arguments": {"queries": ["x"]}},
        {"type": "google_search_result", "call_id": "t", "result": ["y"]},
        {
            "type": "model_output",
            "content": [{"type": "image", "mime_type": "image/png", "data": base64.b64encode(PNG).decode()}],
        },
        {"type": "function_call", "id": "f1", "name": "weather", "arguments": {"city": "A"}},
        {"type": "function_result", "call_id": "f1", "name": "weather", "result": {"output": [1]}, "is_error": True},
    ]
    removed = msgspec.structs.replace(call, parts=())
    left = [step["type"] for step in body(HELLO, removed, MORE, **fields)["input"]]
    assert left == ["user_input", "thought", "google_search_call", "google_search_result", "user_input"]


def test_content_of_all_kinds_is_encoded():
    user = ChatMessage.user(
        DataPart(PNG, "image/png"),
        DataPart(b"x", "text/csv"),
        LinkPart("https://x.example/a.mp3"),
        LinkPart("https://x.example"),
    )
    assert body(user)["input"][0]["content"] == [
        {"type": "image", "mime_type": "image/png", "data": base64.b64encode(PNG).decode()},
        {"type": "document", "mime_type": "text/csv", "data": "eA=="},
        {"type": "audio", "mime_type": "audio/mpeg", "uri": "https://x.example/a.mp3"},
        {"type": "text", "text": "https://x.example"},
    ]


def test_foreign_calls_keep_their_result_pairs():
    foreign = ChatMessage.model(ToolCallPart("toolu_1", "weather", {"a": 1}))
    sent = body(HELLO, foreign, ChatMessage("tool", (ToolResultPart("toolu_1", "weather", 3),)))["input"]
    assert sent[1:] == [
        {"type": "function_call", "id": "toolu_1", "name": "weather", "arguments": {"a": 1}},
        {"type": "function_result", "call_id": "toolu_1", "name": "weather", "result": "3"},
    ]
    assert encoded(HELLO, ChatMessage("tool", (ToolResultPart("x", "y", 1),))).warnings


def test_reused_container_is_last_environment():
    first = answer(said().finish("completed", environment_id="env_1"))
    assert first.metadata["_google_interactions_session"]["environment_id"] == "env_1"
    assert (
        body(HELLO, first, MORE, server_side_tools=(CodeInterpreter(reuse_container=True),))["environment"] == "env_1"
    )
    assert "environment" not in body(HELLO, first, MORE, server_side_tools=(CodeInterpreter(),))


def test_paused_interaction_continues_by_token():
    first = answer(said("One").finish("requires_continuation", continuation_token="t"))
    sent = body(HELLO, first)
    assert sent["continuation_token"] == "t"
    assert sent["input"] == [user_input("Hello")]


@requirement("R64")
def test_typed_output_is_native_or_two_phase_by_family():
    schema = OutputSchema("City", {"type": "object"})
    native = encoded(HELLO, tools=(TOOL,), output_schema=schema)
    assert not native.defers_output
    form = {"type": "text", "mime_type": "application/json", "schema": {"type": "object"}}
    assert json.loads(native.call.body or b"")["response_format"] == form
    first = encoded(HELLO, name="gemini-2.5-flash", tools=(TOOL,), output_schema=schema)
    assert first.defers_output
    assert "response_format" not in json.loads(first.call.body or b"")
    draft = answer(said("It is Köln."), drafts=True, model="gemini-2.5-flash")
    second = body(
        HELLO, draft, name="gemini-2.5-flash", tools=(TOOL,), output_schema=schema, without=frozenset({"tools"})
    )
    assert "tools" not in second
    assert second["response_format"] == form
    assert second["previous_interaction_id"] == "v1_first"
    assert "JSON" in second["input"][-1]["content"][0]["text"]


def test_interactions_are_fetched_resumed_cancelled_and_deleted():
    chat = model()
    assert chat.retrieve("v1_a").url == f"{BASE_URL}/interactions/v1_a"
    resumed = chat.retrieve("v1_a", stream=True, last_event_id="e 7", include_input=True)
    assert resumed.url == f"{BASE_URL}/interactions/v1_a?stream=true&last_event_id=e+7&include_input=true"
    assert (resumed.method, resumed.stream) == ("GET", True)
    assert (chat.cancel("v1_a").method, chat.cancel("v1_a").url) == ("POST", f"{BASE_URL}/interactions/v1_a/cancel")
    assert (chat.delete("v1/../a").method, chat.delete("v1/../a").url) == (
        "DELETE",
        f"{BASE_URL}/interactions/v1%2F..%2Fa",
    )
    assert chat.cancel("v1_a").headers["x-goog-api-key"] == "key-0123456789"
    with pytest.raises(ProtocolError):
        chat.cancel("..")
    background = body(HELLO, options=GoogleInteractionsOptions(background=True), stream=False)
    assert (background["background"], background["stream"]) == (True, False)


def test_environment_files_are_downloaded_by_path():
    ref = FileRef(id="out/plot 1.png", container_id="env_1")
    assert model().download(ref).url == f"{BASE_URL}/environments/env_1/files/out/plot%201.png?alt=media"
    with pytest.raises(ProtocolError):
        model().download(FileRef(id="../../secrets", container_id="env_1"))
    assert model().download(FileRef(id="files/abc")).url == f"{BASE_URL}/files/abc:download?alt=media"


def test_empty_request_raises():
    with pytest.raises(ConfigurationError):
        encoded(ChatMessage.user())
