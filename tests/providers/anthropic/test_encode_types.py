"""What is sent fits the types of the vendor's SDK: no field that it does not know, none missing that it needs."""

import collections.abc
import json
import types
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import pytest

from providers.anthropic.messages_wire import CHAR_CITATION, EVERY_BLOCK, FOUND, MODEL, WEB_CITATION, decode
from requirements import requirement
from sidestream.messages.message import ChatMessage, DataPart, LinkPart, ToolResultPart
from sidestream.output import OutputSchema
from sidestream.providers.anthropic import (
    PROVIDER,
    Advisor,
    AnthropicFunctionOptions,
    AnthropicOptions,
    AnthropicThinking,
    Browser,
    ClearThinking,
    ClearToolUses,
    Compact,
    Compaction,
    Memory,
    Skill,
    TaskBudget,
    TextEditor,
)
from sidestream.providers.protocol import ModelRequest, Settings
from sidestream.testing.messages_script import MessagesScript
from sidestream.tools.server_side import (
    CodeInterpreter,
    ComputerUse,
    LocalShell,
    Location,
    RemoteMCP,
    ServerSideTool,
    ToolSearch,
    WebFetch,
    WebSearch,
)
from sidestream.tools.spec import ToolSpec
from support.streams import PNG, messages

pytest.importorskip(
    "anthropic", reason="the vendor's SDK is not installed, so requests were not held against its types"
)
from anthropic.types.beta import message_create_params

_ARRAYS = (list, collections.abc.Iterable, collections.abc.Sequence)


