"""Requests on the wire, whole bodies wherever they are small."""

import json
from typing import Any

import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.messages.message import (
    ApprovalPart,
    ChatMessage,
    DataPart,
    LinkPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.output import OutputSchema
from sidestream.providers.openai.chat.encode.request import encode_request
from sidestream.providers.openai.chat.options import CompletionsContext, Dialect, OpenAIChatOptions
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared.encoding import EncodedRequest
from sidestream.tools.server_side import CodeInterpreter, CustomTool, Location, WebSearch
from sidestream.tools.spec import ToolSpec
from support.streams import PNG, PNG_BASE64

MODEL = "gpt-5.6"
USER = ChatMessage.user("Hi")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
OPEN_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG_BASE64}"}}


def encoded(
    *messages: ChatMessage, server: dict[str, Any] | None = None, model: str = MODEL, **fields: Any
) -> EncodedRequest[CompletionsContext]:
    request = ModelRequest(messages=messages or (USER,), **fields)
    return encode_request(request, model, **(server or {}))


def body(*messages: ChatMessage, **fields: Any) -> dict[str, Any]:
    made = encoded(*messages, **fields).body
    json.dumps(made)
    return made


def sent(*messages: ChatMessage, **fields: Any) -> list[dict[str, Any]]:
    return body(*messages, **fields)["messages"]


def called(*calls: ToolCallPart) -> ChatMessage:
    return ChatMessage("model", calls)


def answered(*results: Any) -> ChatMessage:
    return ChatMessage("tool", results)


