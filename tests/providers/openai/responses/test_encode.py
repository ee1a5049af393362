import base64
import json
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given, strategies as st
from openai.types.responses import ResponseInputItem, Tool
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import BaseModel, TypeAdapter

from requirements import requirement
from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.messages.message import (
    NOT_EXECUTED,
    ChatMessage,
    DataPart,
    LinkPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.output import OutputSchema
from sidestream.providers.openai.responses import (
    PROVIDER,
    ContextManagement,
    Moderation,
    OpenAIFunctionOptions,
    OpenAIResponsesOptions,
    Reasoning,
    ToolNamespace,
)
from sidestream.providers.openai.responses.encode.input import LONG
from sidestream.providers.openai.responses.encode.request import encode_request
from sidestream.providers.openai.responses.options import ResponsesContext
from sidestream.providers.protocol import ModelRequest, Settings
from sidestream.providers.shared.encoding import EncodedRequest
from sidestream.providers.shared.histories import FILES_ABOVE
from sidestream.tools.configs import DomainSecret
from sidestream.tools.server_side import (
    ApplyPatch,
    CodeInterpreter,
    Combination,
    Comparison,
    ComputerUse,
    CustomTool,
    FileSearch,
    HybridSearch,
    ImageGeneration,
    InlineSkill,
    LocalShell,
    LocalSkill,
    Location,
    MCPApproval,
    Network,
    ProgrammaticToolCalling,
    RemoteMCP,
    ServerSideTool,
    Shell,
    SkillReference,
    Svg,
    ToolFilter,
    ToolSearch,
    WebSearch,
)
from sidestream.tools.spec import ToolSpec

BASE_URL = "https://openai.example/v1"
CLOSED = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = ToolSpec("get_weather", "Weather of a city.", CLOSED, strict=True)


def encode(*messages: ChatMessage, **fields: Any) -> EncodedRequest[ResponsesContext]:
    return encode_request(ModelRequest(messages=messages, **fields), "gpt-5.6", BASE_URL)


def body(*messages: ChatMessage, **fields: Any) -> dict[str, Any]:
    encoded = encode(*messages, **fields).body
    check_body(encoded)
    return encoded


def items(*messages: ChatMessage, **fields: Any) -> list[dict[str, Any]]:
    return body(*messages, **fields)["input"]


ITEM: TypeAdapter[Any] = TypeAdapter(ResponseInputItem)
TOOL: TypeAdapter[Any] = TypeAdapter(Tool)
PARAMETERS = get_type_hints(ResponseCreateParamsStreaming).keys()


def check_body(encoded: dict[str, Any]) -> None:
    """The vendor's own types take the body, and know every parameter, item, tool and field of it."""
    assert encoded.keys() <= PARAMETERS
    for entry in msgspec.to_builtins(encoded.get("input", ())):
        check_item(entry)
    for tool in encoded.get("tools", ()):
        assert unknown_fields(TOOL.validate_python(tool)) == []


def check_item(item: dict[str, Any]) -> None:
    if item.get("type") == "reasoning":
        item = {"id": "rs_1", **item}  # The vendor's type asks for an id, the API does not, and would look it up.
    if item.get("type") == "local_shell_call_output":
        item = {name: value for name, value in item.items() if name != "call_id"}
    assert unknown_fields(ITEM.validate_python(item)) == []


def unknown_fields(value: Any) -> list[str]:
    if isinstance(value, BaseModel):
        inner = [name for field in type(value).model_fields for name in unknown_fields(getattr(value, field))]
        return [*(value.model_extra or {}), *inner]
    return [name for entry in value for name in unknown_fields(entry)] if isinstance(value, list) else []


@requirement("R42")
def test_first_message_is_sent_without_session():
    encoded = encode(ChatMessage.user("Hello"), system="Be brief.")
    assert encoded.body == {
        "model": "gpt-5.6",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_obfuscation": False},
    }
    assert encoded.context.store
    assert encoded.notices == encoded.warnings == ()


def test_same_request_gives_same_bytes():
    request = ModelRequest(messages=(ChatMessage.user("Hello"),), tools=(WEATHER,), server_side_tools=(WebSearch(),))
    first, second = (encode_request(request, "gpt-5.6", BASE_URL) for _ in range(2))
    assert jsontext.dumps(first.body) == jsontext.dumps(second.body)


def test_non_streaming_request_has_no_stream_options():
    encoded = body(ChatMessage.user("Hello"), stream=False)
    assert encoded["stream"] is False
    assert "stream_options" not in encoded


def test_system_message_in_history_keeps_its_position():
    assert items(ChatMessage.user("Hi"), ChatMessage.system("Now in French."), ChatMessage.user("Go on")) == [
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Now in French."},
        {"role": "user", "content": "Go on"},
    ]


def test_empty_request_raises():
    with pytest.raises(ConfigurationError):
        encode(system="Be brief.")


def content(*parts: Any, **options: Any) -> list[dict[str, Any]]:
    [item] = items(ChatMessage.user("Look:", *parts), options=OpenAIResponsesOptions(**options))
    assert item["content"][0] == {"type": "input_text", "text": "Look:"}
    return item["content"][1:]


@requirement("R44")
def test_image_is_sent_as_data_url_with_detail():
    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    image = DataPart(b"\x89PNG", "image/png", "a.png")
    assert content(image) == [{"type": "input_image", "image_url": url, "detail": "auto"}]
    assert content(image, image_detail="high") == [{"type": "input_image", "image_url": url, "detail": "high"}]


@requirement("R44")
@pytest.mark.parametrize(
    ("kind", "default_name"),
    [
        ("application/pdf", "file.pdf"),
        ("audio/wav", "file.wav"),
        ("video/mp4", "file.mp4"),
        ("text/csv", "file.csv"),
        ("image/svg+xml", "file.svg"),
        ("application/x-unheard-of", "file.bin"),
    ],
)
def test_other_data_is_sent_as_named_file(kind: str, default_name: str):
    data = f"data:{kind};base64,{base64.b64encode(b'bytes').decode()}"
    named, unnamed = content(DataPart(b"bytes", kind, "report.x"), DataPart(b"bytes", kind))
    assert named == {"type": "input_file", "filename": "report.x", "file_data": data}
    assert unnamed == {"type": "input_file", "filename": default_name, "file_data": data}


@requirement("R44")
@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (LinkPart("https://a.example/x", "image/png"), "input_image"),
        (LinkPart("https://a.example/photo.JPG?w=1"), "input_image"),
        (LinkPart("https://a.example/paper.pdf"), "input_file"),
        (LinkPart("https://a.example/talk", "audio/mpeg"), "input_file"),
        (LinkPart("data:image/png;base64,AA=="), "input_image"),
        (LinkPart("data:application/pdf;base64,AA==", name="a.pdf"), "input_file"),
        (LinkPart("https://a.example/about"), "input_text"),
        (LinkPart("https://a.example/index.html"), "input_text"),
        (LinkPart("file:///etc/hosts.txt"), "input_text"),
        (LinkPart("https://[broken"), "input_text"),
    ],
)
def test_link_is_sent_as_image_file_or_text_by_type(link: LinkPart, expected: str):
    [entry] = content(link)
    assert entry["type"] == expected
    assert link.url in entry.values() or link.url in entry.get("text", "")


