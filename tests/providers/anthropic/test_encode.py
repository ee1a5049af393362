"""Histories and tools on the wire."""

import base64
import json
from typing import Any

import pytest

from providers.anthropic.messages_wire import FOUND, MODEL, URL, WEB_CITATION, decode
from requirements import requirement
from sidestream.errors import ConfigurationError
from sidestream.messages.message import (
    ChatMessage,
    DataPart,
    LinkPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.output import OutputSchema
from sidestream.providers.anthropic import PROVIDER, AnthropicOptions, AnthropicThinking
from sidestream.providers.protocol import ModelRequest, Settings
from sidestream.testing.messages_script import MessagesScript
from sidestream.tools.server_side import CodeInterpreter, WebSearch
from sidestream.tools.spec import ToolSpec
from support.streams import PNG, PNG_BASE64, messages

Json = dict[str, Any]
BASE = "https://anthropic.example"
TOOL = ToolSpec("get_weather", "Weather of a city.", {"type": "object", "properties": {"city": {"type": "string"}}})
HI = ChatMessage.user("Hi")


def encode(*history: ChatMessage, model: str = MODEL, **fields: Any) -> Json:
    chat = PROVIDER.chat_model(model, Settings(api_key="k", base_url=BASE))
    return json.loads(chat.encode(ModelRequest(messages=history, **fields)).call.body or b"")


def warnings(*history: ChatMessage) -> tuple[str, ...]:
    chat = PROVIDER.chat_model(MODEL, Settings(api_key="k", base_url=BASE))
    return chat.encode(ModelRequest(messages=history)).warnings


def answer(script: MessagesScript, model: str = MODEL, **context: Any) -> ChatMessage:
    """The message that a streamed answer of this provider becomes."""
    (message,) = messages(decode(script.events(), model=model, base_url=f"{BASE}/v1", **context))
    return message


def replaced(message: ChatMessage, *parts: Any) -> ChatMessage:
    return ChatMessage(message.role, parts, message.metadata)


def result(call_id: str, value: Any = "sunny", **fields: Any) -> ChatMessage:
    return ChatMessage("tool", (ToolResultPart(call_id, "f", value, **fields),))


def kinds(message: Json) -> list[str]:
    return [block["type"] for block in message["content"]]


@requirement("R50")
def test_request_defaults_to_4096_max_tokens():
    assert encode(HI, system="Be kind.") == {
        "model": MODEL,
        "max_tokens": 4096,
        "system": "Be kind.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "stream": True,
    }


def test_system_messages_go_first_or_keep_their_position():
    body = encode(ChatMessage.system("A"), HI, ChatMessage.model("Yes?"), ChatMessage.system("B"), HI, system="S")
    assert body["system"] == "S\n\nA"
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "system", "user"]


def test_images_pdfs_text_and_links_are_encoded():
    pdf = DataPart(b"%PDF-1.7", "application/pdf", "paper.pdf")
    user = ChatMessage.user(
        DataPart(PNG, "image/png"),
        pdf,
        DataPart(b"a,b", "text/csv", "t.csv"),
        LinkPart("https://x.example/cat.png"),
        LinkPart("https://x.example/paper.pdf", "application/pdf", "Paper"),
        LinkPart("https://x.example/", name="Home"),
        LinkPart("anthropic-file:file_1", "image/png"),
    )
    assert encode(user)["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG_BASE64}},
        {
            "type": "document",
            "title": "paper.pdf",
            "source": {
                "type": "base64",
                "media_type": "application/pdf",
                "data": base64.b64encode(pdf.data).decode(),
            },
        },
        {
            "type": "document",
            "title": "t.csv",
            "source": {"type": "text", "media_type": "text/plain", "data": "a,b"},
        },
        {"type": "image", "source": {"type": "url", "url": "https://x.example/cat.png"}},
        {"type": "document", "title": "Paper", "source": {"type": "url", "url": "https://x.example/paper.pdf"}},
        {"type": "text", "text": "Home: https://x.example/"},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
    ]


@requirement("R75")
def test_unsupported_file_is_named_with_warning():
    user = ChatMessage.user("Listen", DataPart(b"\x00\x01", "audio/wav", "song.wav"))
    assert "song.wav" in encode(user)["messages"][0]["content"][1]["text"]
    assert len(warnings(user)) == 1


