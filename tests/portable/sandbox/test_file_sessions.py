"""Conversations of several turns with files, with code that runs on this machine, on every provider's API."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream import Agent, Chat, CodeInterpreter, ConfigurationError, Context, DataPart
from sidestream.parts import Custom
from sidestream.providers.shared.continuation import CONTAINER_REPLACED
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    GeminiScript,
    InteractionScript,
    MessagesScript,
    ResponsesScript,
    ScriptedModel,
    check_stream,
    tool_call,
)
from support.sandboxes import needs

CODE = "code_interpreter"
HERE = CodeInterpreter(execution="here", sandbox="bubblewrap")
PLOT = "import base64\nopen('plot.png', 'wb').write(base64.b64decode('iVBORw0KGgo=') + bytes(40_000))"
TABLE = "open('table.csv', 'w').write('a,b\\n' + '1,2\\n' * 20_000)"
ARCHIVE = "open('all.zip', 'wb').write(b'PK\\x03\\x04' + bytes(20_000))"
MODELS: dict[str, Any] = {
    "groq:m": (ChatScript, "tool_call"),
    "openai:gpt-5.6": (ChatScript, "tool_call"),
    "openai-responses": (ResponsesScript, "function_call"),
    "anthropic": (MessagesScript, "tool_use"),
    "google": (GeminiScript, "function_call"),
    "google:interactions/gemini-3-flash-preview": (InteractionScript, "function_call"),
}


def replies(model: str, *turns: str | None) -> list[Any]:
    """The answers of a session: each turn runs a code, or only says something."""
    script, call = MODELS[model]
    said: list[Any] = []
    for code in turns:
        if code is not None:
            said.append(getattr(script(), call)(CODE, {"code": code}).reply())
        said.append(script().text("ok").reply())
    return said


def provider(model: str, *turns: str | None) -> FakeProvider:
    return FakeProvider(replies(model, *turns), **({"base_path": ""} if model.startswith("google") else {}))


def agent_of(model: str, fake: FakeProvider, *tools: Any) -> Agent:
    return Agent(model, base_url=fake.base_url, api_key="k", server_side_tools=tools or (HERE,))


def logs_of(result: Any) -> str:
    return "".join(output["logs"] for output in result.tool_results[-1].result["outputs"])


@requirement("R192")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("code", "name"), [(PLOT, "plot.png"), (TABLE, "table.csv"), (ARCHIVE, "all.zip")])
async def test_made_file_is_named_but_not_resent(model: str, code: str, name: str) -> None:
    needs("bubblewrap")
    async with provider(model, code, None, f"import os\nprint(os.path.getsize('{name}'))") as fake:
        async with agent_of(model, fake) as agent:
            chat = Chat(agent)
            (made,) = (await chat.send("Make it.")).files
            await chat.send("Thanks.")
            last = await chat.send("How large is it?")
        assert all(len(request.body) < 10_000 for request in fake.requests)
        assert name.encode() in b"".join(request.body for request in fake.requests[1:])
    assert logs_of(last) == f"{len(made.data or b'')}\n"


@requirement("R192")
async def test_embedded_model_continues_after_made_files() -> None:
    needs("bubblewrap")
    model = ScriptedModel([*(tool_call(CODE, code=code) for code in (PLOT, TABLE, ARCHIVE)), "Done."])
    async with Agent("local", server_side_tools=[HERE]) as agent:
        chat = Chat(agent)
        with agent.override(model=model):
            made = await chat.send("Make them.")
        assert (await chat.send("Thanks.", max_tokens=3)).finish_reason in ("stop", "length")
    assert [file.name for file in made.files] == ["plot.png", "table.csv", "all.zip"]


@requirement("R192")
async def test_attached_file_of_tool_is_sent() -> None:
    needs("bubblewrap")
    async with provider("groq:m", TABLE, None) as fake, agent_of("groq:m", fake) as agent:
        chat = Chat(agent)
        made = await chat.send("Make it.")
        await chat.send(["What is in it?", made.files[0]])
    assert fake.requests[-1].json["messages"][-1]["content"][-1]["text"].startswith("table.csv:\na,b\n1,2\n")
    assert chat.messages[-2].parts[-1] == DataPart(made.files[0].data or b"", "text/csv", "table.csv")


SALES = b"date,region,units\n" + b"2025-01-01,North,12\n" * 50_000
ROWS = "print(sum(1 for _ in open('sales.csv')))"


@requirement("R193")
@pytest.mark.parametrize("model", MODELS)
async def test_container_attachment_is_not_prompt(model: str) -> None:
    needs("bubblewrap")
    attached = DataPart(SALES, "text/csv", "sales.csv", to="container")
    async with provider(model, ROWS, ROWS) as fake, agent_of(model, fake) as agent:
        chat = Chat(agent)
        first = await chat.send(["How many rows?", attached])
        second = await chat.send("Are you sure?")
        assert all(len(request.body) < 10_000 for request in fake.requests)
        assert b"sales.csv (text/csv, 1000018 bytes)" in fake.requests[0].body
    assert [logs_of(result) for result in (first, second)] == ["50001\n"] * 2


@requirement("R193")
@pytest.mark.parametrize("name", ["book.xlsx", "all.zip", "table.parquet"])
async def test_any_file_type_reaches_container(name: str) -> None:
    needs("bubblewrap")
    data = b"PK\x03\x04" + bytes(200)
    code = f"print(open('{name}', 'rb').read()[:2])"
    for model in MODELS:
        async with provider(model, code) as fake, agent_of(model, fake) as agent:
            result = await agent.send(["Read it.", DataPart(data, "application/octet-stream", name, to="container")])
        assert logs_of(result) == "b'PK'\n"


@requirement("R193")
async def test_files_setting_reaches_container_and_model(tmp_path: Path) -> None:
    needs("bubblewrap")
    (tmp_path / "sales.csv").write_bytes(SALES)
    tool = replace(HERE, files=[str(tmp_path / "sales.csv"), DataPart(b"x", "text/plain", "note.txt")])
    code = "print(sum(1 for _ in open('sales.csv')), open('note.txt').read())"
    async with provider("groq:m", code) as fake, agent_of("groq:m", fake, tool) as agent:
        result = await agent.send("How many rows?")
        described = fake.requests[0].json["tools"][0]["function"]["description"]
    assert logs_of(result) == "50001 x\n"
    assert "sales.csv, note.txt" in described
    assert len(fake.requests[0].body) < 5_000


async def test_missing_file_of_setting_raises(tmp_path: Path) -> None:
    tool = CodeInterpreter(files=[str(tmp_path / "none.csv")])
    async with FakeProvider([]) as fake:
        with pytest.raises(ConfigurationError, match=r"none\.csv cannot be read"):
            await agent_of("openai-responses", fake, tool).send("x")
        assert not fake.requests


@requirement("R193")
@pytest.mark.parametrize("model", ["google", "google:interactions/gemini-3-flash-preview"])
async def test_code_runs_here_if_provider_takes_no_files(model: str) -> None:
    needs("bubblewrap")
    attached = DataPart(SALES, "text/csv", "sales.csv", to="container")
    async with provider(model, ROWS) as fake, agent_of(model, fake, CodeInterpreter()) as agent:
        result = await agent.send(["How many rows?", attached])
    assert logs_of(result) == "50001\n"
    assert any("takes files" in warning for warning in result.warnings)


@requirement("R193")
async def test_container_file_of_function_reaches_container() -> None:
    needs("bubblewrap")

    def export() -> list[Any]:
        """Exports the sales."""
        return ["exported", DataPart(SALES, "text/csv", "sales.csv", to="container")]

    model = ScriptedModel([tool_call("export"), tool_call(CODE, code=ROWS), "ok"])
    async with Agent(model, tools=[export], server_side_tools=[HERE]) as agent:
        assert logs_of(await agent.send("Count.")) == "50001\n"


async def test_container_file_without_code_tool_warns() -> None:
    attached = DataPart(b"x", "text/csv", "sales.csv", to="container")
    result = await Agent(ScriptedModel(["ok"])).send(["Count.", attached])
    assert [warning for warning in result.warnings if "no tool runs code" in warning]


def replaced(result: Any) -> list[Any]:
    return [part.data for part in result.parts if isinstance(part, Custom) and part.kind == CONTAINER_REPLACED]


@requirement("R192")
@pytest.mark.parametrize("model", MODELS)
async def test_variables_live_until_restart_and_files_after(model: str, tmp_path: Path) -> None:
    needs("bubblewrap")
    attached = DataPart(SALES, "text/csv", "sales.csv", to="container")
    load = "rows = open('sales.csv').readlines()\nprint(len(rows))"
    export = "open('top.csv', 'w').writelines(rows[:3])\nprint(len(rows))"
    async with provider(model, load, export) as fake, agent_of(model, fake) as agent:
        chat = Chat(agent, store=tmp_path / "talk.db", id="talk")
        first = await chat.send(["Load it.", attached])
        second = await chat.send("Export the top.")
    assert [logs_of(result) for result in (first, second)] == ["50001\n"] * 2
    assert (first.container_id, replaced(second)) == (second.container_id, [])

    look = "print('rows' in dir(), len(open('top.csv').readlines()), len(open('sales.csv').readlines()))"
    async with provider(model, look, look) as fake, agent_of(model, fake) as agent:
        chat = Chat(agent, store=tmp_path / "talk.db", id="talk")
        third, fourth = await chat.send("Still there?"), await chat.send("And now?")
        told = b"".join(request.body for request in fake.requests)
    assert logs_of(third) == "False 3 50001\n"
    (notice,) = replaced(third)
    assert (notice["restored"], notice["container_id"]) == (["sales.csv", "top.csv"], third.container_id)
    assert third.tool_results[-1].result["notes"] == [notice["message"]]
    assert b"without the variables of the old one" in told
    assert replaced(fourth) == []


@requirement("R192")
async def test_turns_have_own_containers_if_not_reused() -> None:
    needs("bubblewrap")
    tool = replace(HERE, reuse_container=False)
    async with provider("groq:m", "x = 1", "print('x' in dir())") as fake, agent_of("groq:m", fake, tool) as agent:
        chat = Chat(agent)
        first, second = await chat.send("one"), await chat.send("two")
    assert (logs_of(second), replaced(second)) == ("False\n", [])
    assert first.container_id != second.container_id


@requirement("R192")
@pytest.mark.parametrize("strategy", ["cut", "summary"])
async def test_shortened_conversation_keeps_container_files(strategy: Any, tmp_path: Path) -> None:
    needs("bubblewrap")
    look = "print(len(open('sales.csv').readlines()), open('made.txt').read())"
    replies = [tool_call(CODE, code="open('made.txt', 'w').write('kept')"), "ok " * 8000, "ok", "ok"]
    settings: Any = {"context": Context(max_tokens=4000, strategy=strategy, keep_turns=1, summary_model=_summary())}
    attached = DataPart(SALES, "text/csv", "sales.csv", to="container")
    async with Agent(ScriptedModel(replies), server_side_tools=[HERE], **settings) as agent:
        chat = Chat(agent, store=tmp_path / "talk.db", id="talk")
        await chat.send(["Make it.", attached])
        shortened = await chat.send("Go on.")
    assert any(isinstance(part, Custom) and part.kind == "sidestream.context-shortened" for part in shortened.parts)
    async with Agent(ScriptedModel([tool_call(CODE, code=look), "ok"]), server_side_tools=[HERE]) as agent:
        last = await Chat(agent, store=tmp_path / "talk.db", id="talk").send("Look.")
    assert logs_of(last) == "50001 kept\n"


def _summary() -> ScriptedModel:
    return ScriptedModel(["It made a file."])


@requirement("R192", "R39")
@pytest.mark.parametrize("model", MODELS)
async def test_sandbox_link_becomes_source(model: str) -> None:
    needs("bubblewrap")
    script, call = MODELS[model]
    texts = ["Here: [the table](sandbox:/mnt/data/table.csv).", "Again sandbox:/mnt/data/table.csv", "sandbox:/none"]
    said = [script().text(text).reply() for text in texts]
    first = getattr(script(), call)(CODE, {"code": TABLE}).reply()
    fake = FakeProvider([first, *said], **({"base_path": ""} if model.startswith("google") else {}))
    async with fake, agent_of(model, fake) as agent:
        chat = Chat(agent)
        made, again, other = [await chat.send(prompt) for prompt in ("Make it.", "Again.", "Other.")]
    (source,), (later,) = made.sources, again.sources
    assert (source.kind, source.file_id, source.title) == ("container_file", made.files[0].id, "table.csv")
    assert [made.output[source.start : source.end], again.output[later.start : later.end]] == [
        "sandbox:/mnt/data/table.csv"
    ] * 2
    assert (later.title, other.sources) == ("table.csv", [])
    check_stream(made.parts)