def test_tool_results_follow_their_calls():
    sent = items(
        ChatMessage.user("Weather?"),
        ChatMessage.model(
            "Looking.",
            ToolCallPart("call_1", "get_weather", {"city": "Bern"}),
            ToolCallPart("call_2", "get_weather", input_text='{"city": '),
            ToolCallPart("call_3", "now"),
        ),
        ChatMessage(
            "tool",
            (
                ToolResultPart("call_1", "get_weather", "sunny"),
                ToolResultPart("call_2", "get_weather", {"error": "no JSON"}, is_error=True),
                ToolResultPart("call_3", "now", None),
            ),
        ),
    )
    assert sent[1:] == [
        {"type": "message", "role": "assistant", "content": "Looking."},
        {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city":"Bern"}'},
        {"type": "function_call", "call_id": "call_2", "name": "get_weather", "arguments": '{"city": '},
        {"type": "function_call", "call_id": "call_3", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "call_2", "output": '{"error":"no JSON"}'},
        {"type": "function_call_output", "call_id": "call_3", "output": "null"},
    ]


def test_unanswered_call_gets_not_executed_result():
    sent = items(ChatMessage.model(ToolCallPart("call_1", "now")), ChatMessage.user("Never mind."))
    assert sent[1] == {"type": "function_call_output", "call_id": "call_1", "output": NOT_EXECUTED}
    assert sent[2] == {"role": "user", "content": "Never mind."}


def test_result_without_call_is_dropped_with_warning():
    encoded = encode(ChatMessage("tool", (ToolResultPart("call_1", "now", "noon"),)), ChatMessage.user("Hi"))
    assert encoded.body["input"] == [{"role": "user", "content": "Hi"}]
    assert "call_1" in encoded.warnings[0]


def test_repeated_call_ids_are_paired_in_order():
    turn = (
        ChatMessage.model(ToolCallPart("call_0", "now")),
        ChatMessage("tool", (ToolResultPart("call_0", "now", "noon"),)),
    )
    encoded = encode(*turn, *turn, ChatMessage.model(ToolCallPart("call_0", "now")))
    outputs = [item["output"] for item in encoded.body["input"] if item["type"] == "function_call_output"]
    assert outputs == ["noon", "noon", NOT_EXECUTED]
    assert encoded.warnings == ()


def test_foreign_ids_and_names_are_shortened_and_sanitised():
    long_id = "toolu_" + "x" * 80
    call, output = items(
        ChatMessage.model(ToolCallPart(long_id, "weather.get now", {"a": 1})),
        ChatMessage("tool", (ToolResultPart(long_id, "weather.get now", "ok"),)),
    )
    assert len(call["call_id"]) <= 64
    assert call["call_id"] == output["call_id"]
    assert call["name"] == "weather_get_now"


PARTS = st.one_of(
    st.builds(TextPart, st.text(max_size=3)),
    st.builds(ToolCallPart, st.sampled_from("ab"), st.just("now")),
    st.builds(ToolResultPart, st.sampled_from("ab"), st.just("now"), st.just("noon")),
)
MESSAGES = st.builds(ChatMessage, st.sampled_from(["user", "model", "tool"]), st.lists(PARTS, max_size=4).map(tuple))


@given(st.lists(MESSAGES, max_size=6))
def test_every_call_in_arbitrary_history_gets_one_result(messages: list[ChatMessage]):
    sent = items(*messages, ChatMessage.user("Hi"))
    waiting = {"a": 0, "b": 0}
    for item in sent:
        if item.get("type") == "function_call":
            waiting[item["call_id"]] += 1
        elif item.get("type") == "function_call_output":
            waiting[item["call_id"]] -= 1
            assert waiting[item["call_id"]] >= 0
    assert waiting == {"a": 0, "b": 0}


@requirement("R19")
def test_foreign_thinking_and_metadata_are_never_sent():
    message = ChatMessage.model(
        ThinkingPart("hush-thought"),
        "Hello",
        metadata={
            "thinking": "hush-thought",
            "web_search": [{"event": "hush-event"}],
            "_anthropic_session": {"signature": "hush-signature", "items": [{"type": "message"}]},
            "_other": {"secret": "hush-other"},
        },
    )
    encoded = encode(ChatMessage.user("Hi"), message, ChatMessage.user("Go on"))
    assert b"hush" not in jsontext.dumps(encoded.body)
    assert encoded.body["input"][1] == {"type": "message", "role": "assistant", "content": "Hello"}


def test_model_files_follow_results_as_user_content():
    sent = items(
        ChatMessage.model(
            "Here.",
            DataPart(b"\x89PNG", "image/png"),
            ToolCallPart("call_1", "now"),
            LinkPart("https://a.example/a.pdf"),
        ),
        ChatMessage("tool", (ToolResultPart("call_1", "now", "noon"),)),
        ChatMessage.user("Thanks"),
    )
    assert [item.get("role", item.get("type")) for item in sent] == [
        "assistant",
        "function_call",
        "function_call_output",
        "user",
        "user",
    ]
    preface, image, file = sent[3]["content"]
    assert preface == {"type": "input_text", "text": FILES_ABOVE}
    assert (image["type"], file["type"]) == ("input_image", "input_file")


def test_empty_parts_are_not_sent():
    assert items(ChatMessage.user("", "Hi"), ChatMessage.model(""), ChatMessage("user", (TextPart(""),))) == [
        {"role": "user", "content": "Hi"}
    ]


def test_lone_surrogate_survives():
    request = ModelRequest(messages=(ChatMessage.user("half \ud83d"),))
    model = PROVIDER.chat_model("gpt-5.6", Settings(api_key="sk-test", base_url=BASE_URL))
    sent = model.encode(request).call.body or b""
    assert json.loads(sent)["input"][0]["content"] == "half \ud83d"


ODD: list[tuple[str, ChatMessage]] = [
    ("metadata", ChatMessage.model("odd", metadata={"note": 1})),
    ("two-texts", ChatMessage.user("odd", "one")),
    ("empty", ChatMessage.user("")),
    ("instruction", ChatMessage.system("odd")),
    ("file", ChatMessage.user(DataPart(b"GIF89a", "image/gif"))),
]


@pytest.mark.parametrize("odd", [None, *(message for _, message in ODD)], ids=["plain", *(name for name, _ in ODD)])
def test_long_history_is_encoded_like_short_one(odd: ChatMessage | None):
    pairs = [(ChatMessage.user(f"q{n}"), ChatMessage.model(f"a{n}")) for n in range(LONG)]
    messages = [*(message for pair in pairs for message in pair), *([] if odd is None else [odd])]
    short = [item for message in messages for item in (items(message) if message.parts != (TextPart(""),) else [])]
    assert json.loads(jsontext.dumps(items(*messages))) == short


@requirement("R45")
def test_typed_output_uses_native_schema_with_tools():
    schema = OutputSchema("City", CLOSED, description="A city.")
    encoded = body(
        ChatMessage.user("Hi"),
        output_schema=schema,
        tools=(WEATHER,),
        server_side_tools=(WebSearch(),),
        options=OpenAIResponsesOptions(verbosity="low"),
    )
    assert encoded["text"] == {
        "format": {"type": "json_schema", "name": "City", "schema": CLOSED, "strict": True, "description": "A city."},
        "verbosity": "low",
    }
    assert [tool["type"] for tool in encoded["tools"]] == ["function", "web_search"]
    assert encoded["stream"] is True


@requirement("R45")
def test_non_strict_schema_is_sent_with_warning():
    encoded = encode(ChatMessage.user("Hi"), output_schema=OutputSchema("City", {"type": "object"}))
    assert encoded.body["text"]["format"]["strict"] is False
    assert "City" in encoded.warnings[0]


@requirement("R45")
def test_json_mode_with_schema_raises():
    options = OpenAIResponsesOptions(json_object=True)
    assert body(ChatMessage.user("JSON"), options=options)["text"] == {"format": {"type": "json_object"}}
    with pytest.raises(ConfigurationError):
        encode(ChatMessage.user("JSON"), options=options, output_schema=OutputSchema("City", CLOSED))


def nested(inner: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": inner}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (CLOSED, True),
        (nested({"anyOf": [CLOSED, {"type": "null"}]}), True),
        (nested({"type": "array", "items": {"$ref": "#/$defs/A"}}) | {"$defs": {"A": CLOSED}}, True),
        ({**CLOSED, "required": []}, False),
        ({**CLOSED, "additionalProperties": True}, False),
        (nested({"type": "object"}), False),
        (nested({"type": ["object", "null"], "properties": {}}), False),
        (nested({"type": "array", "items": {"type": "object"}}), False),
        (nested({"anyOf": [{"type": "object"}]}), False),
        (nested({"allOf": [CLOSED]}), False),
        (CLOSED | {"$defs": {"A": {"type": "object"}}}, False),
    ],
)
def test_tool_is_strict_only_when_schema_allows(schema: dict[str, Any], strict: bool):
    encoded = encode(ChatMessage.user("Hi"), tools=(ToolSpec("t", "", schema, strict=True),))
    assert encoded.body["tools"][0]["strict"] is strict
    assert bool(encoded.warnings) is not strict


