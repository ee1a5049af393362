"""What is sent, and what the test kit's script says, fits the types of the vendor's SDK."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk, completion_create_params

from providers.anthropic.test_encode_types import misfit
from providers.openai.chat.test_options import OPTIONS
from requirements import requirement
from sidestream.messages.message import ChatMessage, DataPart, LinkPart, ToolCallPart, ToolResultPart
from sidestream.output import OutputSchema
from sidestream.providers.openai.chat import PROVIDER, OpenAIChatOptions
from sidestream.providers.protocol import ModelRequest, Settings
from sidestream.testing.chat_script import ChatScript
from sidestream.tools.server_side import CustomTool, Location, WebSearch
from sidestream.tools.spec import ToolSpec
from support.streams import PNG, PNG_BASE64

HI = ChatMessage.user("Hi")
SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
SHOWN = [{"type": "text", "text": "a dot"}, {"type": "data", "bytes": PNG_BASE64, "mime_type": "image/png"}]

REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {"system": "Be brief."},
    "developer": {"system": "Be brief.", "options": OpenAIChatOptions(instructions_role="developer")},
    "files": {
        "messages": (
            ChatMessage.user(
                "Look",
                DataPart(PNG, "image/png"),
                LinkPart("https://example.com/a.png"),
                DataPart(b"RIFF", "audio/wav"),
                DataPart(b"%PDF-1", "application/pdf", "a.pdf"),
                DataPart(b"a,b", "text/csv", "a.csv"),
            ),
        ),
        "options": OpenAIChatOptions(image_detail="low"),
    },
    "tools": {
        "messages": (
            HI,
            ChatMessage.model(
                "I look.", ToolCallPart("call_1", "a", {"x": 1}), ToolCallPart("call_2", "sql", "SELECT 1")
            ),
            ChatMessage("tool", (ToolResultPart("call_1", "a", SHOWN), ToolResultPart("call_2", "sql", {"n": 1}))),
        ),
        "tools": (ToolSpec("a", "Does a.", SCHEMA, strict=True),),
        "server_side_tools": (CustomTool(name="sql", description="SQL", syntax="lark", definition="start: /./"),),
    },
    "typed": {"output_schema": OutputSchema("City", SCHEMA, description="A city")},
    "json": {"options": OpenAIChatOptions(json_object=True, include_obfuscation=False)},
    "search": {"server_side_tools": (WebSearch(location=Location(city="Rome", country="IT")),)},
    **{name: {"options": OpenAIChatOptions(**{name: value})} for name, (value, _) in OPTIONS.items()},
}

SCRIPTS = {
    "text": ChatScript().text("Hi you"),
    "refusal": ChatScript().refusal("No."),
    "calls": ChatScript().text("I look.").tool_call("a", {"x": 1}).tool_call("b", {}),
    "length": ChatScript(usage=None).text("Hi").stop("length"),
    "audio": ChatScript().audio(["AAAA"], "Hello"),
}


@requirement("R90")
@pytest.mark.parametrize("name", REQUESTS)
def test_request_fits_vendor_types(name: str):
    model = PROVIDER.chat_model("gpt-4o-search-preview", Settings(api_key="sk-test-key"))
    request = ModelRequest(**{"messages": (HI,), **REQUESTS[name]})
    body = json.loads(model.encode(request).call.body or b"")
    assert misfit(body, completion_create_params.CompletionCreateParamsStreaming) is None


def test_misfit_finds_invalid_request():
    body = {"model": "m", "messages": [{"role": "user", "content": 7}], "stream": True}
    assert misfit(body, completion_create_params.CompletionCreateParamsStreaming)


@requirement("R93")
@pytest.mark.parametrize("name", SCRIPTS)
def test_script_fits_vendor_types(name: str):
    for chunk in SCRIPTS[name].chunks():
        ChatCompletionChunk.model_validate(chunk)
    ChatCompletion.model_validate(SCRIPTS[name].response())