# What came goes back


@requirement("R54")
def test_thinking_and_server_blocks_are_resent_in_order():
    script = MessagesScript().thinking("Hm", signature="EqQB").redacted_thinking("EmwK").text("I look.")
    script.web_search("news", FOUND).text("Found.", citations=[WEB_CITATION]).tool_use("f", {"a": 1}, "toolu_1")
    body = encode(HI, answer(script), result("toolu_1"))
    content = script.response()["content"]
    for found in content[4]["content"]:
        found.pop("page_age", None)
    assert body["messages"][1] == {"role": "assistant", "content": content}
    assert body["messages"][2]["content"] == [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}]


@requirement("R54")
def test_thinking_is_resent_only_to_signing_model():
    message = answer(MessagesScript().thinking("Hm").text("So."), model="claude-sonnet-4-5-20250929")
    assert kinds(encode(HI, message, HI, model="claude-sonnet-4-5")["messages"][1]) == ["thinking", "text"]
    assert kinds(encode(HI, message, HI, model="claude-opus-5")["messages"][1]) == ["text"]
    without = encode(HI, message, HI, model="claude-sonnet-4-5", without=frozenset({"thinking"}))
    assert kinds(without["messages"][1]) == ["text"]


@requirement("R19", "R75")
def test_foreign_session_blocks_are_never_sent():
    message = answer(MessagesScript().thinking("Hm").bash("ls").text("So."))
    foreign = ChatMessage("model", message.parts, {"_responses_session": message.metadata["_anthropic_session"]})
    assert kinds(encode(HI, foreign, HI)["messages"][1]) == ["text"]
    elsewhere = PROVIDER.chat_model(MODEL, Settings(api_key="k", base_url="https://other.example"))
    sent = json.loads(elsewhere.encode(ModelRequest(messages=(HI, message, HI))).call.body or b"")
    assert kinds(sent["messages"][1]) == ["text"]
    assert "_anthropic_session" not in json.dumps(encode(HI, message, HI))


def test_edited_text_and_calls_are_sent_as_edited():
    message = answer(MessagesScript().text("Long text").tool_use("f", {"a": 1}, "toolu_1").tool_use("g", {}, "toolu_2"))
    text, first, _ = message.parts
    assert isinstance(text, TextPart)
    edited = replaced(message, TextPart("Short", text.id), ToolCallPart(first.id, "f", {"a": 2}))  # type: ignore[union-attr]
    content = encode(HI, edited, result("toolu_1"))["messages"][1]["content"]
    assert content == [
        {"type": "text", "text": "Short"},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 2}},
    ]


def test_edited_text_loses_its_citations():
    message = answer(MessagesScript().text("As A says.", citations=[WEB_CITATION]))
    (text,) = message.parts
    assert "citations" in encode(HI, message, HI)["messages"][1]["content"][0]
    edited = replaced(message, TextPart("As B says.", text.id))  # type: ignore[union-attr]
    assert encode(HI, edited, HI)["messages"][1]["content"] == [{"type": "text", "text": "As B says."}]


def test_fetched_document_is_resent_only_in_its_block():
    script = MessagesScript().web_fetch(URL, "The page", title="A page").text("Read.")
    message = answer(script)
    sent = encode(HI, message, HI)["messages"]
    assert sent[1]["content"][1]["content"]["content"]["source"]["data"] == "The page"
    assert len(sent) == 3
    without = replaced(message, *(part for part in message.parts if not isinstance(part, DataPart)))
    assert kinds(encode(HI, without, HI)["messages"][1]) == ["text"]


@requirement("R54")
def test_server_call_without_result_is_dropped():
    message = answer(MessagesScript().text("I look.").server_tool_use("web_search", {"query": "x"}).stop("max_tokens"))
    assert kinds(encode(HI, message, HI)["messages"][1]) == ["text"]


@requirement("R55")
def test_paused_answer_is_resent_verbatim():
    script = MessagesScript(container="container_1").thinking("Hm").text("I look. ")
    script.web_search("a", FOUND[1:]).server_tool_use("web_search", {"query": "b"}, "srvtoolu_9").pause_turn()
    body = encode(HI, answer(script))
    assert body["messages"][-1] == {"role": "assistant", "content": script.response()["content"]}
    assert body["container"] == "container_1"


