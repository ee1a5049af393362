"""Notes: what a program wants to remember of a conversation is in its log, and changes nothing in it."""

from pathlib import Path

from requirements import requirement
from sidestream.messages.message import ChatMessage
from sidestream.store import open_store
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.writer import Writer
from sidestream.store.records import MessageAdded, Noted


@requirement("R80")
async def test_note_is_stored_without_changing_conversation(tmp_path: Path):
    store = open_store(tmp_path / "talks.db")
    try:
        writer = Writer(store, "talk", 0)
        for body in (
            Noted({"metadata": {"topic": "numbers"}}),
            MessageAdded(ChatMessage.user("Hi."), opens_turn=False),
            Noted({"deleted": ["resp_1"]}),
        ):
            writer.add(body)
        await writer.commit()
        conversation = Conversation(store, "talk")
        records = await conversation.records()
        assert [record.kind for record in records] == ["noted", "message", "noted"]
        assert records[0].body == Noted({"metadata": {"topic": "numbers"}})
        state = await conversation.state()
        assert (state.status, [message.text for message in state.messages], state.head) == ("complete", ["Hi."], 3)
        (info,) = await store.conversations()
        assert (info.title, await conversation.status(info)) == ("Hi.", "complete")
    finally:
        await store.aclose()
