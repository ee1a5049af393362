"""Servers that ask users: the run waits with a form, and the call continues with the answers."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream import Agent, ApprovalError, Chat, RunState, open_store
from sidestream.mcp import Elicitation
from sidestream.parts import ToolApprovalRequest, ToolResult
from sidestream.testing import FakeProvider
from support.mcp_servers.asking import by_field, calling, patient
from support.mcp_servers.peers import call
from support.places import TESTS

CALL = ("book", {"flight": "SD 1"})


def said(fake: FakeProvider) -> Any:
    return json.loads(fake.requests[-1].json["input"][-1]["output"])


@requirement("R80")
async def test_question_becomes_approval_form_and_answers_resume_call(tmp_path: Path):
    async with FakeProvider(calling(*CALL)) as fake:
        async with Agent("openai-responses", base_url=fake.base_url, tools=[patient(tmp_path)]) as agent:
            result = await agent.send("Book")
        assert (result.finish_reason, len(fake.requests)) == ("approval", 1)
        seat, pay = by_field(result.approvals)
        assert (seat.tool, seat.server_label, seat.input) == ("book", "patient", {"flight": "SD 1"})
        assert seat.form is not None
        assert seat.form["message"] == "Which seat?"
        assert seat.form["schema"]["properties"]["row"]["type"] == "integer"
        assert pay.form == {"message": "Please pay", "url": "https://pay.test/1"}
        # As JSON, and with another connection to the server.
        assert result.run_state is not None
        state = RunState.from_json(result.run_state.to_json())
        async with Agent("openai-responses", base_url=fake.base_url, tools=[patient(tmp_path)]) as agent:
            done = await agent.resume(state, [seat.approve({"row": 7}), pay.approve()])
    assert done.output == "Done."
    assert said(fake) == {"flight": "SD 1", "seat": {"row": 7, "side": "aisle"}, "is_paid": True}
    assert (tmp_path / "calls").read_text() == "SD 1\n"


@requirement("R80")
async def test_declined_question_is_reported_to_server(tmp_path: Path):
    async with (
        FakeProvider(calling(*CALL)) as fake,
        Agent("openai-responses", base_url=fake.base_url, tools=[patient(tmp_path)]) as agent,
    ):
        result = await agent.send("Book")
        seat, pay = by_field(result.approvals)
        await agent.resume(result.run_state, [seat.deny(), pay.deny("too dear")])
    assert said(fake) == {"flight": "SD 1", "seat": None, "is_paid": False}


@requirement("R80")
async def test_invalid_answers_are_rejected_and_question_stays_open(tmp_path: Path):
    invalid = [None, {}, {"row": "seven"}, {"row": 7, "side": "wing"}, {"row": 7, "meal": "fish"}, {"row": {"a": 1}}]
    async with (
        FakeProvider(calling(*CALL)) as fake,
        Agent("openai-responses", base_url=fake.base_url, tools=[patient(tmp_path)]) as agent,
    ):
        result = await agent.send("Book")
        seat, pay = by_field(result.approvals)
        rejected: list[Any] = []
        for answers in invalid:
            with suppress(ApprovalError):
                await agent.resume(result.run_state, [seat.approve(answers), pay.approve()])
                break
            rejected.append(answers)
        assert rejected == invalid
        with pytest.raises(ApprovalError):
            await agent.resume(result.run_state, [seat.approve({"row": 7}), pay.approve({"row": 7})])
        assert (await agent.resume(result.run_state, [seat.approve({"row": 7}), pay.approve()])).output == "Done."


@requirement("R80")
async def test_answers_for_one_form_are_invalid_for_another(tmp_path: Path):
    async with (
        FakeProvider(calling(*CALL)) as fake,
        Agent("openai-responses", base_url=fake.base_url, tools=[patient(tmp_path)]) as agent,
    ):
        result = await agent.send("Book")
        seat, pay = by_field(result.approvals)
        with pytest.raises(ApprovalError):
            await agent.resume(
                result.run_state, [replace(pay.approve(), approval_id=seat.approval_id), seat.approve({"row": 7})]
            )


@requirement("R80")
async def test_stream_has_form_and_result_after_answers(tmp_path: Path):
    async with (
        FakeProvider(calling(*CALL)) as fake,
        Agent("openai-responses", base_url=fake.base_url, tools=[patient(tmp_path)]) as agent,
    ):
        async with agent.stream("Book") as run:
            parts = [part async for part in run]
        requests = [part for part in parts if isinstance(part, ToolApprovalRequest)]
        forms = [(part.provider_metadata or {})["sidestream"]["form"]["message"] for part in requests]
        assert sorted(forms) == ["Please pay", "Which seat?"]
        assert {part.id for part in requests} == {"call_1"}
        assert not any(isinstance(part, ToolResult) for part in parts)
        seat, pay = by_field(run.state.approvals)
        async with agent.resume(run.state, [seat.approve({"row": 1}), pay.approve()]) as run:
            parts = [part async for part in run]
        assert [part.id for part in parts if isinstance(part, ToolResult)] == ["call_1"]


RESUMING = """
import asyncio, json, sys
from contextlib import suppress
from pathlib import Path
from support.mcp_servers.asking import by_field, patient
from sidestream import Agent, Chat, open_store

async def main(folder, base_url):
    store = open_store(Path(folder) / "talks.db")
    async with Agent("openai-responses", base_url=base_url, tools=[patient(Path(folder))]) as agent:
        chat = Chat(agent, store=store, id="talk")
        await chat.load()
        seat, pay = by_field(chat.approvals)
        result = await chat.resume([seat.approve({"row": 3, "side": "window"}), pay.deny()])
        print(result.output)
    await store.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


@requirement("R80", "R84")
async def test_question_is_answered_from_log_by_another_process(tmp_path: Path):
    store = open_store(tmp_path / "talks.db")
    async with FakeProvider(calling(*CALL)) as fake:
        async with Agent("openai-responses", base_url=fake.base_url, tools=[patient(tmp_path)]) as agent:
            result = await Chat(agent, store=store, id="talk").send("Book")
            assert result.finish_reason == "approval"
        await store.aclose()
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", RESUMING, str(tmp_path), fake.base_url],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        assert done.stdout == "Done.\n", done.stderr
        assert said(fake) == {"flight": "SD 1", "seat": {"row": 3, "side": "window"}, "is_paid": False}


@requirement("R80")
async def test_answering_hook_replaces_approval(tmp_path: Path):
    asked: list[Elicitation] = []

    def answer(question: Elicitation) -> dict[str, Any] | bool:
        asked.append(question)
        return True if question.url else {"row": 2}

    async with patient(tmp_path, on_elicitation=answer) as server:
        outcome = await call(server, "book", {"flight": "SD 2"})
    assert outcome.result == {"flight": "SD 2", "seat": {"row": 2, "side": "aisle"}, "is_paid": True}
    assert {question.message for question in asked} == {"Which seat?", "Please pay"}


@requirement("R80")
async def test_endlessly_asking_server_is_rejected(tmp_path: Path):
    async with patient(tmp_path, on_elicitation=lambda question: True) as server:
        outcome = await call(server, "insist")
    assert outcome.is_error
    assert "more input" in str(outcome.result)
    rounds = 0
    async with (
        FakeProvider(calling("insist", {})) as fake,
        Agent("openai-responses", base_url=fake.base_url, tools=[patient(tmp_path)]) as agent,
    ):
        result = await agent.send("Ask")
        while result.finish_reason == "approval":
            rounds += 1
            result = await agent.resume(result.run_state, [entry.approve() for entry in result.approvals])
        assert "more input" in str(said(fake))
    assert rounds == 10