def test_tool_is_not_strict_by_default():
    assert body(ChatMessage.user("Hi"), tools=(ToolSpec("t", "", CLOSED),))["tools"][0]["strict"] is False


@requirement("R22")
def test_include_covers_tools_in_use():
    tools = (FileSearch(stores=["vs_1"]), CodeInterpreter(), WebSearch(), ComputerUse())
    options = OpenAIResponsesOptions(
        store=False, top_logprobs=2, include=["file_search_call.results", "message.input_image.image_url"]
    )
    assert body(ChatMessage.user("Hi"), server_side_tools=tools, options=options)["include"] == [
        "file_search_call.results",
        "code_interpreter_call.outputs",
        "web_search_call.action.sources",
        "computer_call_output.output.image_url",
        "reasoning.encrypted_content",
        "message.output_text.logprobs",
        "message.input_image.image_url",
    ]
    assert "include" not in body(ChatMessage.user("Hi"))


@requirement("R42")
def test_store_is_sent_only_when_set():
    assert "store" not in body(ChatMessage.user("Hi"))
    assert body(ChatMessage.user("Hi"), options=OpenAIResponsesOptions(store=True))["store"] is True
    encoded = encode(ChatMessage.user("Hi"), options=OpenAIResponsesOptions(store=False))
    assert encoded.body["store"] is False
    assert encoded.context.store is False


