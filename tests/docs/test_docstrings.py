"""Every public name has a docstring that an editor's hover makes useful, and the examples in docstrings run.

An example is a ```python block, or code of a line that calls the name it stands under: `WebSearch(context_size="high")`.
It may use every public name, and what `given` returns. What a line with `# text` prints is that text.
"""

import ast
import asyncio
import contextlib
import importlib
import inspect
import io
import itertools
import json
import re
import types
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typing_extensions import TypedDict

import sidestream
import sidestream.testing
from sidestream import Agent, Chat, ChatMessage, ChatResult, open_store
from sidestream.agent.settings import AgentSettings, CallSettings
from sidestream.durable import WorkerService, open_engine
from sidestream.testing import FakeProvider, Recording, ResponsesScript, responses_text, sse
from test_public_surface import PUBLIC, SOURCE

SETTINGS = set(CallSettings.__annotations__) | set(AgentSettings.__annotations__)
"""What every call accepts: the fields of these classes have docstrings of their own."""
PLAIN = {"output_type", "errors", "path", "name", "text", "limit", "timeout_s"}
"""Parameters whose name and type say it."""


class Documented(NamedTuple):
    name: str
    value: Any
    docstring: str
    context: str = ""
    """The docstring of its class, for a method."""


def public_values() -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for package in PUBLIC:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if id(value) not in seen:
                seen.add(id(value))
                yield name, value


def members(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class of ours defines."""
    for name, value in vars(cls).items():
        if not name.startswith("_") and isinstance(
            value, types.FunctionType | staticmethod | classmethod | property | cached_property
        ):
            yield name, getattr(cls, name) if isinstance(value, staticmethod | classmethod) else value


def documented_values(names: list[str]) -> list[str]:
    """Those of these module-level values and aliases that have a docstring below them."""
    found: list[str] = []
    begins = re.compile(rf"^(?:{'|'.join(names)})\b", re.MULTILINE)
    for path in SOURCE.rglob("*.py"):
        text = path.read_text("utf-8")
        body = ast.parse(text).body if begins.search(text) else []
        for node, after in itertools.pairwise(body):
            match node, after:
                case (
                    ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str())),
                ):
                    found.append(name)
                case _:
                    pass
    return found


def documented() -> list[Documented]:
    found: list[Documented] = []
    for name, value in public_values():
        if isinstance(value, type):
            context = vars(value).get("__doc__") or ""
            found.append(Documented(name, value, context))
            found += [
                Documented(f"{name}.{key}", member, _inherited(value, key, member), context)
                for key, member in members(value)
            ]
        elif inspect.isroutine(inspect.unwrap(value)):
            found.append(Documented(name, value, inspect.getdoc(value) or ""))
    return found


def _inherited(cls: type[Any], key: str, member: Any) -> str:
    bases = (vars(base)[key] for base in cls.__mro__ if key in vars(base))
    return inspect.getdoc(member) or next((text for base in bases if (text := inspect.getdoc(base))), "")


NAMES = documented()
TYPED_BY_HAND = [entry for entry in NAMES if not (entry.name.split(".")[0]).endswith("Script")]
"""All but the builders of scripts, whose arguments are the fields of the vendors' own items."""


def test_public_classes_functions_and_methods_have_docstrings():
    assert [entry.name for entry in NAMES if not entry.docstring.strip()] == []


def test_public_values_and_aliases_have_docstrings():
    values = [
        name
        for name, value in public_values()
        if not isinstance(value, type)
        and not inspect.isroutine(inspect.unwrap(value))
        and not type(value).__module__.startswith("sidestream.")
    ]
    assert len(values) > 10
    assert set(values) - set(documented_values(values)) == set()


def test_docstrings_explain_their_keyword_arguments():
    unexplained: list[str] = []
    for entry in TYPED_BY_HAND:
        function = vars(entry.value).get("__init__") if isinstance(entry.value, type) else entry.value
        if not isinstance(function, types.FunctionType | types.MethodType):
            continue
        words = set(re.findall(r"\w+", entry.docstring + entry.context))
        unexplained += [
            f"{entry.name}({parameter.name}=)"
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in words | SETTINGS | PLAIN
        ]
    assert unexplained == []


class Example(NamedTuple):
    name: str
    source: str


FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> list[Example]:
    found: list[Example] = []
    for entry in NAMES:
        text = inspect.cleandoc(entry.docstring)
        own = re.escape(entry.name.split(".")[-1])
        found += [Example(entry.name, source) for source in FENCE.findall(text)]
        found += [
            Example(entry.name, line)
            for line in re.findall(rf"`({own}\([^`]*\))`", FENCE.sub("", text))
            if "…" not in line and "..." not in line
        ]
    return found


EXAMPLES = examples()
TYPED_MOST = [
    "Agent",
    "Agent.stream",
    "Agent.send_stream",
    "Agent.resume",
    "Agent.override",
    "Chat",
    "Run",
    "SyncRun",
    "ChatResult",
    "ChatResult.cited_text",
    "Citations",
    "tool",
    "ToolContext",
    "ExternalTool",
    "PendingApproval",
    "RunState",
    "Limits",
    "Limiter",
    "Context",
    "Price",
    "Recording",
    "RecordingTransport",
    "WebSearch",
    "WebFetch",
    "CodeInterpreter",
    "ImageGeneration",
    "FileSearch",
    "RemoteMCP",
    "Shell",
    "ApplyPatch",
    "Memory",
    "ToolSearch",
    "ProgrammaticToolCalling",
    "ComputerUse",
    "CustomTool",
    "MCPServer",
    "open_store",
    "open_index",
    "Conversation",
    "sse",
    "output_type",
    "caps_of",
    "messages_to_json",
    "part_from_json",
    "validate_history",
    "cosine_similarity",
    "create_app",
    "RunClient",
    "WorkerService",
    "Telemetry",
    "FakeProvider",
    "ScriptedModel",
    "ResponsesScript",
    "check_stream",
    "hostile_server",
]


def test_most_used_names_have_examples():
    assert set(TYPED_MOST) - {example.name for example in EXAMPLES} == set()


class Bank:
    def book(self, amount: int, key: str) -> str:
        return f"booked {amount}"


@sidestream.tool(approval="ask")
def refund(order: int) -> str:
    """Refunds an order."""
    return "done"


def stock(item: str) -> int:
    """How many pieces of an item are in stock."""
    return 7


class StoppedAtOnce(WorkerService):
    """A worker that somebody has stopped before it runs."""

    async def run(self) -> None:
        self.stop()
        await super().run()


WAITING = ("Agent.resume", "PendingApproval", "RunState", "ExternalTool")
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "ExternalTool": ("weather", {"city": "Bern"}),
    "ToolContext": ("transfer", {"amount": 5}),
}
"""Example → the call that the model makes first."""


