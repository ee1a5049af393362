"""Typed answers that were rejected count across an interruption."""

from dataclasses import dataclass

import pytest

from requirements import requirement
from sidestream import Agent, Chat, Limits
from sidestream.errors import OutputInvalidError, RunError
from sidestream.store import Store
from sidestream.testing import FakeProvider, ResponsesScript, error_reply
from store.conftest import Execute
from support.stores import Opens


@dataclass
class City:
    name: str


BAD, GOOD = "no city", '{"name": "Oslo"}'


def answer(number: int, text: str) -> object:
    return ResponsesScript(id=f"r{number}").text(text).reply()


def agent_at(fake: FakeProvider) -> Agent[City]:
    return Agent("openai-responses", base_url=fake.base_url, output_type=City, limits=Limits(max_output_retries=1))


async def interrupted(store: Store, fake: FakeProvider) -> None:
    """The first answer is rejected; the request for the second one fails."""
    with pytest.raises(RunError):
        await Chat(agent_at(fake), store=store, id="talk").send("a city")
    assert len(fake.requests) == 2


@requirement("R84")
async def test_answer_rejected_before_interruption_counts_after_it(opens: Opens):
    async with FakeProvider([answer(1, BAD), error_reply(400, "no"), answer(3, BAD), answer(4, GOOD)]) as fake:
        await interrupted(opens(), fake)
        chat = Chat(agent_at(fake), store=opens(), id="talk")
        await chat.load()
        assert chat.status == "failed"
        assert chat.run_state is not None
        assert chat.run_state.turn.rejected_outputs == 1
        with pytest.raises(OutputInvalidError):
            await chat.resume()
        assert len(fake.requests) == 3, "the one retry was used before"


@requirement("R84")
async def test_resumed_request_contains_reason_of_rejected_answer(opens: Opens):
    async with FakeProvider([answer(1, BAD), error_reply(400, "no"), answer(3, GOOD)]) as fake:
        await interrupted(opens(), fake)
        chat = Chat(agent_at(fake), store=opens(), id="talk")
        assert (await chat.resume()).output == City("Oslo")
        retried, resumed = (request.json["input"] for request in fake.requests[1:])
    assert str(resumed[-1]) == str(retried[-1])
    assert resumed[-1]["role"] == "user"
    assert [message.role for message in chat.messages] == ["user", "model", "user", "model"]


@requirement("R84", "F32")
async def test_turn_killed_after_rejected_answer_is_unfinished(opens: Opens, execute: Execute):
    async with FakeProvider([answer(1, BAD), answer(2, GOOD), answer(3, GOOD)]) as fake:
        store = opens()
        await Chat(agent_at(fake), store=store, id="talk").send("a city")
        rejected = next(row.seq for row in await store.read("talk") if b"sidestream.output-rejected" in row.body)
        await execute(f"DELETE FROM {{}}records WHERE seq > {rejected}")
        await execute(f"UPDATE {{}}conversations SET head = {rejected}, last = 'custom'")
        chat = Chat(agent_at(fake), store=opens(), id="talk")
        await chat.load()
        assert chat.status == "unfinished"
        assert (await chat.resume()).output == City("Oslo")
