"""Digests of messages: remembered as long as the message lives, and no longer."""

import gc

import pytest

from sidestream import ChatMessage
from sidestream.messages import sessions
from sidestream.messages.message import DataPart, TextPart
from sidestream.messages.sessions import history_digest, message_digest


def remembered() -> int:
    return len(sessions._known) + len(sessions._chains)


def test_digests_are_forgotten_with_their_messages():
    gc.collect()
    before = remembered()
    history = [ChatMessage.user(f"message {number}") for number in range(50)]
    for message in history:
        message_digest(message)
    history_digest(history)
    assert remembered() > before + 50
    del history, message
    gc.collect()
    assert remembered() == before


def test_new_message_never_gets_digest_of_freed_message():
    # A new object often has the id() of the one that was just freed.
    found = set()
    for number in range(200):
        message = ChatMessage.user(f"message {number}")
        found.add(message_digest(message))
        del message
    assert len(found) == 200


def test_digest_cache_of_long_histories_is_bounded():
    kept = [[ChatMessage.user(f"{n} {number}") for number in range(12)] for n in range(2 * sessions._MAX_CHAINS)]
    digests = [history_digest(history) for history in kept]
    assert len(sessions._chains) <= sessions._MAX_CHAINS
    assert digests == [history_digest(history) for history in kept]
    assert len(set(digests)) == len(kept)


@pytest.mark.parametrize(
    "other",
    [
        DataPart(b"b,a", "text/csv", "a.csv"),
        DataPart(b"", "text/csv", "a.csv"),
        DataPart(b"a,b", "text/plain", "a.csv"),
        DataPart(b"a,b", "text/csv", "b.csv"),
    ],
)
def test_message_digest_changes_with_file(other: DataPart):
    text, file = TextPart("Here."), DataPart(b"a,b", "text/csv", "a.csv")
    assert message_digest(ChatMessage("model", (text, file))) != message_digest(ChatMessage("model", (text, other)))


def test_message_digest_compares_destination_of_user_files_only():
    files = [DataPart(b"a,b", "text/csv", "a.csv", to=to) for to in ("model", "container")]
    of_users = {message_digest(ChatMessage("user", (file,))) for file in files}
    assert len(of_users) == 2
    assert len({message_digest(ChatMessage("model", (file,))) for file in files}) == 1
