"""Our tables of events and items against the unions of the vendor's SDK, both ways."""

from typing import Any, get_args

import pytest
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent

from requirements import requirement
from sidestream.providers.openai_responses.decode import EVENTS, IGNORED, PASSED_ON
from sidestream.providers.openai_responses.items import ITEMS
from streams import EVERY_ITEM, stream


def members(union: Any) -> set[str]:
    """The `type` of each model in a union, from its Literal."""
    (models, *_) = get_args(union)
    return {name for model in get_args(models) for name in get_args(model.model_fields["type"].annotation)}


KNOWN_EVENTS = EVENTS.keys() | IGNORED.keys() | PASSED_ON.keys()

_NO_STAGE = "a stage beside those in the vendor's types; the item's status says the same"
_STREAMED_PATCH = "sent while a diff streams; the vendor's types have no such event"
_OPEN_RESPONSES = "the Open Responses specification's name for response.reasoning_text.*"
EVENTS_OF_OURS = {
    "keepalive": "seen on long streams",
    "ping": "sent by gateways",
    "response.cancelled": "sent by other servers; the vendor has the status only",
    "response.reasoning.delta": _OPEN_RESPONSES,
    "response.reasoning.done": _OPEN_RESPONSES,
    "response.apply_patch_call_operation_diff.delta": _STREAMED_PATCH,
    "response.apply_patch_call_operation_diff.done": _STREAMED_PATCH,
    "response.web_search_call.failed": _NO_STAGE,
    "response.file_search_call.failed": _NO_STAGE,
    "response.code_interpreter_call.failed": _NO_STAGE,
    "response.image_generation_call.failed": _NO_STAGE,
}
"""Events that we read and the vendor's SDK does not know, each with its reason."""

ITEMS_OF_OURS = {"configuration_update": "stands in stored items and conversations, not in the vendor's output union"}
"""Items that we read and the vendor's SDK does not list as output, each with its reason."""


@requirement("R31")
@pytest.mark.parametrize("name", sorted(members(ResponseStreamEvent)))
def test_each_event_of_the_vendor_is_read_ignored_or_passed_on(name: str):
    assert name in KNOWN_EVENTS


@requirement("R31")
@pytest.mark.parametrize("name", sorted(members(ResponseOutputItem)))
def test_each_output_item_of_the_vendor_is_read(name: str):
    assert name in ITEMS


def test_the_unions_were_really_read():
    assert {"error", "response.completed", "response.output_text.delta"} <= members(ResponseStreamEvent)
    assert {"message", "function_call"} <= members(ResponseOutputItem)
    assert len(members(ResponseStreamEvent)) >= 59
    assert len(members(ResponseOutputItem)) >= 28


@requirement("R31")
def test_what_only_we_know_is_listed_with_its_reason():
    assert KNOWN_EVENTS - members(ResponseStreamEvent) == EVENTS_OF_OURS.keys()
    assert ITEMS.keys() - members(ResponseOutputItem) == ITEMS_OF_OURS.keys()


@requirement("R31")
def test_what_becomes_no_typed_part_has_a_reason_and_no_second_row():
    for name, reason in {**IGNORED, **PASSED_ON}.items():
        assert reason
        assert name not in EVENTS
    assert not IGNORED.keys() & PASSED_ON.keys()


def test_the_streams_of_these_tests_hold_every_item_we_read():
    assert EVERY_ITEM.keys() == ITEMS.keys()
    for kind, events in EVERY_ITEM.items():
        assert kind in {item["type"] for item in stream(events)[-1]["response"]["output"]}
