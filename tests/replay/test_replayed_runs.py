"""Logged runs as tests: what they accept, what they report, and which of 500 changes they notice."""

import asyncio
import copy
import os
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat
from sidestream.cli.commands.logs_test import write_test
from sidestream.parts import ToolCall
from sidestream.replay.cassette import Cassette, cassette_of, redacted
from sidestream.replay.provider import model_exchanges
from sidestream.store import open_store
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    GeminiScript,
    MessagesScript,
    Recording,
    ReplayMismatch,
    ReplayTransport,
    ResponsesScript,
)
from sidestream.tools.tool import Tool
from support.places import RECORDINGS

MUTATIONS = int(os.environ.get("SIDESTREAM_MUTATIONS", "60"))
"""Changes to try. `make mutate-runs` tries 500."""
IS_LONG = MUTATIONS >= 500
"""Whether to use every recording instead of a fifth of them."""
SYSTEM = "Answer in one sentence. Be friendly, but say so when you are not sure."
MODELS = {
    "anthropic": "anthropic",
    "google": "google",
    "open-responses": "openai-responses",
    "openai-chat": "openai",
    "openai-responses": "openai-responses",
}
"""Folder of recordings → provider of the agent that plays them."""


def lookup(item: str, limit: int = 3) -> str:
    """Search the stock.

    Args:
        item: Name of the item.
        limit: Number of results.
    """
    return f"{item}: {limit} left"


def convert(amount: float, currency: str) -> str:
    """Convert an amount to another currency.

    Args:
        amount: The amount.
        currency: Code of the currency.
    """
    return f"{amount} {currency}"


def stub(name: str) -> Tool[Any]:
    """Return a function under a name that a recording calls."""
    return Tool(
        name=name,
        description="Do it.",
        parameters={"type": "object", "properties": {}},
        function=lambda: "done",
        bind=lambda arguments, context: {},
    )


def agent_for(
    model: str, *, system: str = SYSTEM, tools: Any = None, stubs: Sequence[str] = (), **settings: Any
) -> Agent[Any]:
    own = [lookup, convert] if tools is None else tools
    return Agent(model, system=system, tools=[*own, *map(stub, stubs)], api_key="unused", **settings)


SCRIPTS: dict[str, tuple[str, Callable[[], list[Any]]]] = {
    "responses": (
        "openai-responses",
        lambda: [
            ResponsesScript().function_call("lookup", {"item": "lamp"}).reply(),
            ResponsesScript().text(["There are 3 lamps."]).reply(),
        ],
    ),
    "messages": (
        "anthropic",
        lambda: [
            MessagesScript().thinking("Hm.").tool_use("lookup", {"item": "lamp"}).reply(),
            MessagesScript().text("There are 3 lamps.").reply(),
        ],
    ),
    "chat": (
        "openai",
        lambda: [
            ChatScript()
            .tool_call("lookup", {"item": "lamp"})
            .tool_call("convert", {"amount": 2, "currency": "EUR"})
            .reply(),
            ChatScript().text("There are 3 lamps.").reply(),
        ],
    ),
    "gemini": (
        "google",
        lambda: [
            GeminiScript().function_call("lookup", {"item": "lamp"}).reply(),
            GeminiScript().text("There are 3 lamps.").reply(),
        ],
    ),
}


async def logged(
    agent: Agent[Any], path: Path, prompt: str = "How many lamps are there?", **call: Any
) -> Cassette | None:
    """Log a run of the agent, and return its cassette, or None if it fails."""
    store = open_store(path)
    try:
        chat = Chat(agent, store=store, id="talk")
        await chat.load()
        run = chat.stream(prompt, errors="parts", **call)
        async with run:
            async for _ in run:
                pass
        return None if run.error is not None else redacted(await cassette_of(store, "talk"))
    finally:
        await store.aclose()


async def scripted(name: str, path: Path) -> Cassette:
    model, script = SCRIPTS[name]
    base = {"base_path": ""} if name == "gemini" else {}
    async with FakeProvider(script(), **base) as fake:
        found = await logged(agent_for(model, base_url=fake.base_url), path)
    assert found is not None
    return found


class LoggedRun:
    """A logged run, its agent and its generated test."""

    def __init__(self, name: str, model: str, cassette: Cassette, folder: Path, stubs: Sequence[str] = ()) -> None:
        self.name, self.model, self.cassette, self.stubs = name, model, cassette, stubs
        cassette.agent = "shop:agent"
        written = write_test(cassette, folder, agent_for(model, stubs=stubs))
        assert written.problem is None, (name, written.problem)
        source = written.file.read_text("utf-8").replace("from shop import agent\n", "")
        names: dict[str, Any] = {"__file__": str(written.file)}
        exec(compile(source, str(written.file), "exec"), names)
        self.cassette_file = names["CASSETTE"]
        self._names = names
        self._test = next(value for key, value in names.items() if key.startswith("test_"))

    def agent(self, **settings: Any) -> Agent[Any]:
        return agent_for(self.model, stubs=self.stubs, **settings)

    def test(self, agent: Agent[Any] | None = None) -> None:
        """Call the generated test, which finds this agent in its module."""
        self._names["agent"] = self.agent() if agent is None else agent
        self._test()


