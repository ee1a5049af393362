"""Requests of generateContent: what is sent back, where, and what is left out."""

import base64
import json
from typing import Any

import msgspec
import pytest

from providers.google.gemini_wire import BASE_URL, MODEL, decode
from requirements import requirement
from sidestream.errors import ConfigurationError, UnsupportedError
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
from sidestream.providers.google import PROVIDER, GoogleOptions
from sidestream.providers.protocol import Encoded, ModelRequest, Settings
from sidestream.testing.gemini_script import GeminiScript
from sidestream.tools.server_side import WebSearch
from sidestream.tools.spec import ToolSpec
from support.streams import PNG, messages as folded

HELLO = ChatMessage.user("Hello")
TOOL = ToolSpec("weather", "Weather of a city.", {"type": "object", "properties": {"city": {"type": "string"}}})
SCHEMA = OutputSchema("City", {"type": "object", "properties": {"name": {"type": "string"}}})


def encoded(*messages: ChatMessage, model: str = MODEL, base_url: str = BASE_URL, **fields: Any) -> Encoded:
    chat = PROVIDER.chat_model(model, Settings(api_key="key-0123456789", base_url=base_url))
    return chat.encode(ModelRequest(messages=messages, **fields))


def body(*messages: ChatMessage, **fields: Any) -> dict[str, Any]:
    return json.loads(encoded(*messages, **fields).call.body or b"")


def contents(*messages: ChatMessage, **fields: Any) -> list[dict[str, Any]]:
    return body(*messages, **fields)["contents"]


def answer(script: GeminiScript, model: str = MODEL, **context: Any) -> ChatMessage:
    """The message that an answer folds to."""
    (message,) = folded(decode(script.chunks(), model=model, base_url=BASE_URL, **context))
    return message


def test_user_content_of_all_kinds_is_encoded():
    user = ChatMessage.user(
        "Look:",
        DataPart(PNG, "image/png"),
        LinkPart("https://x.example/a.pdf"),
        LinkPart("https://www.youtube.com/watch?v=1"),
        LinkPart("https://x.example/page", "text/html", "Page"),
        LinkPart("data:text/plain;base64,aGk="),
    )
    assert contents(user) == [
        {
            "role": "user",
            "parts": [
                {"text": "Look:"},
                {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}},
                {"fileData": {"fileUri": "https://x.example/a.pdf", "mimeType": "application/pdf"}},
                {"fileData": {"fileUri": "https://www.youtube.com/watch?v=1"}},
                {"text": "Page: https://x.example/page"},
                {"inlineData": {"mimeType": "text/plain", "data": "aGk="}},
            ],
        }
    ]


def test_instructions_are_joined_and_kept_out_of_contents():
    sent = body(ChatMessage.system("Be brief."), HELLO, system="Be kind.")
    assert sent["systemInstruction"] == {"parts": [{"text": "Be kind."}, {"text": "Be brief."}]}
    assert [content["role"] for content in sent["contents"]] == ["user"]


@requirement("R63")
def test_signatures_are_resent_in_place_with_text_unmerged():
    script = GeminiScript().thought("Hm.", signature="s0").text("Hello world", signature="s1")
    script.code("1", "1", call_id="c", signature="s2").text("Bye", signature="s3")
    script.function_call("weather", {"city": "Köln"}, call_id="f1", signature="s4")
    model = answer(script)
    result = ChatMessage("tool", (ToolResultPart("f1", "weather", {"t": 20}),))
    sent = contents(HELLO, model, result)
    assert sent[1]["parts"] == [
        {"text": "Hm.", "thought": True},
        {"text": "", "thought": True, "thoughtSignature": "s0"},
        {"text": "Hello world"},
        {"text": "", "thoughtSignature": "s1"},
        {"executableCode": {"language": "PYTHON", "code": "1", "id": "c"}, "thoughtSignature": "s2"},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1", "id": "c"}},
        {"text": "Bye"},
        {"text": "", "thoughtSignature": "s3"},
        {
            "functionCall": {"name": "weather", "id": "f1", "args": {"city": "Köln"}},
            "thoughtSignature": "s4",
        },
    ]
    assert sent[2] == {
        "role": "user",
        "parts": [{"functionResponse": {"id": "f1", "name": "weather", "response": {"output": {"t": 20}}}}],
    }
    assert len(sent) == 3


@requirement("R63")
def test_generated_call_ids_are_never_sent():
    model = answer(GeminiScript().function_call("weather", {"city": "A"}).function_call("weather", {"city": "B"}))
    first, second = model.tool_calls
    results = ChatMessage("tool", (ToolResultPart(second.id, "weather", "b"), ToolResultPart(first.id, "weather", "a")))
    sent = contents(HELLO, model, results)
    assert [part["functionCall"] for part in sent[1]["parts"]] == [
        {"name": "weather", "args": {"city": "A"}},
        {"name": "weather", "args": {"city": "B"}},
    ]
    # In the order of the calls.
    assert [part["functionResponse"] for part in sent[2]["parts"]] == [
        {"name": "weather", "response": {"output": "a"}},
        {"name": "weather", "response": {"output": "b"}},
    ]