@requirement("R55")
def test_continued_answer_is_merged_with_paused_one():
    paused = answer(
        MessagesScript(id="m1").text("I look.").server_tool_use("web_search", {}, "srvtoolu_9").pause_turn()
    )
    waiting = {"srvtoolu_9": {"type": "server_tool_use", "id": "srvtoolu_9", "name": "web_search", "input": {}}}
    rest = answer(
        MessagesScript(id="m2").result("web_search_tool_result", FOUND[1:], "srvtoolu_9").text("Found."),
        waiting=waiting,
    )
    body = encode(HI, paused, rest, HI)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert kinds(body["messages"][1]) == ["text", "server_tool_use", "web_search_tool_result", "text"]


def test_pending_programmatic_call_is_resent_with_container():
    script = MessagesScript(container="container_1").server_tool_use("code_execution", {"code": "f()"}, "srvtoolu_1")
    caller = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}
    message = answer(script.tool_use("f", {}, "toolu_1", caller=caller))
    body = encode(HI, message, result("toolu_1"), server_side_tools=(CodeInterpreter(),))
    assert kinds(body["messages"][1]) == ["server_tool_use", "tool_use"]
    assert body["messages"][1]["content"][1]["caller"] == caller
    assert body["container"] == "container_1"


# Calls and results


@requirement("R75")
def test_foreign_call_ids_are_repaired_in_call_and_result():
    call = ChatMessage("model", (ToolCallPart("call|1:é", "get.weather", {"a": 1}),))
    body = encode(HI, call, result("call|1:é"), call, result("call|1:é", "rain"))
    ids = [block["id"] for message in body["messages"][1::2] for block in message["content"]]
    assert all(part.replace("_", "").replace("-", "").isalnum() and part.isascii() for part in ids)
    assert len(set(ids)) == 2
    answers = [block for message in body["messages"][2::2] for block in message["content"]]
    assert [(block["tool_use_id"], block["content"]) for block in answers] == [(ids[0], "sunny"), (ids[1], "rain")]


@requirement("R75")
def test_every_call_gets_one_result_and_strays_are_dropped():
    calls = ChatMessage("model", (ToolCallPart("a", "f", {}), ToolCallPart("b", "g", {})))
    history = (HI, calls, ChatMessage("tool", (ToolResultPart("b", "g", 1), ToolResultPart("z", "h", 2))), HI)
    body = encode(*history)
    assert body["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "This call was not executed.", "is_error": True},
        {"type": "tool_result", "tool_use_id": "b", "content": "1"},
        {"type": "text", "text": "Hi"},
    ]
    assert len(warnings(*history)) == 1


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        ({"a": 1}, '{"a":1}'),
        ([{"type": "text", "text": "x"}], [{"type": "text", "text": "x"}]),
        (
            {"image_url": f"data:image/png;base64,{PNG_BASE64}"},
            [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG_BASE64}}],
        ),
    ],
)
def test_results_are_encoded_as_text_images_blocks_or_json(value: Any, content: Any):
    body = encode(HI, ChatMessage("model", (ToolCallPart("a", "f", {}),)), result("a", value, is_error=True))
    assert body["messages"][2]["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": content,
        "is_error": True,
    }


def test_invalid_call_arguments_are_resent_as_object():
    call = ChatMessage("model", (ToolCallPart("a", "f", None, '{"broken'),))
    assert encode(HI, call, result("a"))["messages"][1]["content"][0]["input"] == {"input": '{"broken'}


@requirement("R75")
def test_foreign_model_files_follow_results_as_user_content():
    model = ChatMessage("model", (ThinkingPart("hm"), ToolCallPart("a", "f", {}), DataPart(PNG, "image/png", "p.png")))
    body = encode(HI, model, result("a"), ChatMessage.user("And?"))
    assert kinds(body["messages"][1]) == ["tool_use"]
    assert kinds(body["messages"][2]) == ["tool_result", "text", "image", "text"]


def test_empty_request_raises():
    with pytest.raises(ConfigurationError):
        encode(ChatMessage.user(" "))


# Containers and caching


