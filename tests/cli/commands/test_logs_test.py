"""`sidestream logs test`: a production run becomes a test, as its user does it."""

import asyncio
import json
import os
import subprocess
import sys
from base64 import b64encode
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.command import Run
from requirements import requirement
from sidestream import Agent, Chat, DataPart, WebSearch
from sidestream.cli.commands.logs_test import write_test
from sidestream.errors import ConfigurationError
from sidestream.mcp import MCPServer
from sidestream.parts import ToolCall
from sidestream.store import open_store
from sidestream.testing import (
    Cassette,
    FakeProvider,
    GeminiScript,
    MessagesScript,
    ReplayMismatch,
    ResponsesScript,
    replay_run,
)

STORE = {"SIDESTREAM_STORE": "talks.db"}
KEY = "sk-lamps-d41d8cd98f00b204"

SHOP = '''
from sidestream import Agent


def stock(item: str) -> str:
    """Search the stock."""
    print("looked up", item)
    return "3 left, ask ann@corp.example.com"


agent = Agent("openai-responses:gpt-5", tools=[stock], system="You sell lamps. Escalate to bob@corp.example.com.")
'''
QUESTION = f"How many lamps? I am eve@home.example.org, my key is {KEY}"
SERVER = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("clock")


@server.tool()
def now(zone: str) -> str:
    """Tells the time."""
    return f"noon in {zone}"


