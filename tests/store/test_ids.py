"""Ids of conversations, in their parts."""

import pytest
from hypothesis import given, strategies as st

from sidestream.store.ids import ConversationId, chat_of, owner_in


@pytest.mark.parametrize(
    ("id", "parsed"),
    [
        ("talk", ConversationId(None, "talk")),
        ("talk~2", ConversationId(None, "talk~2")),
        ("/talk", ConversationId("", "talk")),
        ("anna/talk", ConversationId("anna", "talk")),
        ("anna/talk~12", ConversationId("anna", "talk", 12)),
        ("anna/talk~1", ConversationId("anna", "talk~1")),
        ("anna/talk~02", ConversationId("anna", "talk~02")),
        ("anna/~2", ConversationId("anna", "~2")),
        ("anna/talk~2~3", ConversationId("anna", "talk~2", 3)),
    ],
)
def test_id_is_parsed(id: str, parsed: ConversationId):
    assert ConversationId.parse(id) == parsed
    assert str(parsed) == id


@given(st.one_of(st.text(), st.from_regex(r"[a-z/~]*/[a-z~/]*~[0-9]+", fullmatch=True)))
def test_id_survives_parsing(id: str):
    assert str(ConversationId.parse(id)) == id


def test_branches_belong_to_one_chat():
    assert {chat_of("anna/talk"), chat_of("anna/talk~2"), chat_of("anna/talk~30")} == {"anna/talk"}
    assert chat_of("talk~2") == "talk~2"
    assert (owner_in("anna/talk~2"), owner_in("talk"), owner_in("/talk")) == ("anna", "", "")


def test_unstored_chats_need_owner():
    assert ConversationId.parse("/unstored_1").is_unstored
    assert not ConversationId.parse("unstored_1").is_unstored
