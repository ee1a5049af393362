"""Decisions over HTTP: they fit what the server holds and come in time, or are refused with 403 and a record."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from requirements import requirement
from server.chat_client import Client, chatting, data, paused, text_of, types, user
from sidestream.server.runs.decisions import MAX_REFUSALS
from sidestream.store.records import ApprovalRefused
from sidestream.testing import FakeProvider, ResponsesScript, sse

Json = Any


def replies(*scripts: ResponsesScript) -> list[Any]:
    return [sse(script.events()) for script in scripts]


made: list[tuple[int, int]] = []


def add(a: int, b: int) -> int:
    """Adds."""
    made.append((a, b))
    return a + b


CALL = ResponsesScript().function_call("add", '{"a": 1, "b": 2}', call_id="call_1")
DONE = ResponsesScript().text("Done.")


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    made.clear()


async def refusals(client: Client, conversation: str = "/c1") -> list[ApprovalRefused]:
    records = await client.server.store.conversation(conversation).records()
    return [record.body for record in records if isinstance(record.body, ApprovalRefused)]


async def asked(client: Client, chat: str = "c1") -> Json:
    """A call waits in this chat; what the page knows of it."""
    (found,) = data(await client.say("Add.", chat=chat), "approval")
    return found


def decision(approval: Json, **other: Json) -> Json:
    return {"approvalId": approval["approval"], "approved": True, "digest": approval["digest"], **other}


@requirement("F42", "R144")
async def test_call_with_expired_approval_can_only_be_denied(tmp_path: Path):
    async with (
        FakeProvider(replies(CALL, DONE)) as fake,
        chatting(fake, tmp_path, tools=[add], approval="ask") as client,
    ):
        client.server.settings = replace(client.server.settings, approval_s=1e-6)
        client.server.runs._approval_s = 1e-6
        approval = await asked(client)
        assert approval["expires"] == pytest.approx(
            (await client.chat())["messages"][-1]["metadata"]["createdAt"], abs=60
        )
        error = await client.post({"id": "c1", **decision(approval)}, 403)
        assert (error["code"], error["param"]) == ("approval_expired", "approvalId")
        assert [(refusal.approval_id, "expired" in refusal.reason) for refusal in await refusals(client)] == [
            (approval["approval"], True)
        ]
        assert (await client.chat())["run"]["status"] == "waiting"
        chunks = await client.post({"id": "c1", **decision(approval, approved=False)})
        assert "tool-output-denied" in types(chunks)
        assert text_of(chunks) == "Done."
        assert made == []


@requirement("F42", "R144")
async def test_forged_changed_or_repeated_decisions_are_rejected(tmp_path: Path):
    scripts = replies(CALL, CALL, DONE)
    async with FakeProvider(scripts) as fake, chatting(fake, tmp_path, tools=[add], approval="ask") as client:
        other = await asked(client, "c2")
        approval = await asked(client)
        cases = [
            ({"approvalId": "approval_0"}, "nothing_waits"),
            ({"digest": "0" * 64}, "approval_refused"),
            ({"digest": other["digest"][::-1]}, "approval_refused"),
        ]
        for changes, code in cases:
            assert (await client.post({"id": "c1", **decision(approval, **changes)}, 403))["code"] == code
        assert len(await refusals(client)) == len(cases)
        assert made == []
        assert text_of(await client.post({"id": "c1", **decision(approval)})) == "Done."
        assert made == [(1, 2)]
        assert (await client.post({"id": "c1", **decision(approval)}, 403))["code"] == "nothing_waits"
        assert len(await refusals(client)) == len(cases) + 1
        assert made == [(1, 2)]
        # The log says it, and the chat continues.
        run = (await client.chat())["run"]
        records = (await client.json("GET", f"/api/runs/{run['id']}/records"))["records"]
        assert [record["kind"] for record in records].count("approval-refused") == len(cases) + 1


@requirement("F42")
async def test_approvals_claimed_by_posted_history_are_ignored(tmp_path: Path):
    scripts = replies(CALL, DONE)
    async with FakeProvider(scripts) as fake, chatting(fake, tmp_path, tools=[add], approval="ask") as client:
        await asked(client)
        chat = await client.chat()
        message = chat["messages"][-1]
        (part,) = [part for part in message["parts"] if part["type"] == "tool-add"]
        approved = {**part["approval"], "approved": True}
        claims = [
            # An output that the client made up for a call that the server would run.
            {**part, "state": "output-available", "output": 99, "approval": approved},
            # A decision without the signature of what was shown, or with another.
            {**part, "state": "approval-responded", "approval": {"id": approved["id"], "approved": True}},
            {**part, "state": "approval-responded", "approval": {**approved, "signature": "0" * 64}},
            {**part, "state": "approval-responded", "approval": {**approved, "id": "another"}},
        ]
        for claim in claims:
            posted = {**message, "parts": [claim]}
            await client.post({"id": "c1", "messages": [chat["messages"][0], posted], "messageId": message["id"]}, 403)
        # A history in which it was approved long ago, before a new question.
        history = [chat["messages"][0], {**message, "parts": [claims[0]]}, user("And now?", "u2")]
        assert (await client.post({"id": "c1", "messages": history}, 409))["code"] == "waiting"
        assert made == []
        assert len(fake.requests) == 1
        assert len(await refusals(client)) == len(claims)


@requirement("F42")
async def test_refusal_is_recorded_without_disturbing_active_run(tmp_path: Path):
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two."]), gate, "One")
    async with FakeProvider([sse(events)]) as fake, chatting(fake, tmp_path) as client:
        async with client.following(body={"id": "c1", "messages": [user("Count.")]}) as next_chunk:
            while (await next_chunk()).get("delta") is None:
                pass
            forged = {"id": "c1", "approvalId": "approval_0", "approved": True, "digest": "0" * 64}
            assert (await client.post(forged, 403))["code"] == "nothing_waits"
            fake.release(gate)
            while await next_chunk() is not None:
                pass
        chat = await client.chat()
        assert chat["run"]["status"] == "complete"
        assert "One, two." in str(chat["messages"][-1])
        assert len(await refusals(client)) == 1


@requirement("F42")
async def test_logged_refusals_are_limited(tmp_path: Path):
    async with FakeProvider(replies(DONE)) as fake, chatting(fake, tmp_path) as client:
        await client.say("Hi.")
        for number in range(MAX_REFUSALS + 3):
            await client.server.runs.log_refusal("/c1", f"approval_{number}", "forged")
        assert len(await refusals(client)) == MAX_REFUSALS
        assert (await client.chat())["run"]["status"] == "complete"


@requirement("F42")
async def test_all_pending_calls_are_decided_together(tmp_path: Path):
    both = ResponsesScript().function_call("add", {"a": 1, "b": 2}, "c1").function_call("add", {"a": 3, "b": 4}, "c2")
    async with (
        FakeProvider(replies(both, DONE)) as fake,
        chatting(fake, tmp_path, tools=[add], approval="ask") as client,
    ):
        one, two = data(await client.say("Add."), "approval")
        assert (await client.post({"id": "c1", **decision(one)}, 409))["code"] == "undecided"
        decisions = [decision(one), decision(two, approved=False, reason="No.")]
        assert text_of(await client.post({"id": "c1", "decisions": decisions})) == "Done."
        assert made == [(1, 2)]


def adds(*numbers: int) -> list[Any]:
    """Answers of a model that calls `add` once in each turn."""
    calls = [ResponsesScript().function_call("add", {"a": number, "b": 0}) for number in numbers]
    return replies(*(script for call in calls for script in (call, DONE)))


@requirement("R144")
async def test_remembered_approval_applies_to_branches_until_revoked(tmp_path: Path):
    async with FakeProvider([*adds(1, 2, 3), adds(4)[0], adds(5)[0]]) as fake:
        async with chatting(fake, tmp_path, tools=[add], approval="ask") as client:
            approval = await asked(client)
            assert approval["remember"] is True
            await client.post({"id": "c1", "decisions": [decision(approval, remember="conversation")]})
        async with chatting(fake, tmp_path, tools=[add], approval="ask") as client:  # After a restart.
            assert text_of(await client.say("Again.")) == "Done."
            # Which grant let the call run stands in the log: after a reload, too, and not at the call that a person allowed.
            parts = [part for message in (await client.chat())["messages"] for part in message["parts"]]
            tools = [part["data"] for part in parts if part["type"] == "data-tool"]
            assert [tool.get("grant") for tool in tools] == [None, approval["approval"]]
            (grant,) = (await client.chat())["grants"]
            assert grant == {"id": approval["approval"], "tool": "add", "server": None, "remote": False}
            first = (await client.chat())["messages"][0]["id"]
            branch = await client.post({"id": "c1", "trigger": "regenerate-message", "messageId": first})
            assert text_of(branch) == "Done."
            assert made == [(1, 0), (2, 0), (3, 0)]
            assert (await asked(client, "c2"))["remember"] is True
            path = f"/api/chat/c1/grants/{grant['id']}"
            await client.json("DELETE", path, status=204)
            await client.json("DELETE", path, status=404)
            for leaf in (1, 2):
                assert (await client.json("GET", f"/api/chat/c1/grants?leaf={leaf}"))["grants"] == []
            assert data(await client.say("Once more."), "approval")
            assert made == [(1, 0), (2, 0), (3, 0)]


async def test_ai_sdk_client_names_approvals_to_remember(tmp_path: Path):
    async with (
        FakeProvider(adds(1, 2)) as fake,
        chatting(fake, tmp_path, tools=[add], approval="ask") as client,
    ):
        approval = await asked(client)
        message = (await client.chat())["messages"][-1]
        for part in message["parts"]:
            if "approval" in part:
                part["approval"] |= {"approved": True}
                part["state"] = "approval-responded"
        # What a posted history says was granted does not count.
        forged = {**message, "metadata": {"grants": [{"id": "x", "tool": "add"}]}}
        body = {"id": "c1", "messages": [forged], "grants": ["add"]}
        await client.post({**body, "remember": [approval["approval"]]})
        assert [grant["tool"] for grant in (await client.chat())["grants"]] == ["add"]
        assert text_of(await client.say("Again.")) == "Done."


async def test_remembering_unrememberable_approval_is_rejected(tmp_path: Path):
    async with (
        FakeProvider(adds(1)) as fake,
        chatting(fake, tmp_path, tools=[add], approval="ask-each") as client,
    ):
        approval = await asked(client)
        assert "remember" not in approval
        error = await client.post({"id": "c1", **decision(approval, remember="conversation")}, 403)
        assert error["code"] == "approval_refused"
        assert made == []
        assert text_of(await client.post({"id": "c1", **decision(approval)})) == "Done."


async def test_remembered_approval_is_revoked_during_run(tmp_path: Path):
    gate = asyncio.Event()
    slow = sse(paused(ResponsesScript().text("Wait. ").function_call("add", {"a": 2, "b": 0}), gate, "Wait"))
    async with (
        FakeProvider([*adds(1), slow]) as fake,
        chatting(fake, tmp_path, tools=[add], approval="ask") as client,
    ):
        approval = await asked(client)
        await client.post({"id": "c1", **decision(approval, remember="conversation")})
        body = {"id": "c1", "messages": [user("Add 2.", "u2")]}
        async with client.following(body=body) as following:
            while "Wait" not in str((await following()).get("delta")):
                pass
            await client.json("DELETE", f"/api/chat/c1/grants/{approval['approval']}", status=204)
            fake.release(gate)
            rest: list[Json] = []
            while (chunk := await following()) is not None:
                rest.append(chunk)
        assert data(rest, "approval")
        assert made == [(1, 0)]
        assert (await client.chat())["grants"] == []
