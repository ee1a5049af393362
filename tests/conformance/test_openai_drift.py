"""Our tables of events and items against the unions of the vendor's SDK, both ways."""

from typing import Any, get_args

import pytest
from openai.types.beta import BetaResponseOutputItem, BetaResponsesServerEvent
from openai.types.responses import ResponseOutputItem, ResponsesServerEvent, ResponseStreamEvent

from requirements import requirement
from sidestream.jsontext import dumps, is_object
from sidestream.parts import Finish, Raw
from sidestream.providers.openai.responses.decode.decoder import (
    EVENTS,
    IGNORED,
    PASSED_ON,
    PASSED_ON_ITEMS,
    ResponsesDecoder,
)
from sidestream.providers.openai.responses.decode.items import ITEMS
from sidestream.providers.openai.responses.options import ResponsesContext
from sidestream.testing import ResponsesScript
from support.streams import EVERY_ITEM, stream


def members(union: Any) -> set[str]:
    """The `type` of each model in a union, from its Literal."""
    (models, *_) = get_args(union)
    return {name for model in get_args(models) for name in get_args(model.model_fields["type"].annotation)}


KNOWN_EVENTS = EVENTS.keys() | IGNORED.keys() | PASSED_ON.keys()
VENDOR_EVENTS = members(ResponseStreamEvent) | members(ResponsesServerEvent) | members(BetaResponsesServerEvent)
"""Those of a stream, of a WebSocket, and of the multi-agent beta."""
VENDOR_ITEMS = members(ResponseOutputItem) | members(BetaResponseOutputItem)

_NO_STAGE = "a stage beside those in the vendor's types; the item's status says the same"
_STREAMED_PATCH = "sent while a diff streams; the vendor's types have no such event"
_OPEN_RESPONSES = "the Open Responses specification's name for response.reasoning_text.*"
_XAI = "xAI's, for its search of X"
_XAI_CLIENT = "in the schemas of xAI's clients, not recorded"
_VLLM = "vLLM's name for response.content_part.* of reasoning"
EVENTS_OF_OURS = {
    "keepalive": "seen on long streams",
    "ping": "sent by gateways",
    "response.done": _XAI_CLIENT,
    "response.code_execution_call.in_progress": _XAI_CLIENT,
    "response.code_execution_call.executing": _XAI_CLIENT,
    "response.code_execution_call.completed": _XAI_CLIENT,
    "response.code_execution_call.failed": _XAI_CLIENT,
    "response.code_interpreter_call.executing": _XAI_CLIENT,
    "response.mcp_call.executing": _XAI_CLIENT,
    "response.mcp_call_output.delta": _XAI_CLIENT,
    "response.mcp_call_output.done": _XAI_CLIENT,
    "response.cancelled": "sent by other servers; the vendor has the status only",
    "response.reasoning.delta": _OPEN_RESPONSES,
    "response.reasoning.done": _OPEN_RESPONSES,
    "response.reasoning_part.added": _VLLM,
    "response.reasoning_part.done": _VLLM,
    "response.apply_patch_call_operation_diff.delta": _STREAMED_PATCH,
    "response.apply_patch_call_operation_diff.done": _STREAMED_PATCH,
    "response.web_search_call.failed": _NO_STAGE,
    "response.x_search_call.in_progress": _XAI,
    "response.x_search_call.searching": _XAI,
    "response.x_search_call.completed": _XAI,
    "response.x_search_call.failed": _XAI,
    "response.file_search_call.failed": _NO_STAGE,
    "response.code_interpreter_call.failed": _NO_STAGE,
    "response.image_generation_call.failed": _NO_STAGE,
}
"""Events that we read and the vendor's SDK does not know, each with its reason."""

ITEMS_OF_OURS = {
    "configuration_update": "stands in stored items and conversations, not in the vendor's output union",
    "x_search_call": _XAI,
    "view_image_call": _XAI_CLIENT,
    "view_x_video_call": _XAI_CLIENT,
    "code_execution_call": _XAI_CLIENT,
}
"""Items that we read and the vendor's SDK does not list as output, each with its reason."""


@requirement("R31")
@pytest.mark.parametrize("name", sorted(VENDOR_EVENTS))
def test_every_vendor_event_is_accounted_for(name: str):
    assert name in KNOWN_EVENTS


@requirement("R31")
@pytest.mark.parametrize("name", sorted(VENDOR_ITEMS))
def test_every_vendor_output_item_is_accounted_for(name: str):
    assert name in ITEMS or name in PASSED_ON_ITEMS


@requirement("R31")
@pytest.mark.parametrize("item", PASSED_ON_ITEMS)
def test_passed_on_item_is_raw_and_answer_is_intact(item: str):
    events = ResponsesScript().item({"type": item, "status": "completed"}).text("Done.").events()
    decoder = ResponsesDecoder(ResponsesContext())
    parts = [part for event in events for part in decoder.feed(dumps(event))]
    raw = [part.event for part in parts if isinstance(part, Raw)]
    # The final response has it once more.
    assert [event["type"] for event in raw if is_object(event)] == [
        "response.output_item.added",
        "response.output_item.done",
        item,
    ]
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason == "stop"


def test_vendor_unions_are_not_empty():
    assert {"error", "response.completed", "response.output_text.delta"} <= members(ResponseStreamEvent)
    assert {"message", "function_call"} <= members(ResponseOutputItem)
    assert len(members(ResponseStreamEvent)) >= 59
    assert len(members(ResponseOutputItem)) >= 28
    assert "response.steer.accepted" in members(ResponsesServerEvent)
    assert "response.inject.created" in members(BetaResponsesServerEvent)
    assert "agent_message" in members(BetaResponseOutputItem)


@requirement("R31")
def test_names_unknown_to_vendor_are_listed_with_reason():
    assert EVENTS_OF_OURS.keys() == KNOWN_EVENTS - VENDOR_EVENTS
    assert (ITEMS.keys() | PASSED_ON_ITEMS.keys()) - VENDOR_ITEMS == ITEMS_OF_OURS.keys()


@requirement("R31")
def test_untyped_names_have_reason_and_no_decoder():
    for name, reason in {**IGNORED, **PASSED_ON, **PASSED_ON_ITEMS}.items():
        assert reason
        assert name not in EVENTS
        assert name not in ITEMS
    assert not IGNORED.keys() & PASSED_ON.keys()


def test_sample_streams_cover_every_decoded_item():
    assert EVERY_ITEM.keys() == ITEMS.keys()
    for kind, events in EVERY_ITEM.items():
        assert kind in {item["type"] for item in stream(events)[-1]["response"]["output"]}