@requirement("R90")
def test_plain_request_has_only_required_fields():
    assert body(system="Be brief.") == {
        "model": MODEL,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert body(stream=False) == {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": False}


def test_instructions_may_use_developer_role_in_place():
    options = OpenAIChatOptions(instructions_role="developer")
    messages = sent(USER, ChatMessage.system("Now in French."), system="Be brief.", options=options)
    assert [(message["role"], message["content"]) for message in messages] == [
        ("developer", "Be brief."),
        ("user", "Hi"),
        ("developer", "Now in French."),
    ]


@requirement("R90")
def test_user_images_audio_and_files_are_encoded():
    message = ChatMessage.user(
        "Look",
        DataPart(PNG, "image/png"),
        LinkPart("https://example.com/a.png"),
        LinkPart("https://example.com/b", "image/jpeg"),
        DataPart(b"RIFF", "audio/wav"),
        DataPart(b"ID3", "audio/mpeg; rate=1"),
        DataPart(b"%PDF-1", "application/pdf", "a.pdf"),
        DataPart(b"a,b", "text/csv", "a.csv"),
        DataPart(b"<svg/>", "image/svg+xml"),
        LinkPart("https://example.com/page", name="A page"),
        LinkPart("data:text/plain;base64,SGk=", name="hi.txt"),
    )
    assert sent(message)[0]["content"] == [
        {"type": "text", "text": "Look"},
        IMAGE,
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/b"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": "SUQz", "format": "mp3"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0x"}},
        {"type": "text", "text": "a.csv:\na,b"},
        {"type": "text", "text": "A file:\n<svg/>"},
        {"type": "text", "text": "A page: https://example.com/page"},
        {"type": "text", "text": "hi.txt:\nHi"},
    ]


def test_unnamed_undecodable_text_is_attached_with_default_name():
    file = sent(ChatMessage.user("x", DataPart(b"\xff\xfe", "text/plain")))[0]["content"][1]
    assert file == {"type": "file", "file": {"filename": "file.txt", "file_data": "data:text/plain;base64,//4="}}


def test_image_detail_is_sent_when_set():
    options = OpenAIChatOptions(image_detail="low")
    (message,) = sent(ChatMessage.user(DataPart(PNG, "image/png")), options=options)
    assert message["content"][0]["image_url"]["detail"] == "low"


@requirement("R90", "R73")
def test_every_result_follows_its_call():
    history = [
        USER,
        ChatMessage(
            "model", (TextPart("I look."), ToolCallPart("call_1", "a", {"x": 1}), ToolCallPart("call_2", "b", {}))
        ),
        answered(ToolResultPart("call_2", "b", {"n": 2}), ToolResultPart("call_1", "a", "one")),
        ChatMessage.user("And?"),
    ]
    assert sent(*history)[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "a", "arguments": '{"x":1}'}},
                {"id": "call_2", "type": "function", "function": {"name": "b", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "one"},
        {"role": "tool", "tool_call_id": "call_2", "content": '{"n":2}'},
        {"role": "user", "content": "And?"},
    ]


def test_call_without_result_is_answered_as_not_executed():
    messages = sent(USER, called(ToolCallPart("call_1", "a", {})))
    assert messages[1]["content"] is None
    assert messages[2] == {"role": "tool", "tool_call_id": "call_1", "content": "This call was not executed."}


def test_result_without_call_is_dropped_with_warning():
    made = encoded(USER, answered(ToolResultPart("call_9", "a", "x")))
    assert [message["role"] for message in made.body["messages"]] == ["user"]
    assert "call_9" in made.warnings[0]


def test_result_images_follow_as_user_content():
    result = [{"type": "text", "text": "a dot"}, {"type": "data", "bytes": PNG_BASE64, "mime_type": "image/png"}]
    history = [
        USER,
        called(ToolCallPart("call_1", "draw", {}), ToolCallPart("call_2", "draw", {})),
        answered(ToolResultPart("call_1", "draw", result), ToolResultPart("call_2", "draw", "ok")),
    ]
    above = {"type": "text", "text": "Files from the message above:"}
    assert sent(*history)[2:] == [
        {"role": "tool", "tool_call_id": "call_1", "content": "a dot\nThe files are in the next message."},
        {"role": "tool", "tool_call_id": "call_2", "content": "ok"},
        {"role": "user", "content": [above, IMAGE]},
    ]
    together = sent(*history, ChatMessage.user("What is it?"))[-1]
    assert together == {"role": "user", "content": [above, IMAGE, {"type": "text", "text": "What is it?"}]}


def test_model_files_except_audio_follow_as_user_content():
    model = ChatMessage.model("Here.", DataPart(PNG, "image/png"), DataPart(b"x", "audio/pcm"))
    messages = sent(USER, model, ChatMessage.user("Thanks"))
    assert messages[1] == {"role": "assistant", "content": "Here."}
    assert [entry["type"] for entry in messages[2]["content"]] == ["text", "image_url", "text"]


@requirement("R75", "R90")
def test_foreign_metadata_and_thinking_are_never_sent():
    metadata = {"_anthropic_session": {"blocks": [{"signature": "EqQB"}]}, "thinking": "Hm"}
    history = [
        USER,
        ChatMessage(
            "model", (ThinkingPart("Hm"), TextPart("So."), ToolCallPart("toolu:1/é" * 20, "get.it now", {})), metadata
        ),
        answered(ToolResultPart("toolu:1/é" * 20, "get.it now", "ok"), ApprovalPart("approval_1", True)),
    ]
    messages = sent(*history)
    text = json.dumps(messages)
    assert not [word for word in ("EqQB", "Hm", "approval_1", "toolu") if word in text]
    (call,) = messages[1]["tool_calls"]
    assert call["function"]["name"] == "get_it_now"
    assert len(call["id"]) <= 64
    assert messages[2]["tool_call_id"] == call["id"]


@requirement("R75", "R90")
def test_repeated_call_id_is_made_unique_and_stays_paired():
    rounds = [
        message
        for result in ("one", "two")
        for message in (called(ToolCallPart("call_0", "a", {})), answered(ToolResultPart("call_0", "a", result)))
    ]
    messages = sent(USER, *rounds)
    ids = [message["tool_calls"][0]["id"] for message in messages if "tool_calls" in message]
    assert len(set(ids)) == 2
    assert [(m["tool_call_id"], m["content"]) for m in messages if m["role"] == "tool"] == [
        (ids[0], "one"),
        (ids[1], "two"),
    ]


@requirement("R75")
def test_fixed_length_call_ids_are_generated_for_server():
    mistral = {"dialect": Dialect(id_length=9)}
    history = [
        USER,
        called(ToolCallPart("call_1", "a", {}), ToolCallPart("D681PevKs", "a", {}), ToolCallPart("D681PevKs", "a", {})),
    ]
    ids = [call["id"] for call in sent(*history, server=mistral)[1]["tool_calls"]]
    assert ids[1] == "D681PevKs"
    assert len(set(ids)) == 3
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)