def test_edited_text_drops_only_its_own_signatures():
    model = answer(GeminiScript().text("First", signature="s1").code("1", "1").text("Second", signature="s2"))
    edited = tuple(
        msgspec.structs.replace(part, text="Changed") if isinstance(part, TextPart) and part.id == "text-0" else part
        for part in model.parts
    )
    sent = contents(HELLO, msgspec.structs.replace(model, parts=edited), HELLO)
    texts = [part for part in sent[1]["parts"] if "text" in part]
    assert texts == [{"text": "Changed"}, {"text": "Second"}, {"text": "", "thoughtSignature": "s2"}]


def test_parts_removed_from_message_are_not_sent():
    model = answer(GeminiScript().thought("Hm.").text("Keep").function_call("weather", {}, call_id="f"))
    kept = tuple(part for part in model.parts if isinstance(part, TextPart))
    sent = contents(HELLO, msgspec.structs.replace(model, parts=kept))
    assert sent[1]["parts"] == [{"text": "Keep"}]


def test_edited_arguments_are_sent_without_original_signature():
    model = answer(GeminiScript().function_call("weather", {"city": "A"}, call_id="f", signature="s"))
    edited = (ToolCallPart("f", "weather", {"city": "B"}),)
    (part,) = contents(HELLO, msgspec.structs.replace(model, parts=edited))[1]["parts"]
    assert part["functionCall"]["args"] == {"city": "B"}
    assert part["thoughtSignature"] == "skip_thought_signature_validator"


def test_other_model_gets_no_signatures_or_hosted_calls():
    script = GeminiScript().tool_call("URL_CONTEXT", call_id="t", signature="a").text("Hi", signature="b")
    model = answer(script, model="gemini-3-pro-preview")
    assert contents(HELLO, model)[1]["parts"] == [{"text": "Hi"}]


def test_other_server_gets_message_parts_without_session():
    model = answer(GeminiScript().thought("Hm.").text("Hi", signature="b").function_call("weather", {}, call_id="f"))
    sent = contents(HELLO, model, base_url="https://other.example/v1")
    assert sent[1]["parts"] == [
        {"text": "Hi"},
        {"functionCall": {"name": "weather", "args": {}}, "thoughtSignature": "skip_thought_signature_validator"},
    ]


@requirement("R75")
def test_foreign_messages_lose_ids_signatures_and_thinking():
    foreign = ChatMessage.model(
        ThinkingPart("secret"),
        "Let me see.",
        ToolCallPart("toolu_1", "get weather!", {"city": "Köln"}),
        metadata={"_anthropic_session": {"x": 1}, "_responses_session": {"response_id": "resp_1"}},
    )
    result = ChatMessage("tool", (ToolResultPart("toolu_1", "get weather!", [1, 2], is_error=True),))
    sent = contents(HELLO, foreign, result)
    assert sent[1]["parts"] == [
        {"text": "Let me see."},
        {
            "functionCall": {"name": "get_weather_", "args": {"city": "Köln"}},
            "thoughtSignature": "skip_thought_signature_validator",
        },
    ]
    assert sent[2]["parts"] == [{"functionResponse": {"name": "get_weather_", "response": {"error": [1, 2]}}}]


def test_older_models_get_no_placeholder_signature():
    call = ChatMessage.model(ToolCallPart("1", "weather", {}))
    assert contents(HELLO, call, model="gemini-2.5-flash")[1]["parts"] == [
        {"functionCall": {"name": "weather", "args": {}}}
    ]


def test_every_call_gets_one_result_and_strays_are_dropped():
    call = ChatMessage.model(ToolCallPart("1", "weather", {}), ToolCallPart("2", "weather", None, "{bad"))
    stray = ChatMessage("tool", (ToolResultPart("9", "other", 1),))
    made = encoded(HELLO, call, stray, HELLO)
    sent = json.loads(made.call.body or b"")["contents"]
    assert [content["role"] for content in sent] == ["user", "model", "user", "user"]
    assert [part["functionResponse"]["response"] for part in sent[2]["parts"]] == [
        {"error": "This call was not executed."},
        {"error": "This call was not executed."},
    ]
    assert sent[1]["parts"][1]["functionCall"]["args"] == {"invalid_arguments": "{bad"}
    assert any("9" in warning for warning in made.warnings)


def test_model_files_are_resent_in_place_or_as_user_content():
    model = answer(GeminiScript().text("Here:").inline_data(PNG, thoughtSignature="s"))
    sent = contents(HELLO, model, HELLO)
    assert sent[1]["parts"][1] == {
        "inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()},
        "thoughtSignature": "s",
    }
    foreign = contents(HELLO, ChatMessage.model("Here:", DataPart(PNG, "image/png")), HELLO)
    assert foreign[2] == {
        "role": "user",
        "parts": [
            {"text": "Files from the message above:"},
            {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}},
        ],
    }


