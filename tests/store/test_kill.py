"""Processes that are killed in the middle of a run, and what the next one finds."""

import sys
from collections import Counter
from pathlib import Path
from subprocess import PIPE

import pytest

from requirements import requirement
from sidestream import Agent, Chat
from sidestream.messages.message import ToolResultPart
from sidestream.parts import Custom, ToolResult
from sidestream.store import Conversation, open_store
from sidestream.store.log.segments import INCREMENTS
from sidestream.store.records import Segment
from sidestream.testing import FakeProvider
from sidestream.tools.interruption import INTERRUPTED
from sidestream.turn.ledger import HELD, UNCERTAIN
from store.killed import ANSWER, ASK, POLICIES, external, functions, policies, policy_tools
from support.warm import run

CALLS = ["a", "b", "c"]
pytestmark = pytest.mark.timeout(320)


@requirement("R84", "F32")
async def test_run_killed_at_any_point_resumes_without_repeating_tools(tmp_path: Path) -> None:
    last = killed_runs(tmp_path, "functions")
    assert last > 30
    whole = await log_kinds(tmp_path / f"{last}.db")
    assert whole[-1] == "finish"
    for number in range(last):
        await goes_on(tmp_path, number, whole)


@requirement("R84", "F32")
async def test_external_result_is_taken_once_when_run_is_killed(tmp_path: Path) -> None:
    last = killed_runs(tmp_path, "external")
    whole = await log_kinds(tmp_path / f"{last}.db")
    assert whole[-1] == "finish"
    decided = 0
    for number in range(last):
        kinds = await log_kinds(tmp_path / f"{number}.db")
        if "run-started" in kinds:
            decided += "approval-decided" in kinds
            await takes_the_answer(tmp_path, number, kinds)
    assert decided > 3


@requirement("R84", "R161", "F32")
async def test_interrupted_calls_follow_tool_policy_when_run_is_killed(tmp_path: Path) -> None:
    last = killed_runs(tmp_path, "policies")
    seen: set[tuple[str, int]] = set()
    for number in range(last + 1):
        kinds = await log_kinds(tmp_path / f"{number}.db")
        if "run-started" in kinds:
            seen |= await follows_the_policies(tmp_path, number, kinds)
    # Each was interrupted in some run before its effect, and in some run after it.
    assert seen >= {(name, count) for name in POLICIES for count in (0, 1)}


async def follows_the_policies(folder: Path, number: int, kinds: list[str]) -> set[tuple[str, int]]:
    """Continues a killed run of the script `policies`; returns what was interrupted, with the effects it had had."""
    path = folder / f"{number}.effects"
    before = Counter(line.split("_")[0] for line in effects(folder, number).splitlines())
    store = open_store(folder / f"{number}.db")
    async with FakeProvider(policies()[kinds.count("step-finish") :]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=policy_tools(path))
        chat = Chat(agent, store=store, id="talk")
        await chat.load()
        # As a worker does it: without decisions, until it waits.
        while chat.status != "complete":
            await chat.resume([entry.deny("it ran") for entry in chat.approvals] if chat.status == "waiting" else ())
        records = await Conversation(store, "talk").records()
    await store.aclose()
    parts = [part for record in records if isinstance(record.body, Segment) for part in record.body.parts]
    told = {p.data["name"]: p.data["policy"] for p in parts if isinstance(p, Custom) and p.kind == INTERRUPTED}
    assert told == {name: name.removesuffix("_tool") for name in told}
    results = {part.name: part for part in parts if isinstance(part, ToolResult)}
    runs: dict[str, list[list[str]]] = {f"{name}_tool": [] for name in POLICIES}
    for line in effects(folder, number).splitlines():
        runs[line.split()[0]].append(line.split()[1:])
    for name, made in runs.items():
        assert len({key for key, _ in made}) <= 1, (number, name, made)
        # What was done twice was declared so, and the log says it.
        assert len(made) <= (2 if told.get(name) == "retry" else 1), (number, name, made)
        if told.get(name) == "retry":
            assert (made[-1][1], results[name].is_error) == ("2", False)
        elif name in told:
            error = results[name].result["error"]
            assert error == ("Interrupted" if told[name] == "fail" else "Denied")
    return {(name.removesuffix("_tool"), before[name.removesuffix("_tool")]) for name in told}