def test_long_name_is_truncated():
    (call,) = sent(USER, called(ToolCallPart("call_1", "n" * 80, {})))[1]["tool_calls"]
    assert call["function"]["name"] == "n" * 64


def test_template_call_id_is_kept():
    (call,) = sent(USER, called(ToolCallPart("functions.get:0", "get", {})))[1]["tool_calls"]
    assert call["id"] == "functions.get:0"


@requirement("R90", "F13")
@pytest.mark.parametrize(
    ("part", "arguments"),
    [
        (ToolCallPart("call_1", "a", None, '{"city": "Ro'), {"input": '{"city": "Ro'}),
        (ToolCallPart("call_1", "a", None, "[1]"), {"input": "[1]"}),
        (ToolCallPart("call_1", "a", "SELECT 1"), {"input": "SELECT 1"}),
        (ToolCallPart("call_1", "a", [1]), {"input": [1]}),
        (ToolCallPart("call_1", "a"), {}),
    ],
)
def test_resent_arguments_are_always_json_object(part: ToolCallPart, arguments: Any):
    (call,) = sent(USER, called(part))[1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == arguments


def test_custom_tool_call_is_resent_as_custom():
    messages = sent(
        USER,
        called(ToolCallPart("call_1", "sql", "SELECT 1")),
        answered(ToolResultPart("call_1", "sql", "1")),
        server_side_tools=(CustomTool(name="sql"),),
    )
    assert messages[1]["tool_calls"] == [
        {"id": "call_1", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}
    ]


def test_empty_messages_are_dropped_and_empty_request_raises():
    empty = (ChatMessage.user(""), ChatMessage.model(ThinkingPart("Hm")), ChatMessage.system(" "))
    assert sent(USER, *empty) == [{"role": "user", "content": "Hi"}]
    with pytest.raises(ConfigurationError):
        encoded(*empty, system="Be brief.")


# Tools and typed output


@requirement("R90")
def test_tools_are_strict_only_when_schema_allows():
    tools = (
        ToolSpec("a", "Does a.", SCHEMA, strict=True),
        ToolSpec("b", "Does b.", OPEN_SCHEMA, strict=True),
        ToolSpec("c", "", SCHEMA),
    )
    made = encoded(tools=tools)
    assert made.body["tools"] == [
        {"type": "function", "function": {"name": "a", "description": "Does a.", "parameters": SCHEMA, "strict": True}},
        {"type": "function", "function": {"name": "b", "description": "Does b.", "parameters": OPEN_SCHEMA}},
        {"type": "function", "function": {"name": "c", "description": "", "parameters": SCHEMA}},
    ]
    assert len(made.warnings) == 1
    assert "tool b" in made.warnings[0]


def test_custom_tool_replaces_function_of_same_name():
    tool = CustomTool(name="sql", description="Runs SQL.", syntax="lark", definition="start: /./")
    made = body(tools=(ToolSpec("sql", "Runs.", SCHEMA),), server_side_tools=(tool,))
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /./"}}
    assert made["tools"] == [
        {"type": "custom", "custom": {"name": "sql", "description": "Runs SQL.", "format": grammar}}
    ]


def test_search_model_gets_web_search_options():
    tool = WebSearch(context_size="low", location=Location(city="Rome", country="IT"))
    made = body(server_side_tools=(tool,), model="gpt-4o-search-preview")
    where = {"type": "approximate", "approximate": {"city": "Rome", "country": "IT"}}
    assert made["web_search_options"] == {"search_context_size": "low", "user_location": where}
    assert "tools" not in made


@pytest.mark.parametrize(
    ("tool", "model", "says"),
    [
        (WebSearch(), MODEL, "openai-responses"),
        (CodeInterpreter(), MODEL, "openai-responses"),
        (WebSearch(allowed_domains=["a.example"]), "gpt-4o-search-preview", "allowed_domains"),
        (CustomTool(name="a", defer_loading=True), MODEL, "defer_loading"),
    ],
)
def test_unsupported_tool_error_names_alternatives(tool: Any, model: str, says: str):
    with pytest.raises(UnsupportedError) as caught:
        encoded(server_side_tools=(tool,), model=model)
    assert says in str(caught.value)


def test_preset_without_hosted_tools_raises():
    with pytest.raises(UnsupportedError) as caught:
        encoded(
            server_side_tools=(CustomTool(name="sql"),),
            server={"display_name": "Groq", "hosting": ()},
        )
    assert all(name in str(caught.value) for name in ("Groq", "CustomTool", "openai-responses"))


@requirement("R90")
def test_typed_output_is_json_schema():
    schema = OutputSchema("City", SCHEMA, description="A city")
    expected = {"name": "City", "schema": SCHEMA, "description": "A city", "strict": True}
    assert body(output_schema=schema)["response_format"] == {"type": "json_schema", "json_schema": expected}
    loose = encoded(output_schema=OutputSchema("City", OPEN_SCHEMA))
    assert loose.body["response_format"]["json_schema"] == {"name": "City", "schema": OPEN_SCHEMA}
    assert len(loose.warnings) == 1


def test_json_mode_with_schema_raises():
    options = OpenAIChatOptions(json_object=True)
    assert body(options=options)["response_format"] == {"type": "json_object"}
    with pytest.raises(ConfigurationError):
        encoded(options=options, output_schema=OutputSchema("City", SCHEMA))


# What a server lacks


LIMIT = OpenAIChatOptions(max_completion_tokens=7, parallel_tool_calls=False)


@requirement("R90")
@pytest.mark.parametrize("way", ["refused", "known"])
@pytest.mark.parametrize(
    ("lacks", "gone", "there"),
    [
        ({"stream_options"}, {"stream_options"}, {"max_completion_tokens": 7}),
        ({"max_completion_tokens"}, {"max_completion_tokens"}, {"max_tokens": 7}),
        ({"max_tokens", "max_completion_tokens"}, {"max_tokens"}, {"max_completion_tokens": 7}),
        ({"parallel_tool_calls"}, {"parallel_tool_calls"}, {}),
    ],
)
def test_parameters_server_lacks_are_not_sent(way: str, lacks: set[str], gone: set[str], there: dict[str, Any]):
    names = frozenset(lacks)
    if way == "known":
        made = body(options=LIMIT, server={"dialect": Dialect(lacks=names)})
    else:
        made = body(options=LIMIT, without=names)
    assert not made.keys() & gone
    assert {name: made[name] for name in there} == there


def test_schema_is_in_prompt_without_response_format():
    made = body(output_schema=OutputSchema("City", SCHEMA), system="Be brief.", without=frozenset({"response_format"}))
    assert "response_format" not in made
    assert made["messages"][0]["content"].startswith("Be brief.\n\nAnswer with JSON")
    assert json.dumps(SCHEMA, separators=(",", ":")) in made["messages"][0]["content"]


def test_strict_is_omitted_when_unsupported():
    made = body(
        tools=(ToolSpec("a", "", SCHEMA, strict=True),),
        output_schema=OutputSchema("City", SCHEMA),
        without=frozenset({"strict"}),
    )
    assert "strict" not in json.dumps(made)


def test_lone_surrogates_survive_encoding():
    from sidestream import jsontext

    assert b"\\ud83d" in jsontext.dumps(body(ChatMessage.user("\ud83d")))