def test_history_survives_json_round_trip():
    from sidestream.messages.message import messages_from_json, messages_to_json

    script = (
        GeminiScript().thought("Hm.", signature="s").text("Hi", signature="t").function_call("f", {}, signature="u")
    )
    model = answer(script)
    stored = messages_from_json(messages_to_json([HELLO, model]))
    assert contents(*stored) == contents(HELLO, model)


def test_paused_answer_resends_request_with_token():
    def part(text: str, token: str) -> ChatMessage:
        return answer(GeminiScript().text(text).finish("CONTINUATION").candidate(continuationToken=token))

    sent = body(HELLO, part("One", "t1"), part("Two", "t2"))
    assert sent["contents"] == [{"role": "user", "parts": [{"text": "Hello"}]}]
    assert sent["continuationToken"] == "t2"
    later = body(HELLO, part("One", "t1"), answer(GeminiScript().text("Two")), HELLO)
    assert "continuationToken" not in later
    assert later["contents"][1] == {"role": "model", "parts": [{"text": "One"}, {"text": "Two"}]}


def test_functions_are_declared_with_json_schema():
    sent = body(HELLO, tools=(TOOL,))
    assert sent["tools"] == [
        {
            "functionDeclarations": [
                {"name": "weather", "description": "Weather of a city.", "parametersJsonSchema": TOOL.parameters}
            ]
        }
    ]
    assert "toolConfig" not in sent


@requirement("R61")
def test_hosted_tools_with_functions_include_invocations():
    sent = body(HELLO, tools=(TOOL,), server_side_tools=(WebSearch(),))
    assert [next(iter(tool)) for tool in sent["tools"]] == ["googleSearch", "functionDeclarations"]
    assert sent["toolConfig"] == {"includeServerSideToolInvocations": True}
    assert "toolConfig" not in body(HELLO, server_side_tools=(WebSearch(),))
    off = body(
        HELLO,
        tools=(TOOL,),
        server_side_tools=(WebSearch(),),
        options=GoogleOptions(include_server_side_tool_invocations=False),
    )
    assert off["toolConfig"] == {"includeServerSideToolInvocations": False}


@requirement("R64")
@pytest.mark.parametrize(
    ("model", "tools", "native"),
    [
        ("gemini-3-flash-preview", (TOOL,), True),
        ("gemini-3.1-pro", (TOOL,), True),
        ("gemini-4-argon", (TOOL,), True),
        ("gemini-flash-latest", (TOOL,), True),
        ("gemini-2.5-pro", (TOOL,), False),
        ("models/gemini-2.0-flash", (TOOL,), False),
        ("gemini-1.5-pro", (TOOL,), False),
        ("gemma-3-27b-it", (TOOL,), False),
        ("gemini-2.5-pro", (), True),
    ],
)
def test_schema_is_sent_with_tools_when_family_supports_it(model: str, tools: tuple[ToolSpec, ...], native: bool):
    made = encoded(HELLO, model=model, tools=tools, output_schema=SCHEMA)
    config = json.loads(made.call.body or b"").get("generationConfig", {})
    assert made.defers_output is not native
    assert ("responseJsonSchema" in config) is native
    if native:
        assert config == {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA.schema}


@requirement("R64")
def test_second_phase_has_schema_and_draft_but_no_tools():
    draft = answer(
        GeminiScript().thought("Hm.").text("It is Köln.", signature="s").finish("STOP"),
        drafts=True,
        model="gemini-2.5-pro",
    )
    sent = body(
        HELLO,
        draft,
        model="gemini-2.5-pro",
        tools=(TOOL,),
        server_side_tools=(WebSearch(),),
        output_schema=SCHEMA,
        without=frozenset({"tools"}),
    )
    assert "tools" not in sent
    assert "toolConfig" not in sent
    assert sent["generationConfig"]["responseJsonSchema"] == SCHEMA.schema
    assert {"text": "It is Köln."} in sent["contents"][1]["parts"]
    assert sent["contents"][-1]["role"] == "user"
    assert "JSON" in sent["contents"][-1]["parts"][0]["text"]


def test_option_overrides_family_default():
    options = GoogleOptions(typed_output_beside_tools=True)
    made = encoded(HELLO, model="gemini-2.5-pro", tools=(TOOL,), output_schema=SCHEMA, options=options)
    assert not made.defers_output


def test_cached_content_replaces_tools_and_instructions():
    options = GoogleOptions(cached_content="cachedContents/1")
    made = encoded(HELLO, tools=(TOOL,), system="Be kind.", options=options)
    sent = json.loads(made.call.body or b"")
    assert sent.keys() == {"contents", "cachedContent"}
    assert made.warnings


def test_empty_request_and_unknown_options_raise():
    with pytest.raises(ConfigurationError):
        encoded(ChatMessage.user())
    with pytest.raises(UnsupportedError):
        encoded(HELLO, options=object())


def test_streaming_and_non_streaming_use_different_verbs():
    call = encoded(HELLO).call
    assert call.url == f"{BASE_URL}/models/{MODEL}:streamGenerateContent?alt=sse"
    assert call.stream
    whole = encoded(HELLO, stream=False).call
    assert whole.url == f"{BASE_URL}/models/{MODEL}:generateContent"
    assert not whole.stream