@requirement("R55")
def test_container_is_reused_on_request_and_dropped_when_missing():
    message = answer(MessagesScript(container="container_1").bash("ls").text("ok"))
    for tool, expected in (
        (CodeInterpreter(), None),
        (CodeInterpreter(reuse_container=True), "container_1"),
        (CodeInterpreter(container_id="container_2"), "container_2"),
    ):
        assert encode(HI, message, HI, server_side_tools=(tool,)).get("container") == expected
        gone = encode(HI, message, HI, server_side_tools=(tool,), without=frozenset({"container"}))
        assert "container" not in gone


def test_sandbox_files_are_uploaded_with_first_message():
    body = encode(HI, server_side_tools=(CodeInterpreter(file_ids=["file_1"]),))
    assert body["messages"][0]["content"][-1] == {"type": "container_upload", "file_id": "file_1"}


def test_prompt_cache_marks_system_tools_and_history():
    options = AnthropicOptions(prompt_cache="1h")
    message = answer(MessagesScript().thinking("Hm").text("So."))
    body = encode(HI, message, HI, system="S", tools=(TOOL,), server_side_tools=(WebSearch(),), options=options)
    mark = {"type": "ephemeral", "ttl": "1h"}
    assert body["system"] == [{"type": "text", "text": "S", "cache_control": mark}]
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, mark]
    marks = [block.get("cache_control") for message in body["messages"] for block in message["content"]]
    assert marks == [None, None, None, mark]


# Typed output

CITY = OutputSchema("City", {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
OLD = "claude-sonnet-4-20250514"


@requirement("R56")
def test_typed_output_is_native_when_supported():
    body = encode(HI, output_schema=CITY, tools=(TOOL,))
    assert body["output_config"]["format"] == {
        "type": "json_schema",
        "schema": {**CITY.schema, "additionalProperties": False},
    }
    assert [tool["name"] for tool in body["tools"]] == ["get_weather"]
    assert "tool_choice" not in body


@requirement("R56")
def test_typed_output_forces_reserved_tool_when_not_native():
    body = encode(HI, output_schema=CITY, model=OLD)
    assert [(tool["name"], tool["input_schema"]) for tool in body["tools"]] == [("return_result", CITY.schema)]
    assert body["tool_choice"] == {"type": "tool", "name": "return_result"}
    assert "output_config" not in body


@requirement("R56")
def test_reserved_tool_is_not_forced_with_tools_or_thinking():
    body = encode(HI, output_schema=CITY, model=OLD, tools=(TOOL,), system="S")
    assert [tool["name"] for tool in body["tools"]] == ["get_weather", "return_result"]
    assert "tool_choice" not in body
    assert "return_result" in body["system"]
    thinking = AnthropicOptions(thinking=AnthropicThinking(type="enabled", budget_tokens=2000))
    assert "tool_choice" not in encode(HI, output_schema=CITY, model=OLD, options=thinking)


@requirement("R56")
def test_reserved_tool_name_cannot_be_used():
    with pytest.raises(ConfigurationError):
        encode(HI, tools=(ToolSpec("return_result", "", {"type": "object"}),))


@requirement("R56")
def test_reserved_tool_answer_is_resent_as_text():
    message = answer(MessagesScript().tool_use("return_result", {"name": "Rome"}), has_result_tool=True)
    content = encode(HI, message, HI, model=OLD)["messages"][1]["content"]
    assert content == [{"type": "text", "text": '{"name":"Rome"}'}]


def test_foreign_model_uses_reserved_tool_by_default():
    assert encode(HI, output_schema=CITY, model="smollm2")["tools"][0]["name"] == "return_result"
    native = AnthropicOptions(typed_output="native")
    assert "format" in encode(HI, output_schema=CITY, model="smollm2", options=native)["output_config"]


@requirement("R16")
def test_image_viewed_by_editor_is_stored_once_and_resent():
    view = {"type": "text_editor_code_execution_view_result", "file_type": "image", "content": PNG_BASE64}
    shown = answer(MessagesScript().text_editor({"command": "view", "path": "/a.png"}, view).text("There."))
    assert PNG_BASE64 not in str(shown.metadata)
    sent = encode(HI, shown, HI)["messages"][1]["content"]
    assert [block["type"] for block in sent][:2] == ["server_tool_use", "text_editor_code_execution_tool_result"]
    assert sent[1]["content"] == view
    without = encode(HI, replaced(shown, *(part for part in shown.parts if isinstance(part, TextPart))), HI)
    assert [block["type"] for block in without["messages"][1]["content"]] == ["text"]