def misfit(value: Any, kind: Any, path: str = "body") -> str | None:
    """Where and why a JSON value does not fit a type; None where it does."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (Any, object) or isinstance(kind, TypeVar):
        return None
    if origin is Annotated or "Required" in str(origin):
        return misfit(value, arguments[0], path)
    if origin in (Union, types.UnionType):
        found = [misfit(value, option, path) for option in arguments if not hasattr(option, "model_fields")]
        deepest = max((reason for reason in found if reason), key=lambda r: len(r.split(":")[0]), default=f"{path}: ?")
        return None if None in found else deepest
    if origin is Literal:
        return None if value in arguments else f"{path}: {value!r} is none of {arguments}"
    if origin in _ARRAYS or "SequenceNotStr" in str(origin):
        if not isinstance(value, list):
            return f"{path}: no list"
        return next((r for n, entry in enumerate(value) if (r := misfit(entry, arguments[0], f"{path}[{n}]"))), None)
    if origin is dict:
        return next((r for key, entry in value.items() if (r := misfit(entry, arguments[1], f"{path}.{key}"))), None)
    if origin is not None:
        return f"{path}: {value!r} is no {kind}"
    if hasattr(kind, "__total__"):
        return _misfit_fields(value, kind, path)
    if kind in (type(None), None):
        return None if value is None else f"{path}: not null"
    kinds = (int, float) if kind is float else kind
    return None if isinstance(value, kinds) else f"{path}: {value!r} is no {kind}"


def _misfit_fields(value: Any, kind: Any, path: str) -> str | None:
    if not isinstance(value, dict):
        return f"{path}: no object"
    fields = get_type_hints(kind, include_extras=True)
    if kind.__name__ == "BetaFallbackBlockParam":
        fields["from"] = object  # Its base is made by a call, whose names get_type_hints cannot see.
    for name, field in fields.items():
        if "Required[" in str(field) and name not in value:
            return f"{path}.{name}: missing"
    for name, entry in value.items():
        if name not in fields:
            return f"{path}.{name}: unknown to {kind.__name__}"
        if reason := misfit(entry, fields[name], f"{path}.{name}"):
            return reason
    return None


HI = ChatMessage.user("Hi")
TOOL = ToolSpec("get_weather", "Weather.", {"type": "object", "properties": {}, "additionalProperties": False}, True)


def body_of(*history: ChatMessage, **fields: Any) -> Any:
    model = PROVIDER.chat_model(MODEL, Settings(api_key="k"))
    body = json.loads(model.encode(ModelRequest(messages=history, **fields)).call.body or b"")
    body.pop("stream")
    return body


def assert_fits(body: Any) -> None:
    assert misfit(body, message_create_params.MessageCreateParamsBase) is None


def test_misfit_finds_invalid_requests():
    base = message_create_params.MessageCreateParamsBase
    good = body_of(HI)
    assert misfit(good, base) is None
    text = {"type": "text", "text": "x"}
    for bad in (
        {**good, "model": 5},
        {**good, "brand_new": 1},
        {key: value for key, value in good.items() if key != "max_tokens"},
        {**good, "messages": [{"role": "robot", "content": "x"}]},
        {**good, "messages": [{"role": "user", "content": [{**text, "bogus": 1}]}]},
        {**good, "messages": [{"role": "user", "content": [{"type": "text"}]}]},
    ):
        assert misfit(bad, base)


@requirement("R54")
@pytest.mark.parametrize("kind", sorted(EVERY_BLOCK))
def test_every_resent_block_fits_vendor_types(kind: str):
    script = EVERY_BLOCK[kind]
    (answer,) = messages(decode(script.events(), model=MODEL))
    wiki = RemoteMCP(label="wiki", url="https://mcp.example", require_approval="never")
    body = body_of(HI, answer, HI, server_side_tools=(wiki,))
    assert kind in {block["type"] for message in body["messages"] for block in message["content"]}
    assert_fits(body)


def test_files_citations_and_results_fit_vendor_types():
    script = MessagesScript().text("As they say.", citations=[WEB_CITATION, CHAR_CITATION]).web_search("x", FOUND)
    (answer,) = messages(decode(script.tool_use("f", {}, "toolu_1").events()))
    files = (DataPart(PNG, "image/png"), DataPart(b"%PDF-1.7", "application/pdf", "a.pdf"), DataPart(b"a", "text/csv"))
    links = (LinkPart("https://x.example/a.png"), LinkPart("anthropic-file:file_1"), LinkPart("https://x.example"))
    picture = [{"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}]
    result = ChatMessage("tool", (ToolResultPart("toolu_1", "f", picture, True),))
    options = AnthropicOptions(document_citations=True, prompt_cache="1h")
    later = (ChatMessage.system("Be brief."), HI)
    assert_fits(body_of(ChatMessage.user("Look", *files, *links), answer, result, *later, options=options, system="S"))


TOOLS: list[ServerSideTool] = [
    WebSearch(max_uses=2, allowed_domains=["a.example"], location=Location(city="Bern", country="CH")),
    WebFetch(max_uses=2, blocked_domains=["a.example"], max_content_tokens=100, citations=True),
    CodeInterpreter(file_ids=["file_1"], allowed_callers=["direct", "programmatic"]),
    ToolSearch(),
    ToolSearch(version="regex"),
    RemoteMCP(
        label="d",
        url="https://d.example",
        require_approval="never",
        authorization="t",
        allowed_tools=["a"],
        defer_loading=True,
    ),
    Memory(),
    LocalShell(),
    TextEditor(max_characters=100),
    ComputerUse(display_width=800),
    Advisor(model="claude-opus-5", max_uses=1, max_tokens=100),
    Browser(enable=("javascript_exec",), disable=("type",), defer_loading=True),
]


@requirement("R51")
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: type(tool).__name__)
@pytest.mark.parametrize("model", [MODEL, "claude-sonnet-4-5", "claude-sonnet-4-0"])
def test_every_tool_fits_vendor_types(tool: ServerSideTool, model: str):
    chat = PROVIDER.chat_model(model, Settings(api_key="k"))
    request = ModelRequest(messages=(HI,), server_side_tools=(tool,), tools=(TOOL,))
    body = json.loads(chat.encode(request).call.body or b"")
    body.pop("stream")
    # A program in an older sandbox than programs may call from is the user's own choice.
    if not (model.endswith("4-0") and isinstance(tool, CodeInterpreter)):
        assert_fits(body)


@requirement("R51")
@pytest.mark.parametrize(
    "options",
    [
        AnthropicOptions(
            thinking=AnthropicThinking(type="enabled", budget_tokens=2000, display="updates", prefix_mismatch="error")
        ),
        AnthropicOptions(
            thinking=AnthropicThinking(type="between_tools"), effort="max", task_budget=TaskBudget(total=9)
        ),
        AnthropicOptions(tool_choice="any", parallel_tool_calls=False, stop_sequences=["END"], user_id="u"),
        AnthropicOptions(cache_control="1h", service_tier="auto", speed="fast", inference_geo="eu"),
        AnthropicOptions(
            context_management=[
                ClearToolUses(
                    trigger={"type": "input_tokens", "value": 5}, exclude_tools=["f"], clear_tool_inputs=True
                ),
                ClearThinking(keep=2),
                ClearThinking(keep="all"),
                Compact(trigger_tokens=50000, pause_after_compaction=True, instructions="Short."),
            ]
        ),
        AnthropicOptions(compaction=Compaction(instructions="Short."), thread="create"),
        AnthropicOptions(fallbacks=["claude-opus-5", {"model": "claude-sonnet-5", "max_tokens": 5}]),
        AnthropicOptions(fallbacks="default", fallback_credit_token="t", thread="msg_1", previous_message_id="msg_1"),
        AnthropicOptions(skills=[Skill(id="pptx", version="latest")]),
        AnthropicOptions(
            function_options={
                "get_weather": AnthropicFunctionOptions(
                    defer_loading=True,
                    allowed_callers=["programmatic"],
                    eager_input_streaming=True,
                    input_examples=[{}],
                )
            }
        ),
        AnthropicOptions(typed_output="tool"),
    ],
)
def test_options_fit_vendor_types(options: AnthropicOptions):
    schema = OutputSchema("City", {"type": "object", "properties": {"name": {"type": "string"}}})
    assert_fits(body_of(HI, tools=(TOOL,), options=options, output_schema=schema))