server.run()
'''


def calling(**more: Any) -> list[Any]:
    return [
        ResponsesScript(model="gpt-5").function_call("stock", {"item": "lamp"}).reply(),
        ResponsesScript(model="gpt-5").text(["There are ", "3 lamps."]).reply(),
    ]


async def log(agent: Agent[Any], where: Path, prompt: Any, *, denies: bool = False) -> str:
    """Log a turn and return the id of its run."""
    async with aclosing(open_store(where)) as store:
        chat = Chat(agent, store=store, id="talk")
        result = await chat.send(prompt)
        if denies:
            await chat.resume([entry.deny("Not today.") for entry in result.approvals])
        return (await store.read("talk"))[1].run


async def shop_run(folder: Path) -> str:
    """Write the user's program and log a run of it."""
    (folder / "shop.py").write_text(SHOP)
    names: dict[str, Any] = {"__name__": "shop"}
    exec(SHOP, names)
    async with FakeProvider(calling()) as fake:
        system = names["agent"].system
        agent = Agent(
            "openai-responses:gpt-5", tools=[names["stock"]], system=system, base_url=fake.base_url, api_key="k"
        )
        return await log(agent, folder / "talks.db", QUESTION)


def pytest_in(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "tests", *args],
        cwd=folder,
        env={"PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "PATH": "", "HOME": str(folder)},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )


@requirement("R222")
def test_logged_run_becomes_test_that_names_change(sidestream: Run, tmp_path: Path) -> None:
    run = asyncio.run(shop_run(tmp_path))
    written = sidestream("logs", "test", run, "--agent", "shop:agent", env=STORE)
    assert (written.returncode, written.stderr) == (0, "")
    (file,) = (tmp_path / "tests").glob("test_*.py")
    source = file.read_text()
    assert 'assert run.calls == [("stock", {"item": "lamp"})]' in source
    assert 'assert run.text == "There are 3 lamps."' in source

    passed = pytest_in(tmp_path)
    assert passed.returncode == 0, passed.stdout
    assert "looked up" not in passed.stdout

    (tmp_path / "shop.py").write_text(SHOP.replace("Search the stock", "Find the stock"))
    failed = pytest_in(tmp_path)
    assert failed.returncode == 1
    assert "tools[0].description: 'Search the stock.' → 'Find the stock.'" in failed.stdout

    assert pytest_in(tmp_path, "--sidestream-update").returncode == 0
    assert pytest_in(tmp_path).returncode == 0


def test_secrets_and_addresses_are_replaced_and_reported(sidestream: Run, tmp_path: Path) -> None:
    run = asyncio.run(shop_run(tmp_path))
    written = sidestream("logs", "test", run, "--agent", "shop:agent", env=STORE)
    assert written.returncode == 0, written.stderr
    texts = [written.stdout, *(file.read_text() for file in (tmp_path / "tests").rglob("*.*"))]
    for secret in (KEY, "ann@corp", "bob@corp", "eve@home"):
        assert not any(secret in text for text in texts)
    assert "replaced: secret → [redacted] in prompt.parts[0].text" in written.stdout
    assert "steps[0].request.instructions" in written.stdout
    assert written.stdout.count("replaced: e-mail address") == 3
    (cassette,) = (tmp_path / "tests" / "cassettes").glob("*.json")
    assert {value.kind for value in Cassette.load(cassette).redacted} == {"secret", "e-mail address"}
    # The agent's own prompt still has the address.
    assert pytest_in(tmp_path).returncode == 0


HIDDEN = ("ann@corp", "bob@corp", "ann%40corp", "hunter2", "tok-4711", "Y29udGFjdCBhbm5A")


def lookup(customer: str, options: dict[str, Any]) -> dict[str, Any]:
    """Look up a customer."""
    note = b64encode(b"contact ann@corp.example.org, password=hunter2secret").decode()
    inner = json.dumps({"password": "hunter2secret", "mail": "bob@corp.example.org"})
    link = "https://x.example/u?mail=mailto%3Aann%40corp.example.org&token=tok-4711"
    return {"ann@corp.example.org": {"note": note, "json": inner, "url": link, "token": "tok-4711"}}


@requirement("R222")
@pytest.mark.parametrize("model", ["openai-responses:gpt-5", "anthropic:claude-sonnet-5", "google:gemini-3-pro"])
async def test_secrets_in_nested_json_base64_and_urls_are_replaced(tmp_path: Path, model: str) -> None:
    given = {"customer": "ann@corp.example.org", "options": {"mailto:ann@corp.example.org": 1, "password": "hunter2s"}}
    said = ["See mailto:ann%40corp.example.org."]
    script: list[Any] = {
        "openai-responses:gpt-5": [ResponsesScript().function_call("lookup", given), ResponsesScript().text(said)],
        "anthropic:claude-sonnet-5": [MessagesScript().tool_use("lookup", given), MessagesScript().text(said)],
        "google:gemini-3-pro": [GeminiScript().function_call("lookup", given), GeminiScript().text(said)],
    }[model]
    file = DataPart(b"Write to ann@corp.example.org, or to bob@corp.example.org", "text/plain", "a.txt")
    base = {"base_path": ""} if "google" in model else {}
    async with FakeProvider([each.reply() for each in script], **base) as fake:
        agent = Agent(model, tools=[lookup], base_url=fake.base_url, api_key="k")
        run = await log(agent, tmp_path / "talks.db", ["Who wrote this?", file])
    path = await cassette_in(tmp_path, run)
    text = path.read_text()
    assert [secret for secret in HIDDEN if secret in text] == []
    assert b64encode(b"Write to person1@redacted.example, or to person2@redacted.example").decode() in text
    agent = Agent(model, tools=[lookup], api_key="k")
    for tools in ("recorded", "live"):
        replayed = await asyncio.to_thread(replay_run, path, agent, tools=tools)
        assert replayed.text == "See mailto:person1%40redacted.example."
        assert replayed.calls[0][1]["options"] == {"mailto:person1@redacted.example": 1, "password": "[redacted]"}


@requirement("R222")
async def test_message_sent_during_run_is_sent_again(tmp_path: Path) -> None:
    async with FakeProvider(calling()) as fake, aclosing(open_store(tmp_path / "talks.db")) as store:
        chat = Chat(shop([], base_url=fake.base_url), store=store, id="talk")
        await chat.load()
        async with chat.stream("How many lamps?") as run:
            async for part in run:
                if isinstance(part, ToolCall):
                    await run.steer("Only green ones.")
    path = await cassette_in(tmp_path, None)
    assert [steer.request for steer in Cassette.load(path).steers] == [1]
    assert (await asyncio.to_thread(replay_run, path, shop([]))).steps == 2


@dataclass
class Place:
    city: str


@requirement("R222")
async def test_answer_by_result_tool_is_replayed(tmp_path: Path) -> None:
    script = MessagesScript().tool_use("return_result", {"city": "Oslo"})
    model = "anthropic:claude-3-5-haiku-latest"
    async with FakeProvider([script.reply()]) as fake:
        agent = Agent(model, output_type=Place, base_url=fake.base_url, api_key="k")
        run = await log(agent, tmp_path / "talks.db", "Where?")
        assert fake.requests[0].json["tools"][0]["name"] == "return_result"
    path = await cassette_in(tmp_path, run)
    replayed = await asyncio.to_thread(replay_run, path, Agent(model, output_type=Place, api_key="k"))
    assert replayed.output == Place("Oslo")


def test_prompt_without_latin_letters_names_test(tmp_path: Path) -> None:
    cassette = asyncio.run(rebuilt_cassette(tmp_path, "你好"))
    assert write_test(cassette, tmp_path / "tests", None).file.name == "test_run.py"


async def rebuilt_cassette(folder: Path, prompt: str) -> Cassette:
    async with FakeProvider([ResponsesScript().text("你好。").reply()]) as fake:
        run = await log(Agent("openai-responses:m", base_url=fake.base_url), folder / "talks.db", prompt)
    return Cassette.load(await cassette_in(folder, run))


def test_agent_is_rebuilt_from_log_without_its_program(sidestream: Run, tmp_path: Path) -> None:
    run = asyncio.run(shop_run(tmp_path))
    assert sidestream("logs", "test", run, env=STORE).returncode == 0
    (cassette,) = (tmp_path / "tests" / "cassettes").glob("*.json")
    replayed = replay_run(cassette)
    assert (replayed.text, replayed.steps, replayed.finish_reason) == ("There are 3 lamps.", 2, "stop")


def test_existing_test_is_kept_without_update(sidestream: Run, tmp_path: Path) -> None:
    run = asyncio.run(shop_run(tmp_path))
    assert sidestream("logs", "test", run, env=STORE).returncode == 0
    again = sidestream("logs", "test", run, env=STORE)
    assert again.returncode == 2
    assert "--update" in again.stderr
    assert sidestream("logs", "test", run, "--update", env=STORE).returncode == 0


def test_other_runs_have_tests_when_one_has_none(sidestream: Run, tmp_path: Path) -> None:
    run = asyncio.run(shop_run(tmp_path))
    written = sidestream("logs", "test", "run_missing", run, "talk", env=STORE)
    assert written.returncode == 1
    assert "error: run_missing: " in written.stderr
    assert len([*(tmp_path / "tests").glob("test_*.py")]) == 1  # The other two name the same run.


def test_changed_agent_is_reported_when_test_is_written(sidestream: Run, tmp_path: Path) -> None:
    run = asyncio.run(shop_run(tmp_path))
    (tmp_path / "shop.py").write_text(SHOP.replace("You sell lamps", "You sell chairs"))
    written = sidestream("logs", "test", run, "--agent", "shop:agent", env=STORE)
    assert written.returncode == 1
    assert "instructions: " in written.stderr
    assert "chairs" in written.stderr
    accepted = sidestream("logs", "test", run, "--agent", "shop:agent", "--update", env=STORE)
    assert accepted.returncode == 0, accepted.stderr


def test_unknown_dial_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    done = pytest_in(tmp_path, "--sidestream-live", "everything")
    assert done.returncode == 4
    assert "'everything'" in done.stderr


# In code


async def cassette_in(folder: Path, run: str | None) -> Path:
    from sidestream.replay.cassette import cassette_of, redacted

    async with aclosing(open_store(folder / "talks.db")) as store:
        redacted(await cassette_of(store, "talk", run)).save(folder / "run.json")
    return folder / "run.json"


def shop(seen: list[str], **settings: Any) -> Agent[Any]:
    def stock(item: str) -> str:
        """Search the stock."""
        seen.append(item)
        return "3 left"

    return Agent("openai-responses:gpt-5", tools=[stock], system="You sell lamps.", api_key="k", **settings)


async def shop_cassette(folder: Path) -> Path:
    async with FakeProvider(calling()) as fake:
        run = await log(shop([], base_url=fake.base_url), folder / "talks.db", "How many lamps?")
    return await cassette_in(folder, run)


@requirement("R222")
async def test_each_dial_is_recorded_or_live(tmp_path: Path) -> None:
    path, seen = await shop_cassette(tmp_path), list[str]()
    await asyncio.to_thread(replay_run, path, shop(seen))
    assert seen == []
    await asyncio.to_thread(replay_run, path, shop(seen), tools="live")
    assert seen == ["lamp"]
    async with FakeProvider(calling()) as fake:
        agent = shop(seen, base_url=fake.base_url)
        live = await asyncio.to_thread(replay_run, path, agent, model="live")
        assert (len(fake.requests), seen, live.is_live) == (2, ["lamp"], True)
        assert live.calls == [("stock", {"item": "lamp"})]


async def test_live_tool_with_other_result_fails_at_result(tmp_path: Path) -> None:
    path = await shop_cassette(tmp_path)

    def stock(item: str) -> str:
        """Search the stock."""
        return "none left"

    agent = Agent("openai-responses:gpt-5", tools=[stock], system="You sell lamps.", api_key="k")
    with pytest.raises(ReplayMismatch) as caught:
        await asyncio.to_thread(replay_run, path, agent, tools="live")
    assert (caught.value.step, caught.value.path) == (1, "input[0].output")
    assert "'3 left' → 'none left'" in str(caught.value)


async def test_live_model_with_other_input_names_it(tmp_path: Path) -> None:
    path = await shop_cassette(tmp_path)
    other = [ResponsesScript().function_call("stock", {"item": "chair"}).reply()]
    async with FakeProvider(other) as fake:
        with pytest.raises(ReplayMismatch, match=r"item: 'lamp' → 'chair'"):
            await asyncio.to_thread(replay_run, path, shop([], base_url=fake.base_url), model="live")


async def test_recorded_denial_is_given_again(tmp_path: Path) -> None:
    seen: list[str] = []
    async with FakeProvider(calling()) as fake:
        agent = shop(seen, base_url=fake.base_url, approval="ask")
        run = await log(agent, tmp_path / "talks.db", "How many lamps?", denies=True)
    path = await cassette_in(tmp_path, run)
    replayed = await asyncio.to_thread(replay_run, path, shop(seen, approval="ask"))
    assert (replayed.finish_reason, replayed.steps, seen) == ("stop", 2, [])


async def test_mcp_server_of_recorded_run_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    script = [
        ResponsesScript().function_call("now", {"zone": "Oslo"}).reply(),
        ResponsesScript().text(["It is noon."]).reply(),
    ]
    async with FakeProvider(script) as fake:
        server = MCPServer("clock", command=sys.executable, args=[str(tmp_path / "server.py")], approval="run")
        async with Agent("openai-responses:gpt-5", mcp=[server], base_url=fake.base_url, api_key="k") as agent:
            run = await log(agent, tmp_path / "talks.db", "What time is it?")
    path = await cassette_in(tmp_path, run)
    missing = MCPServer("clock", command=str(tmp_path / "missing"), approval="run")
    replayed = await asyncio.to_thread(replay_run, path, Agent("openai-responses:gpt-5", mcp=[missing], api_key="k"))
    assert (replayed.calls, replayed.text) == ([("now", {"zone": "Oslo"})], "It is noon.")
    live = MCPServer("clock", command=sys.executable, args=[str(tmp_path / "server.py")], approval="run")
    agent = Agent("openai-responses:gpt-5", mcp=[live], api_key="k")
    await asyncio.to_thread(replay_run, path, agent, hosted="live")


async def test_replay_inside_event_loop_says_what_to_write(tmp_path: Path) -> None:
    path = await shop_cassette(tmp_path)
    with pytest.raises(ConfigurationError, match="to_thread"):
        replay_run(path, shop([]))


async def test_live_model_gets_recorded_results_of_hosted_tools(tmp_path: Path) -> None:
    found = ResponsesScript().web_search("news", sources=["https://example.com"]).text("Sunny today.")
    async with FakeProvider([found.reply()]) as fake:
        agent = Agent("openai-responses", server_side_tools=[WebSearch()], base_url=fake.base_url, api_key="k")
        path = await cassette_in(tmp_path, await log(agent, tmp_path / "talks.db", "What is new?"))
    async with FakeProvider([ResponsesScript().text(["It is sunny."]).reply()] * 2) as fake:
        agent = Agent("openai-responses", server_side_tools=[WebSearch()], base_url=fake.base_url, api_key="k")
        await asyncio.to_thread(replay_run, path, agent, model="live")
        await asyncio.to_thread(replay_run, path, agent, model="live", hosted="live")
        recorded, live = (json.loads(request.body)["tools"] for request in fake.requests)
    assert [(tool["type"], tool["name"]) for tool in recorded] == [("function", "web_search")]
    assert [tool["type"] for tool in live] == ["web_search"]