def recorded_runs(folder: Path) -> Iterator[tuple[str, str, Cassette, list[str]]]:
    """Log the recordings that an agent can play which has the functions that they call."""
    for api, model in MODELS.items():
        for file in sorted(RECORDINGS.glob(f"{api}/*.json")):
            recording = Recording.load(file)
            if not model_exchanges(recording) or (not IS_LONG and hash_of(file) % 5):
                continue
            stubs = called_in(recording, model)
            agent = agent_for(model, stubs=stubs, transport=ReplayTransport(recording))
            found = asyncio.run(logged(agent, folder / f"{api}-{file.stem}.db", "What is in stock?"))
            if found is not None:
                yield f"{api}/{file.stem}", model, found, stubs


def hash_of(file: Path) -> int:
    return zlib.crc32(file.stem.encode())


def called_in(recording: Recording, model: str) -> list[str]:
    """Return the names of the functions that a recording calls."""
    run = agent_for(model, transport=ReplayTransport(recording)).stream("?", errors="parts")

    async def names() -> list[str]:
        async with run:
            calls = [part async for part in run if isinstance(part, ToolCall) and not part.provider_executed]
        return [*dict.fromkeys(call.name for call in calls if call.tool == call.name)]

    return asyncio.run(names())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[LoggedRun]:
    folder = tmp_path_factory.mktemp("runs")
    found = [
        LoggedRun(name, SCRIPTS[name][0], asyncio.run(scripted(name, folder / f"{name}.db")), folder / name)
        for name in SCRIPTS
    ]
    for name, model, cassette, stubs in recorded_runs(folder):
        found.append(LoggedRun(name, model, cassette, folder / name.replace("/", "-"), stubs))
    return found


pytestmark = pytest.mark.timeout(900 if IS_LONG else 180)


@requirement("R222")
def test_unchanged_agents_pass_tests_of_their_runs(runs: list[LoggedRun]) -> None:
    for run in runs:
        run.test()
    assert len(runs) > (40 if IS_LONG else 10)


def mutated(kind: str, rng: random.Random) -> dict[str, Any]:
    """Return settings of an agent with one change."""
    tools = [Tool.from_function(lookup), Tool.from_function(convert)]
    at = rng.randrange(2)
    fields = {name: getattr(tools[at], name) for name in Tool.__struct_fields__ if name != "pin"}
    match kind:
        case "prompt":
            words = SYSTEM.split()
            place = rng.randrange(len(words))
            return {"system": " ".join([*words[:place], rng.choice(["always", "never", "perhaps"]), *words[place:]])}
        case "description":
            fields["description"] = fields["description"].replace("e", rng.choice("xyz"), 1)
        case "schema":
            schema = copy.deepcopy(fields["parameters"])
            name = rng.choice(sorted(schema["properties"]))
            schema["properties"][name]["description"] = rng.choice(["Other.", "Changed.", "New."])
            fields["parameters"] = schema
        case "order":
            return {"tools": [*reversed(tools)]}
        case _:
            raise AssertionError(kind)
    tools[at] = Tool(**fields)
    return {"tools": tools}


SYSTEM_PATHS = ("instructions", "system", "messages[0].content", "input[0].content")


def is_at(kind: str, path: str) -> bool:
    """Return whether a path is where such a change belongs."""
    match kind:
        case "prompt":
            return path.startswith(SYSTEM_PATHS)
        case "description":
            return path.startswith("tools") and path.endswith("description")
        case "schema":
            return path.startswith("tools") and path.endswith(".description") and ".properties." in path
        case "order":
            return path.startswith("tools") and not path.endswith("description")
        case _:
            return not path.startswith(("tools", *SYSTEM_PATHS[:2]))


@requirement("R222")
def test_each_change_fails_at_its_place_and_nowhere_else(runs: list[LoggedRun]) -> None:
    rng = random.Random(int(os.environ.get("SEED", "1")))
    with_calls = [run for run in runs if len(run.cassette.steps) > 1 and run.cassette.results]
    for _ in range(MUTATIONS):
        kind = rng.choice(["prompt", "description", "schema", "order", "result"])
        run = rng.choice(with_calls if kind == "result" else runs)
        if kind == "result":
            at = 1
            with pytest.raises(ReplayMismatch) as caught, changed_result(run, rng):
                run.test()
        else:
            at = 0
            with pytest.raises(ReplayMismatch) as caught:
                run.test(run.agent(**mutated(kind, rng)))
        mismatch = caught.value
        assert mismatch.step == at, (run.name, kind, str(mismatch))
        assert is_at(kind, mismatch.path), (run.name, kind, str(mismatch))
        assert len(mismatch.differences) == 1, (run.name, kind, str(mismatch))
        assert mismatch.path in str(mismatch)


class changed_result:
    """Change the result of a tool in a cassette while the block runs."""

    def __init__(self, run: LoggedRun, rng: random.Random) -> None:
        self._file, self._text = run.cassette_file, run.cassette_file.read_text("utf-8")
        cassette = Cassette.load(self._file)
        first = rng.randrange(sum(result.call_id in str(cassette.steps[0].parts) for result in cassette.results))
        changed = copy.deepcopy(cassette)
        result = changed.results[first]
        changed.results[first] = type(result)(result.call_id, result.name, result.input, "none left", result.is_error)
        self._changed = changed

    def __enter__(self) -> None:
        self._changed.save(self._file)

    def __exit__(self, *_: object) -> None:
        self._file.write_text(self._text, "utf-8")
