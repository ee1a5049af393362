"""How the five APIs pair calls with results. They share the pairing, and differ where a result's place matters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from sidestream.messages.message import NOT_EXECUTED, ChatMessage, ToolCallPart, ToolResultPart
from sidestream.providers.anthropic.encode import request as anthropic
from sidestream.providers.google.encode import request as google
from sidestream.providers.google.interactions import encode as interactions
from sidestream.providers.openai.chat.encode import request as chat
from sidestream.providers.openai.responses.encode import request as responses
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared.histories import hashed_id, input_object, legal_name

URL = "https://api.example/v1"


class Api(NamedTuple):
    """An encoder, and how to read the results in its body, in the order in which they stand."""

    encode: Callable[[ModelRequest], Any]
    results: Callable[[dict[str, Any]], list[Any]]


APIS = {
    "anthropic": Api(
        lambda request: anthropic.encode_request(request, "claude-sonnet-5-5", URL),
        lambda body: [
            block["content"]
            for message in body["messages"]
            for block in message["content"]
            if block["type"] == "tool_result"
        ],
    ),
    "google": Api(
        lambda request: google.encode_request(request, "gemini-3-flash", URL),
        lambda body: [
            next(iter(part["functionResponse"]["response"].values()))
            for content in body["contents"]
            for part in content["parts"]
            if "functionResponse" in part
        ],
    ),
    "interactions": Api(
        lambda request: interactions.encode_interaction(request, "gemini-3-flash", URL),
        lambda body: [step["result"] for step in body["input"] if step["type"] == "function_result"],
    ),
    "chat": Api(
        lambda request: chat.encode_request(request, "gpt-5.6"),
        lambda body: [message["content"] for message in body["messages"] if message["role"] == "tool"],
    ),
    "responses": Api(
        lambda request: responses.encode_request(request, "gpt-5.6", URL),
        lambda body: [item["output"] for item in body["input"] if item.get("type") == "function_call_output"],
    ),
}

each = pytest.mark.parametrize("name", APIS)
USER = ChatMessage.user("Hi")


def called(*ids: str) -> ChatMessage:
    return ChatMessage("model", tuple(ToolCallPart(call_id, "look", {}) for call_id in ids))


def answered(**results: str) -> ChatMessage:
    return ChatMessage("tool", tuple(ToolResultPart(call_id, "look", text) for call_id, text in results.items()))


def encoded(name: str, *messages: ChatMessage) -> tuple[list[Any], tuple[str, ...]]:
    made = APIS[name].encode(ModelRequest(messages=messages))
    return APIS[name].results(made.body), made.warnings


@each
def test_repeated_call_id_gets_results_in_order(name: str):
    results, warnings = encoded(name, USER, called("a"), answered(a="one"), called("a"), answered(a="two"))
    assert (results, warnings) == (["one", "two"], ())


@each
def test_repeated_messages_get_repeated_results(name: str):
    step = called("a"), answered(a="one")
    assert encoded(name, USER, *step, *step) == (["one", "one"], ())


@each
def test_results_follow_call_order_except_in_responses(name: str):
    results, warnings = encoded(name, USER, called("a", "b"), answered(b="second", a="first"))
    assert results == (["second", "first"] if name == "responses" else ["first", "second"])
    assert warnings == ()


@each
def test_result_before_its_call_counts_except_in_responses(name: str):
    results, warnings = encoded(name, USER, answered(a="early"), called("a"))
    assert results == ([NOT_EXECUTED] if name == "responses" else ["early"])
    assert ["a of look" in warning for warning in warnings] == [True]


@each
def test_result_without_call_is_dropped_with_warning(name: str):
    results, warnings = encoded(name, USER, called("a"), answered(a="one", b="two"))
    assert results == ["one"]
    assert ["b of look" in warning for warning in warnings] == [True]


def test_replaced_ids_and_names_are_stable_and_legal():
    assert hashed_id("a b") == hashed_id("a b") != hashed_id("a c")
    assert (len(hashed_id("a b", 9)), hashed_id("a b", 9).isalnum()) == (9, True)
    assert [legal_name(name, max_length=5) for name in ("a b", "", "abcdefg")] == ["a_b", "unnamed", "abcde"]


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (ToolCallPart("a", "look", {"x": 1}), {"x": 1}),
        (ToolCallPart("a", "look", [1]), {"input": [1]}),
        (ToolCallPart("a", "look"), {}),
        (ToolCallPart("a", "look", None, "{x"), {"input": "{x"}),
    ],
)
def test_call_input_is_always_object(part: ToolCallPart, sent: dict[str, Any]):
    assert input_object(part) == sent