def answers(name: str) -> Callable[[Any], Any]:
    """What the model answers: a call if the example is about calls, then a text."""
    refunds: tuple[str, dict[str, Any]] | None = ("refund", {"order": 7}) if name in WAITING else None
    call = CALLS.get(name, refunds)

    def answer(request: Any) -> Any:
        is_answered = "function_call_output" in json.dumps(request.json)
        if call is not None and not is_answered:
            return ResponsesScript().function_call(call[0], call[1]).reply()
        return sse(responses_text(["Bon", "jour !"]))

    return answer


def names() -> dict[str, Any]:
    """What an example may use besides its own lines."""
    found: dict[str, Any] = {}
    for package in reversed(PUBLIC):
        module = importlib.import_module(package)
        found |= {name: getattr(module, name) for name in module.__all__}
    from starlette.responses import StreamingResponse

    modules = {name: importlib.import_module(name) for name in ("asyncio", "signal", "sys")}
    own = {"Path": Path, "TypedDict": TypedDict, "Bank": Bank, "stock": stock, "StreamingResponse": StreamingResponse}
    return found | modules | own


@contextlib.asynccontextmanager
async def prepared(name: str, given: dict[str, Any]):
    """What the example of a name finds: a result that waits, or a worker."""
    async with contextlib.AsyncExitStack() as stack:
        agent = given["agent"]
        if name in ("PendingApproval", "RunState"):
            given["result"] = await agent.send("Refund order 7.")
        if name == "Conversation":
            async with contextlib.aclosing(open_store("talks.db")) as store:
                await Chat(agent, store=store, id="support-42").send("Hello")
        if name == "RunClient":
            store = await stack.enter_async_context(contextlib.aclosing(open_store("talks.db")))
            worker = WorkerService(store, open_engine("embedded", store), {"support": agent})
            task = asyncio.create_task(worker.run())
            stack.push_async_callback(lambda: asyncio.wait([task]))
            stack.callback(worker.stop)
        yield
        for value in given.values():
            if not isinstance(value, type) and isinstance(value, sidestream.Store) and name != "open_store":
                await value.aclose()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.name}: {example.source.splitlines()[0]}")
def test_docstring_example_runs(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Recording(exchanges=()).save(tmp_path / "search.json")
    for folder in ("docs", "project"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docs" / "retries.md").write_text("# Retries\n\nRetries are configured with `Agent(retries=…)`.\n")
    fake = FakeProvider()
    fake.on("POST", "*/responses", answers(example.name))
    with fake.in_thread():
        monkeypatch.setenv("OPENAI_API_KEY", "test")
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        monkeypatch.setenv("SIDESTREAM_INDEX", str(tmp_path / "index.db"))
        given = names()
        given |= {
            "agent": Agent("openai-responses", tools=[refund]),
            "history": [ChatMessage.user("Hello")],
            "result": ChatResult(text="Hello"),
            "open_index": lambda: sidestream.open_index(vectors=False),
            "WorkerService": StoppedAtOnce,
        }
        printed = io.StringIO()
        code = compile(example.source, example.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            if code.co_flags & inspect.CO_COROUTINE:

                async def main() -> None:
                    async with prepared(example.name, given):
                        await eval(code, given)

                asyncio.run(main())
            else:
                exec(code, given)
    expected = re.findall(r"^print\(.*\)  # (.*)$", example.source, re.MULTILINE)
    if expected:
        assert printed.getvalue().splitlines() == expected
