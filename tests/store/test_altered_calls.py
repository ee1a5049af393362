"""Calls whose arguments were altered in the database: none runs on an approval of the old ones."""

import pytest

from requirements import requirement
from sidestream import Agent, ApprovalError, Chat, tool
from sidestream.store import Store
from sidestream.testing import FakeProvider, ResponsesScript
from store.conftest import Execute
from support.stores import Opens

OLD, NEW = "draft.txt", "other.txt"


class Desk:
    """A tool that needs an approval and notes what it did."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def delete(self, name: str) -> str:
        """Deletes something."""
        self.done.append(name)
        return "gone"


def agent_at(fake: FakeProvider, desk: Desk) -> Agent[str]:
    return Agent("openai-responses", base_url=fake.base_url, tools=[tool(approval="ask")(desk.delete)])


def deletion() -> list[object]:
    return [
        ResponsesScript(id="r1").function_call("delete", {"name": OLD}, "call_d").reply(),
        ResponsesScript(id="r2").text("Done.").reply(),
    ]


@pytest.fixture
def altered(where: str, execute: Execute):
    """Replaces the arguments in the records of these kinds."""

    async def alter(*kinds: str) -> None:
        text = "convert_from(body, 'UTF8')" if where.startswith("postgresql") else "CAST(body AS TEXT)"
        replaced = f"replace({text}, '{OLD}', '{NEW}')"
        body = f"convert_to({replaced}, 'UTF8')" if where.startswith("postgresql") else f"CAST({replaced} AS BLOB)"
        names = ", ".join(f"'{kind}'" for kind in kinds)
        await execute(f"UPDATE {{}}records SET body = {body} WHERE kind IN ({names})")

    return alter


async def waiting_chat(store: Store, fake: FakeProvider, desk: Desk) -> Chat[str]:
    chat = Chat(agent_at(fake, desk), store=store, id="talk")
    await chat.send("delete the draft")
    assert chat.status == "waiting"
    return chat


async def kinds_with(store: Store, text: str) -> set[str]:
    return {row.kind for row in await store.read("talk") if text.encode() in row.body}


@requirement("F42")
@pytest.mark.parametrize("kinds", [["tool-call"], ["approval-asked"], ["tool-call", "approval-asked"]], ids=" ".join)
async def test_old_approval_does_not_run_altered_arguments(opens: Opens, altered, kinds: list[str]):
    desk = Desk()
    store = opens()
    async with FakeProvider(deletion()) as fake:
        chat = await waiting_chat(store, fake, desk)
        decisions = [approval.approve() for approval in chat.approvals]
        assert await kinds_with(store, OLD) >= set(kinds)
        await altered(*kinds)
        assert await kinds_with(store, NEW) == set(kinds)
        other = Chat(agent_at(fake, desk), store=opens(), id="talk")
        await other.load()
        with pytest.raises(ApprovalError):
            await other.resume(decisions)
        # Nor does what the altered log itself asks for.
        await other.load()
        with pytest.raises(ApprovalError):
            await other.resume([approval.approve() for approval in other.approvals])
    assert desk.done == []


@requirement("F42")
@pytest.mark.parametrize("is_altered", [True, False])
async def test_arguments_altered_after_decision_need_new_approval(
    opens: Opens, altered, execute: Execute, is_altered: bool
):
    desk = Desk()
    store = opens()
    async with FakeProvider([*deletion(), deletion()[1]]) as fake:
        chat = await waiting_chat(store, fake, desk)
        await chat.resume([approval.approve() for approval in chat.approvals])
        assert desk.done == [OLD]
        # As if the process had been killed between the decision and the tool.
        (decided,) = [row.seq for row in await store.read("talk") if row.kind == "approval-decided"]
        await execute(f"DELETE FROM {{}}records WHERE seq > {decided}")
        await execute(f"UPDATE {{}}conversations SET head = {decided}, last = 'approval-decided'")
        if is_altered:
            await altered("tool-call")
        other = Chat(agent_at(fake, desk), store=opens(), id="talk")
        await other.load()
        assert other.status == "unfinished"
        await other.resume()
    if is_altered:
        assert desk.done == [OLD]
        assert other.status == "waiting"
        assert [approval.input for approval in other.approvals] == [{"name": NEW}]
    else:
        assert desk.done == [OLD, OLD], "unaltered, it runs"
