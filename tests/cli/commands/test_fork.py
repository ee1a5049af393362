"""`sidestream runs fork`, and the example of `make demo-fork`."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from cli.command import Run
from requirements import requirement
from sidestream import Agent, Chat
from sidestream.store import Store, open_store
from sidestream.testing import ChatScript, FakeProvider, MessagesScript, ResponsesScript
from support.places import ROOT

LOOK = '''
def look(item: str) -> str:
    """Look up a price."""
    raise SystemExit("it must not run again")
'''


def look(item: str) -> str:
    """Look up a price."""
    return "1000 euros"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    opened = open_store(tmp_path / "runs.db")
    yield opened
    await opened.aclose()


async def in_thread(sidestream: Run, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(sidestream, *args, "--store", "runs.db", **options)


@requirement("R221")
async def test_run_is_forked_corrected_and_shown(sidestream: Run, store: Store, tmp_path: Path):
    (tmp_path / "look.py").write_text(LOOK)
    replies = [
        ResponsesScript(id="r1").function_call("look", {"item": "lamp"}, "call_1").reply(),
        ResponsesScript(id="r2").text("1000 euros.").reply(),
        ResponsesScript(id="r3").text("10 euros.").reply(),
    ]
    async with FakeProvider(replies) as fake:
        agent = Agent("openai-responses:gpt-5", base_url=fake.base_url, tools=[look])
        await Chat(agent, store=store, id="talk").send("What does a lamp cost?")
        rows = await store.read("talk")
        at = next(row.seq for row in rows if row.kind == "tool-result")
        fork = ("runs", "fork", rows[0].run, "--functions", "look.py")
        base = {"base_url": fake.base_url}

        done = await in_thread(sidestream, *fork, "--at", str(at), "--result", 'call_1="10 euros"', **base)
        assert (done.returncode, done.stdout) == (0, "10 euros.\n"), done.stderr
        assert "forked from talk at record" in done.stderr
        assert len(fake.requests) == 3
        assert fake.requests[-1].json["input"][0]["output"] == "10 euros"

        done = await in_thread(sidestream, *fork, "--at", "3", "--replay", **base)
        assert done.returncode == 0, done.stderr
        assert "2 requests replayed" in done.stderr
        done = await in_thread(sidestream, *fork, "--at", "3", "--strict", "--system", "Be brief.", **base)
        assert done.returncode != 0
        assert "instructions: nothing → 'Be brief.'" in done.stderr
        assert len(fake.requests) == 3
    assert await store.read("talk") == rows

    listed = await in_thread(sidestream, "logs", "list", "--json")
    forks = [entry for entry in map(json.loads, listed.stdout.splitlines()) if "forked_from" in entry]
    assert [entry["forked_from"]["conversation"] for entry in forks] == ["talk", "talk"]
    assert forks[-1]["forked_from"]["changes"] == {"result": {"call_1": "10 euros"}}
    costs = await in_thread(sidestream, "logs", "cost", "--json")
    assert json.loads(costs.stdout)["total"]["calls"] == 3
    shown = await in_thread(sidestream, "runs", "show", forks[-1]["id"])
    assert re.search(rf"^origin: +forked from talk at record {at}: result", shown.stdout, re.MULTILINE)
    steps = [
        json.loads((await in_thread(sidestream, "runs", "show", id, "--cache", "--json")).stdout)["steps"]
        for id in ("talk", *(fork["id"] for fork in forks))
    ]
    assert [len(each) for each in steps] == [2, 0, 1]
    shown = await in_thread(sidestream, "logs", "show", forks[-1]["id"])
    assert f"forked from talk at record {at}" in shown.stdout


@requirement("R221")
async def test_fork_keeps_model_and_prompt_of_its_turn(sidestream: Run, store: Store):
    """The second turn has another model, and the fork of the first one may choose a third."""
    replies: list[Any] = [
        ResponsesScript(id="r1").text("Oslo.").reply(),
        MessagesScript().text("Rome.").reply(),
        ResponsesScript(id="r2").text("Paris.").reply(),
        ChatScript().text("Lima.").reply(),
    ]
    async with FakeProvider(replies) as fake:
        first = Agent("openai-responses:gpt-5", base_url=fake.base_url, system="Name a city.")
        second = Agent("anthropic:claude-sonnet-5", base_url=fake.base_url, system="Be brief.")
        for agent in (first, second):
            await Chat(agent, store=store, id="talk").send("A city?")
        run = (await store.read("talk"))[0].run or (await store.read("talk"))[1].run
        base = ("--base-url", fake.base_url)
        done = await in_thread(sidestream, "runs", "fork", run, "--at", "3", *base)
        assert (done.returncode, done.stdout) == (0, "Paris.\n"), done.stderr
        done = await in_thread(sidestream, "runs", "fork", run, "--at", "2", "--strict", *base)
        assert "1 request replayed" in done.stderr
        other = ("-m", "openai-chat:gpt-5", "--key", "key-of-chat-0123456789")
        done = await in_thread(sidestream, "runs", "fork", run, "--at", "2", *other, *base)
        assert (done.returncode, done.stdout) == (0, "Lima.\n"), done.stderr
        original, _, fork, chat = fake.requests
    assert fork.json == original.json
    assert chat.json["messages"][0] == {"role": "system", "content": "Name a city."}
    assert chat.headers["authorization"] == "Bearer key-of-chat-0123456789"


@requirement("R221")
@pytest.mark.parametrize(
    ("args", "message"),
    [(("--at", "3", "--result", "call_1"), "CALL=JSON"), (("--at", "0"), "'--at'"), ((), "'--at'")],
)
def test_invalid_fork_argument_is_named(sidestream: Run, args: tuple[str, ...], message: str):
    done = sidestream("runs", "fork", "talk", *args, "--store", "runs.db")
    assert done.returncode == 2
    assert message in done.stderr


@requirement("R221")
def test_example_forks_run_at_wrong_result():
    command = [sys.executable, str(ROOT / "examples" / "fork.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    *_, last = done.stdout.splitlines() or [""]
    assert last == "fork: 6 parts from the log, 1 requests, 2 equal", done.stderr
