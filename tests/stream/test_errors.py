"""Errors as parts and back, and which errors of which servers say that the context is too long."""

import json
from typing import Any

import pytest

from sidestream import Agent, ContextOverflowError, ProviderError
from sidestream.errors import RunError
from sidestream.parts import Error
from sidestream.stream.errors import classified, error_from_part, part_of_error
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    GeminiScript,
    InteractionScript,
    MessagesScript,
    ResponsesScript,
    json_reply,
    sse,
)
from sidestream.testing.replies import ScriptBuilder
from sidestream.transport.calls import HttpCall
from sidestream.wire.failures import error_in_body, status_error

CALL = HttpCall(url="https://api.example.com/v1/responses", body=b"{}")

OVERFLOWS = [
    (400, {"message": "The input is larger than this model reads", "code": "context_length_exceeded"}),
    (400, {"message": "Your input exceeds the context window of this model. Please adjust your input and try again.", "code": None}),
    (400, {"message": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.", "type": "BadRequestError"}),
    (400, {"message": "the request exceeds the available context size, try increasing it", "type": "exceed_context_size_error", "code": 400}),
    (400, {"message": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."}),
    (400, {"message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length", "code": "3051"}),
    (400, {"type": "invalid_request_error", "message": "prompt is too long: 250000 tokens > 200000 maximum"}),
    (400, {"type": "invalid_request_error", "message": "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000"}),
    (400, {"code": 400, "status": "INVALID_ARGUMENT", "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."}),
    (422, {"message": "`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens", "type": "invalid_request_error"}),
]  # fmt: skip
OTHERS = [
    (400, {"message": "Invalid 'input': string too long. Expected a string with maximum length 10485760", "code": "string_above_max_length"}),
    (400, {"message": "Unsupported parameter: context_management"}),
    (429, {"message": "Rate limit: maximum context length tokens per minute"}),
    (413, {"type": "request_too_large", "message": "Request exceeds the maximum size"}),
    (500, {"message": "The server had an error"}),
]  # fmt: skip


@pytest.mark.parametrize(("status", "error"), OVERFLOWS)
def test_refusal_of_long_request_is_context_overflow(status: int, error: Any) -> None:
    found = status_error(CALL, status, {}, json.dumps({"error": error}).encode())
    assert type(found) is ContextOverflowError
    assert (found.retryable, found.status, found.kind) == (False, status, "context-overflow")
    assert "Context()" in found.message
    in_stream = classified(Error("provider", error["message"], code=error.get("code") or error.get("type")))
    assert type(error_from_part(in_stream)) is ContextOverflowError
    assert type(error_in_body(CALL, 200, json.dumps({"error": error}).encode())) is ContextOverflowError


@pytest.mark.parametrize(("status", "error"), OTHERS)
def test_other_errors_are_not_context_overflow(status: int, error: Any) -> None:
    found = status_error(CALL, status, {}, json.dumps({"error": error}).encode())
    assert not isinstance(found, ContextOverflowError)


@pytest.mark.parametrize(
    ("model", "script"),
    [
        ("openai-responses", ResponsesScript().failed("context_length_exceeded", "Too long")),
        ("openai:m", ChatScript().error("context_length_exceeded", "Too long")),
        ("anthropic", MessagesScript().error("invalid_request_error", "prompt is too long: 3 tokens > 2 maximum")),
        ("google", GeminiScript().error(400, "INVALID_ARGUMENT", "The input token count (3) exceeds the maximum number of tokens allowed (2).")),
        ("google:interactions/m", InteractionScript().error("invalid_argument", "The input token count (3) exceeds the maximum number of tokens allowed (2).")),
    ],
)  # fmt: skip
async def test_overflow_in_stream_has_its_class_at_every_provider(model: str, script: ScriptBuilder) -> None:
    async with FakeProvider([script.reply()], base_path="" if "google" in model else "/v1") as fake:
        with pytest.raises(ContextOverflowError) as caught:
            await Agent(model, base_url=fake.base_url, api_key="k").send("hi")
    assert not caught.value.retryable


async def test_rejected_field_is_named_on_error_and_part() -> None:
    error = {
        "message": "Invalid value",
        "type": "invalid_request_error",
        "param": "input[0].role",
        "code": "invalid_value",
    }
    async with FakeProvider([json_reply({"error": error}, status=400)]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        with pytest.raises(ProviderError) as caught:
            await agent.send("hi")
        assert (caught.value.code, caught.value.param) == ("invalid_value", "input[0].role")


def test_google_names_rejected_field_in_details() -> None:
    body = b'{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"m","details":[{"@type":"BadRequest","fieldViolations":[{"field":"contents[0].role","description":"d"}]}]}}'
    assert status_error(CALL, 400, {}, body).param == "contents[0].role"


@pytest.mark.parametrize(
    ("model", "reply"),
    [
        ("openai-responses", {"type": "error", "code": "invalid", "message": "m", "param": "tools[0]", "sequence_number": 1}),
        ("openai:m", {"error": {"message": "m", "type": "invalid", "param": "tools[0]", "code": "invalid"}}),
    ],
)  # fmt: skip
async def test_rejected_field_in_stream_is_kept(model: str, reply: Any) -> None:
    async with FakeProvider([sse([reply])]) as fake:
        with pytest.raises(ProviderError) as caught:
            await Agent(model, base_url=fake.base_url).send("hi")
    assert caught.value.param == "tools[0]"


@pytest.mark.parametrize("kind", [ProviderError, ContextOverflowError])
def test_error_survives_conversion_to_part(kind: type[RunError]) -> None:
    error = kind("m", code="c", status=400, param="p")
    again = error_from_part(part_of_error(error))
    assert (type(again), again.message, again.code, again.status, again.param) == (kind, "m", "c", 400, "p")
