"""Logged runs as tests: what they accept, what they report, and that they notice each of 500 changes."""

import asyncio
import copy
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, nullcontext
from functools import partial
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
from sidestream.testing import FakeProvider, Recording, ReplayMismatch, ReplayTransport, replay_run
from sidestream.tools.tool import Tool
from support.golden_runs import GOLDEN, GoldenRun, Shop, played
from support.places import RECORDINGS

IS_LONG = "SIDESTREAM_MUTATIONS" in os.environ
"""Whether to use every recording instead of a fifth of them, as `make mutate-runs` does."""
MUTATIONS = int(os.environ.get("SIDESTREAM_MUTATIONS", "500"))
"""Changes to try."""
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
    own = [lookup, convert, *map(stub, stubs)] if tools is None else tools
    return Agent(model, system=system, tools=own, api_key="unused", **settings)


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


async def golden(run: GoldenRun, path: Path) -> Cassette:
    """Play a golden run, and return the cassette of its last turn."""
    base = {"base_path": ""} if run.model.startswith("google") else {}
    async with FakeProvider(run.replies, **base) as fake, aclosing(open_store(path)) as store:
        await played(run, fake, Shop(), store)
        return redacted(await cassette_of(store, "talk"))


class LoggedRun:
    """A logged run, its agent and its generated test."""

    def __init__(self, name: str, cassette: Cassette, folder: Path, made: Callable[..., Agent[Any]]) -> None:
        self.name, self.cassette, self.agent = name, cassette, made
        cassette.agent = "shop:agent"
        written = write_test(cassette, folder, made())
        assert written.problem is None, (name, written.problem)
        source = written.file.read_text("utf-8").replace("from shop import agent\n", "")
        names: dict[str, Any] = {"__file__": str(written.file)}
        exec(compile(source, str(written.file), "exec"), names)
        self.cassette_file = names["CASSETTE"]
        self._names = names
        self._test = next(value for key, value in names.items() if key.startswith("test_"))

    def test(self, agent: Agent[Any] | None = None) -> None:
        """Call the generated test, which finds this agent in its module."""
        self._names["agent"] = self.agent() if agent is None else agent
        self._test()


def recorded_runs(folder: Path) -> Iterator[LoggedRun]:
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
                made = partial(agent_for, model, stubs=stubs)
                yield LoggedRun(f"{api}/{file.stem}", found, folder / f"{api}-{file.stem}", made)


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
    found: list[LoggedRun] = []
    for name, run in GOLDEN.items():
        cassette = asyncio.run(golden(run, folder / f"{name}.db"))
        found.append(LoggedRun(name, cassette, folder / name, partial(run.agent, Shop(), api_key="unused")))
    return [*found, *recorded_runs(folder)]


pytestmark = pytest.mark.timeout(900 if IS_LONG else 180)


@requirement("R222")
def test_unchanged_agents_pass_tests_of_their_runs(runs: list[LoggedRun]) -> None:
    for run in runs:
        run.test()
    assert len(runs) - len(GOLDEN) > (40 if IS_LONG else 10)


@requirement("R222")
@pytest.mark.parametrize("dial", ["tools", "hosted"])
def test_live_tools_return_what_was_recorded(runs: list[LoggedRun], dial: str) -> None:
    dials: dict[str, Any] = {dial: "live"}
    for run in runs[: len(GOLDEN)]:
        replay_run(run.cassette_file, run.agent(), **dials)


KINDS = ("prompt", "description", "schema", "order", "result")


def kinds_of(run: LoggedRun) -> list[str]:
    """Return the kinds of changes that the run's test can notice."""
    agent = run.agent()
    with_tools = ["description", "schema", *(["order"] if len(agent.tools) > 1 else [])] if agent.tools else []
    has_results = len(run.cassette.steps) > 1 and results_of_first(run.cassette)
    return ["prompt", *with_tools, *(["result"] if has_results else [])]


def results_of_first(cassette: Cassette) -> list[int]:
    """Return the indices of the results that the second request has, except those of denied calls."""
    denied = [decision.call_id for decision in cassette.decisions if not decision.is_approved]
    answer = str(cassette.steps[0].parts)
    each = enumerate(cassette.results)
    return [at for at, result in each if result.call_id in answer and result.call_id not in denied]


def mutated(kind: str, rng: random.Random, agent: Agent[Any]) -> dict[str, Any]:
    """Return settings of an agent with one change."""
    tools = [*agent.tools.values()]
    if kind == "prompt":
        words = str(agent.system).split()
        place = rng.randrange(len(words))
        return {"system": " ".join([*words[:place], rng.choice(["always", "never", "perhaps"]), *words[place:]])}
    if kind == "order":
        one, other = rng.sample(range(len(tools)), 2)
        tools[one], tools[other] = tools[other], tools[one]
        return {"tools": tools}
    with_inputs = [at for at, each in enumerate(tools) if each.parameters["properties"]]
    at = rng.choice(with_inputs if kind == "schema" else range(len(tools)))
    fields = {name: getattr(tools[at], name) for name in Tool.__struct_fields__ if name != "pin"}
    if kind == "description":
        fields["description"] = f"{fields['description']} {rng.choice(['Soon.', 'Now.', 'Later.'])}"
    else:
        schema = copy.deepcopy(fields["parameters"])
        name = rng.choice(sorted(schema["properties"]))
        schema["properties"][name]["description"] = rng.choice(["Other.", "Changed.", "New."])
        fields["parameters"] = schema
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
    possible = {run.name: kinds_of(run) for run in runs}
    seen: Counter[str] = Counter()
    for _ in range(MUTATIONS):
        kind = rng.choice(KINDS)
        run = rng.choice([run for run in runs if kind in possible[run.name]])
        at = int(kind == "result")
        agent = run.agent() if at else run.agent(**mutated(kind, rng, run.agent()))
        with pytest.raises(ReplayMismatch) as caught, changed_result(run, rng) if at else nullcontext():
            run.test(agent)
        mismatch = caught.value
        assert mismatch.step == at, (run.name, kind, str(mismatch))
        assert is_at(kind, mismatch.path), (run.name, kind, str(mismatch))
        assert len(mismatch.differences) == 1, (run.name, kind, str(mismatch))
        assert mismatch.path in str(mismatch)
        seen[kind] += 1
    assert min(seen[kind] for kind in KINDS) > MUTATIONS // 10
    for run in runs:
        run.test()


class changed_result:
    """Change the result of a tool in a cassette while the block runs."""

    def __init__(self, run: LoggedRun, rng: random.Random) -> None:
        self._file, self._text = run.cassette_file, run.cassette_file.read_text("utf-8")
        cassette = Cassette.load(self._file)
        first = rng.choice(results_of_first(cassette))
        changed = copy.deepcopy(cassette)
        result = changed.results[first]
        changed.results[first] = type(result)(result.call_id, result.name, result.input, "none left", result.is_error)
        self._changed = changed

    def __enter__(self) -> None:
        self._changed.save(self._file)

    def __exit__(self, *_: object) -> None:
        self._file.write_text(self._text, "utf-8")