SECRET = DomainSecret(domain="a.example", name="KEY", value="v")
NETWORK = Network(allowed_domains=["a.example"], domain_secrets=[SECRET])


@requirement("R46")
@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (WebSearch(), {"type": "web_search"}),
        (
            WebSearch(
                location=Location(), allowed_domains=["a.example"], context_size="high", external_web_access=False
            ),
            {
                "type": "web_search",
                "filters": {"allowed_domains": ["a.example"]},
                "user_location": {"type": "approximate"},
                "search_context_size": "high",
                "external_web_access": False,
            },
        ),
        (
            WebSearch(version="preview", content_types=["image"], location=Location(city="Bern")),
            {
                "type": "web_search_preview",
                "user_location": {"type": "approximate", "city": "Bern"},
                "search_content_types": ["image"],
            },
        ),
        (
            FileSearch(
                stores=["vs_1"],
                max_results=3,
                ranker="auto",
                score_threshold=0.0,
                hybrid_search=HybridSearch(embedding_weight=1, text_weight=0.5),
                filters=Combination(filters=[Comparison(attribute="year", operator="gte", value=2020)]),
            ),
            {
                "type": "file_search",
                "vector_store_ids": ["vs_1"],
                "max_num_results": 3,
                "ranking_options": {
                    "ranker": "auto",
                    "score_threshold": 0.0,
                    "hybrid_search": {"embedding_weight": 1.0, "text_weight": 0.5},
                },
                "filters": {"type": "and", "filters": [{"type": "gte", "key": "year", "value": 2020}]},
            },
        ),
        (CodeInterpreter(), {"type": "code_interpreter", "container": {"type": "auto"}}),
        (CodeInterpreter(container_id="cntr_1"), {"type": "code_interpreter", "container": "cntr_1"}),
        (
            CodeInterpreter(file_ids=["file_1"], memory_limit="4g", network=NETWORK, allowed_callers=["programmatic"]),
            {
                "type": "code_interpreter",
                "container": {
                    "type": "auto",
                    "file_ids": ["file_1"],
                    "memory_limit": "4g",
                    "network_policy": {
                        "type": "allowlist",
                        "allowed_domains": ["a.example"],
                        "domain_secrets": [{"domain": "a.example", "name": "KEY", "value": "v"}],
                    },
                },
                "allowed_callers": ["programmatic"],
            },
        ),
        (
            ImageGeneration(
                partial_images=2, compression=80, mask_url="data:,", svg=Svg(effort="low"), output_format="svg"
            ),
            {
                "type": "image_generation",
                "partial_images": 2,
                "output_format": "svg",
                "output_compression": 80,
                "input_image_mask": {"image_url": "data:,"},
                "svg": {"reasoning": {"effort": "low"}},
            },
        ),
        (
            RemoteMCP(
                label="docs",
                url="https://mcp.example",
                require_approval=MCPApproval(always=["delete"], never=ToolFilter(read_only=True)),
                allowed_tools=ToolFilter(names=["read"], read_only=False),
                headers={"X-Key": "v"},
                authorization="token",
            ),
            {
                "type": "mcp",
                "server_label": "docs",
                "server_url": "https://mcp.example",
                "headers": {"X-Key": "v"},
                "authorization": "token",
                "allowed_tools": {"tool_names": ["read"], "read_only": False},
                "require_approval": {"always": {"tool_names": ["delete"]}, "never": {"read_only": True}},
            },
        ),
        (
            RemoteMCP(label="mail", connector="connector_gmail", require_approval="never", allowed_tools=["read"]),
            {
                "type": "mcp",
                "server_label": "mail",
                "connector_id": "connector_gmail",
                "allowed_tools": ["read"],
                "require_approval": "never",
            },
        ),
        (Shell(), {"type": "shell", "environment": {"type": "container_auto"}}),
        (
            Shell(
                network=Network(),
                skills=[SkillReference(id="skill_1"), InlineSkill(name="a", description="b", archive=b"zip")],
            ),
            {
                "type": "shell",
                "environment": {
                    "type": "container_auto",
                    "network_policy": {"type": "disabled"},
                    "skills": [
                        {"type": "skill_reference", "skill_id": "skill_1"},
                        {
                            "type": "inline",
                            "name": "a",
                            "description": "b",
                            "source": {"type": "base64", "media_type": "application/zip", "data": "emlw"},
                        },
                    ],
                },
            },
        ),
        (
            Shell(container_id="cntr_1"),
            {"type": "shell", "environment": {"type": "container_reference", "container_id": "cntr_1"}},
        ),
        (
            Shell(local=True, skills=[LocalSkill(name="a", description="b", path="/a")]),
            {
                "type": "shell",
                "environment": {"type": "local", "skills": [{"name": "a", "description": "b", "path": "/a"}]},
            },
        ),
        (LocalShell(), {"type": "local_shell"}),
        (ApplyPatch(allowed_callers=["direct"]), {"type": "apply_patch", "allowed_callers": ["direct"]}),
        (ComputerUse(), {"type": "computer"}),
        (
            ComputerUse(display_width=800),
            {"type": "computer_use_preview", "display_width": 800, "display_height": 768, "environment": "browser"},
        ),
        (
            ToolSearch(local=True, description="d"),
            {"type": "tool_search", "execution": "client", "description": "d"},
        ),
        (ProgrammaticToolCalling(), {"type": "programmatic_tool_calling"}),
        (
            CustomTool(name="sql", syntax="lark", definition="start: /a/", asynchronous=True),
            {
                "type": "custom",
                "name": "sql",
                "async": True,
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"},
            },
        ),
    ],
)
def test_server_side_tools_are_encoded(tool: ServerSideTool, expected: dict[str, Any]):
    assert body(ChatMessage.user("Hi"), server_side_tools=(tool,))["tools"] == [expected]