def killed_runs(folder: Path, script: str) -> int:
    """Runs the program; returns the number of the last run."""
    program = [sys.executable, str(Path(__file__).with_name("killed.py")), str(folder), script]
    done = run(program, stdout=PIPE, stderr=PIPE, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return int(done.stdout)


async def takes_the_answer(folder: Path, number: int, kinds: list[str]) -> None:
    """Continues a killed run of the script `external`."""
    before = effects(folder, number)
    made: list[str] = []

    def note(text: str) -> str:
        """Notes a text."""
        made.append(text)
        return f"noted {text}"

    store = open_store(folder / f"{number}.db")
    async with FakeProvider(external()[kinds.count("step-finish") :]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url, tools=[note, ASK]), store=store, id="talk")
        await chat.load()
        asked = 0
        while chat.status != "complete":
            waiting = chat.run_state.approvals if chat.run_state else ()
            asked += sum(entry.is_external for entry in waiting)
            await chat.resume([e.answer(ANSWER) if e.is_external else e.deny("it ran") for e in waiting])
    await store.aclose()
    # What was answered is not asked for again; what was not is asked for once.
    assert asked == ("approval-decided" not in kinds), (number, kinds)
    assert not set(before) & set(made), (number, before, made)
    assert [message.role for message in chat.messages] == ["user", "model", "tool", "model"]
    results = {part.name: part.result for part in chat.messages[2].parts if isinstance(part, ToolResultPart)}
    assert results["ask"] == ANSWER


async def log_kinds(path: Path) -> list[str]:
    store = open_store(path)
    rows = await store.read("talk")
    await store.aclose()
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    # How many increments there are depends on the time that a block takes.
    return [row.kind for row in rows if row.kind not in INCREMENTS]


async def goes_on(folder: Path, number: int, whole: list[str]) -> None:
    kinds = await log_kinds(folder / f"{number}.db")
    assert is_beginning(kinds, whole), (number, kinds)
    if "run-started" not in kinds:
        return
    before = effects(folder, number)
    made: list[str] = []

    def note(text: str) -> str:
        """Notes a text."""
        made.append(text)
        return f"noted {text}"

    store = open_store(folder / f"{number}.db")
    async with FakeProvider(functions()[kinds.count("step-finish") :]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url, tools=[note]), store=store, id="talk")
        await chat.load()
        if chat.status != "complete":
            approvals = chat.run_state.approvals if chat.run_state else ()
            asked = {str(entry.input["text"]) for entry in approvals if entry.provenance == UNCERTAIN}
            assert all(entry.provenance in (UNCERTAIN, HELD) for entry in approvals)
            # Denied: what may have run is left alone. What was held back beside it runs.
            decisions = [e.deny("it ran") if e.provenance == UNCERTAIN else e.approve() for e in approvals]
            result = await chat.resume(decisions)
            assert result.output.endswith("Noted.")
            # Whatever ran before was recorded or is asked about; nothing ran twice.
            assert set(before) <= asked | (set(CALLS) - set(made))
    assert not set(before) & set(made), (number, before, made)
    assert [message.role for message in chat.messages] == ["user", "model", "tool", "model", "tool", "model"]
    await store.aclose()


def is_beginning(kinds: list[str], whole: list[str]) -> bool:
    """The two calls of the first round run side by side, so their records may change places."""
    return len(kinds) <= len(whole) and sorted(kinds) == sorted(whole[: len(kinds)])


def effects(folder: Path, number: int) -> str:
    path = folder / f"{number}.effects"
    return path.read_text() if path.exists() else ""
