"""Messages: what a history is made of, and its way through JSON."""

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.errors import ConfigurationError
from sidestream.messages.message import (
    ApprovalPart,
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    messages_from_json,
    messages_to_json,
    strip_metadata,
)

SESSION = {"response_id": "resp_1", "items": []}
HISTORY = [
    ChatMessage.system("Be brief."),
    ChatMessage.user("Look:", DataPart(b"\x89PNG\x00\xff", "image/png", "a.png"), LinkPart("https://example.com/b")),
    ChatMessage.model(
        ThinkingPart("Hm", "rs_1:0"),
        TextPart("I see", "msg_1"),
        ToolCallPart("call_1", "get_weather", {"city": "Rome"}),
        ToolCallPart("call_2", "get_weather", None, '{"city": "Ro'),
        metadata={"_responses_session": SESSION, "web_search": [{"type": "x"}], "thinking": "Hm"},
    ),
    ChatMessage("tool", (ToolResultPart("call_1", "get_weather", {"sky": ["blue"]}),)),
    ChatMessage("tool", (ToolResultPart("call_2", "get_weather", None, True), ApprovalPart("mcpr_1", True, "fine"))),
]


@requirement("R15")
def test_history_with_every_kind_of_part_round_trips():
    assert messages_from_json(messages_to_json(HISTORY)) == HISTORY
    assert {type(part) for message in HISTORY for part in message.parts} == set(get_args(MessagePart))


@requirement("R15")
def test_json_form_is_plain_with_base64_bytes():
    assert json.loads(messages_to_json(HISTORY[1:2])) == [
        {
            "role": "user",
            "parts": [
                {"type": "text", "text": "Look:"},
                {"type": "data", "bytes": "iVBORwD/", "mime_type": "image/png", "name": "a.png"},
                {"type": "link", "url": "https://example.com/b"},
            ],
        }
    ]
    assert [part["type"] for part in json.loads(messages_to_json(HISTORY[2:4]))[0]["parts"]] == [
        "thinking",
        "text",
        "tool-call",
        "tool-call",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
PARTS: st.SearchStrategy[MessagePart] = st.one_of(
    st.builds(TextPart, st.text(), st.none() | st.text()),
    st.builds(ThinkingPart, st.text(), st.none() | st.text()),
    st.builds(DataPart, st.binary(), st.text(), st.none() | st.text()),
    st.builds(LinkPart, st.text(), st.none() | st.text(), st.none() | st.text()),
    st.builds(ToolCallPart, st.text(), st.text(), JSON, st.none() | st.text()),
    st.builds(ToolResultPart, st.text(), st.text(), JSON, st.booleans()),
    st.builds(ApprovalPart, st.text(), st.booleans(), st.none() | st.text()),
)
MESSAGES = st.builds(
    ChatMessage,
    st.sampled_from(["system", "user", "model", "tool"]),
    st.lists(PARTS, max_size=3).map(tuple),
    st.dictionaries(st.text(), JSON, max_size=3),
)


@requirement("R15")
@given(st.lists(MESSAGES, max_size=3))
def test_any_history_round_trips(history: list[ChatMessage]):
    text = messages_to_json(history)
    assert messages_from_json(text) == history
    assert messages_from_json(text.encode()) == history


@requirement("R15")
def test_lone_surrogate_survives_json():
    history = [ChatMessage.model("cut \ud83d", DataPart(b"\xff", "a/b"), metadata={"k": "\ude00"})]
    assert messages_from_json(messages_to_json(history)) == history


@requirement("R15")
@pytest.mark.parametrize("message", HISTORY, ids=lambda message: message.role)
def test_messages_and_their_parts_are_frozen(message: ChatMessage):
    for value in (message, *message.parts):
        for field in value.__struct_fields__:
            with pytest.raises(AttributeError):
                setattr(value, field, None)


@pytest.mark.parametrize("text", ["", "{}", '[{"role":"pirate"}]', '[{"role":"user","parts":[{"type":"x"}]}]'])
def test_messages_from_json_rejects_invalid_history(text: str):
    with pytest.raises(ValueError, match=r"."):
        messages_from_json(text)


def test_message_text_joins_its_text_parts():
    message = ChatMessage.model("a", ThinkingPart("no"), "b")
    assert message.text == "ab"
    assert HISTORY[2].tool_calls == HISTORY[2].parts[2:]


@requirement("R25")
def test_strip_metadata_keeps_sessions():
    stripped = strip_metadata(HISTORY)
    assert [message.parts for message in stripped] == [message.parts for message in HISTORY]
    assert stripped[2].metadata == {"_responses_session": SESSION}


@requirement("R25")
def test_private_metadata_can_be_stripped():
    assert [message.metadata for message in strip_metadata(HISTORY, drop=["_*"])] == [{}] * len(HISTORY)


@requirement("R25")
def test_keys_can_be_kept_or_dropped_by_name():
    full = {"_a_session": {}, "_b_session": {}, "web_search": [1], "thinking": "hm"}
    history = [ChatMessage.model("Hi", metadata=full)]

    def left(**keys: list[str]) -> set[str]:
        return set(strip_metadata(history, **keys)[0].metadata)

    assert left() == {"_a_session", "_b_session"}
    assert left(keep=["web_search"]) == {"_a_session", "_b_session", "web_search"}
    assert left(drop=["_a_session"]) == {"_b_session"}
    assert left(keep=["_a_session", "thinking"], drop=["_*"]) == {"_a_session", "thinking"}
    assert left(keep=["thinking"], drop=["thinking"]) == {"_a_session", "_b_session"}, "to drop wins"


def test_string_instead_of_key_list_is_refused():
    with pytest.raises(ConfigurationError):
        strip_metadata(HISTORY, keep="web_search")


def test_message_without_strippable_metadata_is_same_object():
    assert strip_metadata(HISTORY)[0] is HISTORY[0]


@requirement("R25")
def test_stripping_does_not_change_history():
    before = messages_to_json(HISTORY)
    strip_metadata(HISTORY, drop=["_*"])
    assert messages_to_json(HISTORY) == before


def test_metadata_without_json_form_cannot_be_written():
    broken: dict[str, Any] = {"k": object()}
    with pytest.raises((TypeError, msgspec.ValidationError)):
        messages_to_json([ChatMessage.model("x", metadata=broken)])