@requirement("R46")
def test_options_are_encoded():
    options = OpenAIResponsesOptions(
        reasoning=Reasoning(effort="high", summary="auto"),
        context_management=[ContextManagement(compact_threshold=5)],
        moderation=Moderation(model="omni", output="block"),
        conversation="conv_1",
        extra_body={"stream_options": {"new": 1}, "text": {"new": 2}, "user": "u"},
    )
    encoded = encode(ChatMessage.user("Hi"), options=options).body
    assert encoded["reasoning"] == {"effort": "high", "summary": "auto"}
    assert encoded["context_management"] == [{"type": "compaction", "compact_threshold": 5}]
    assert encoded["moderation"] == {"model": "omni", "policy": {"output": {"mode": "block"}}}
    assert encoded["conversation"] == "conv_1"
    assert encoded["stream_options"] == {"include_obfuscation": False, "new": 1}
    assert encoded["text"] == {"new": 2}
    assert encoded["user"] == "u"
    assert "reasoning" not in body(ChatMessage.user("Hi"), options=OpenAIResponsesOptions(reasoning=Reasoning()))


@requirement("R46")
def test_client_tools_can_be_deferred_and_namespaced():
    options = OpenAIResponsesOptions(
        function_options={"get_weather": OpenAIFunctionOptions(defer_loading=True, asynchronous=True)},
        namespaces=[ToolNamespace(name="weather", description="Weather", tools=["get_weather", "sql"])],
    )
    now = ToolSpec("now", "The time.", CLOSED)
    encoded = body(
        ChatMessage.user("Hi"),
        tools=(WEATHER, now),
        server_side_tools=(CustomTool(name="sql"), ToolSearch()),
        options=options,
    )
    assert [tool["type"] for tool in encoded["tools"]] == ["function", "tool_search", "namespace"]
    deferred, custom = encoded["tools"][2]["tools"]
    assert deferred["defer_loading"] is deferred["async"] is True
    assert custom == {"type": "custom", "name": "sql"}


def test_context_knows_if_shell_is_hosted():
    shells = {None: (), True: (Shell(),), False: (Shell(local=True),)}
    for expected, tools in shells.items():
        assert encode(ChatMessage.user("Hi"), server_side_tools=tools).context.hosted_shell is expected


def recorded_bodies(recordings: Path) -> list[dict[str, Any]]:
    exchanges = [
        exchange["request"]
        for path in sorted((recordings / "openai-responses").glob("*.json"))
        for exchange in json.loads(path.read_text("utf-8"))["exchanges"]
    ]
    return [
        sent["body"] for sent in exchanges if sent["path"].endswith("/responses") and isinstance(sent["body"], dict)
    ]


def test_items_use_only_fields_of_recorded_requests(recordings: Path):
    """Calls, results and messages look as those that the API has accepted."""
    accepted: dict[str, set[str]] = {}
    for sent in recorded_bodies(recordings):
        for item in sent["input"] if isinstance(sent.get("input"), list) else ():
            accepted.setdefault(item.get("type") or item["role"], set()).update(item)
    ours = items(
        ChatMessage.user("Hi"),
        ChatMessage.model("Hello", ToolCallPart("call_1", "now")),
        ChatMessage("tool", (ToolResultPart("call_1", "now", "noon"),)),
    )
    assert all(item.keys() <= accepted[item.get("type") or item["role"]] for item in ours)
