"""Runs one chat again and again, each time in a process that kills itself a little later.

`python killed.py FOLDER SCRIPT`, where the script is `functions`, `external` or `policies`.

Run number n uses FOLDER/n.db and notes what its tools really did in FOLDER/n.effects. It ends when a run was not killed
any more. What is counted: the beginning and the end of every append, of every tool, and every statement of the database.
Where those of other threads come between varies: after it, `policies` is killed once right before and right after the
effect of each tool.
"""

import asyncio
import gc
import importlib
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from sidestream import Agent, Chat, ExternalTool, Tool, ToolContext
from sidestream.store.records import Row
from sidestream.store.sqlite.store import SqliteStore
from sidestream.testing import FakeProvider, ResponsesScript
from sidestream.tools.interruption import InterruptionPolicy

MAX_RUNS = 400
BOUND_S = 60
"""One run may take this long; the alarm then kills it, with another signal than its own."""


def external() -> list[object]:
    """A round of a function and a call whose result comes from outside, then the answer."""
    both = ResponsesScript(id="r1").function_call("note", {"text": "a"}, "call_a")
    both.function_call("ask", {}, "call_b")
    return [both.reply(), ResponsesScript(id="r2").text("Noted.").reply()]


def functions() -> list[object]:
    """Two rounds of a tool, the first of them with two calls, then the answer."""
    both = ResponsesScript(id="r1").function_call("note", {"text": "a"}, "call_a")
    both.function_call("note", {"text": "b"}, "call_b")
    return [
        both.reply(),
        ResponsesScript(id="r2").function_call("note", {"text": "c"}, "call_c").reply(),
        ResponsesScript(id="r3").text("Noted.").reply(),
    ]


def policies() -> list[object]:
    """A round of one call for each policy of interrupted calls, then the answer."""
    round_ = ResponsesScript(id="r1")
    for name in POLICIES:
        round_.function_call(f"{name}_tool", {}, f"call_{name}")
    return [round_.reply(), ResponsesScript(id="r2").text("Noted.").reply()]


POLICIES: tuple[InterruptionPolicy, ...] = get_args(InterruptionPolicy)
SCRIPTS = {"functions": functions, "external": external, "policies": policies}
ASK = ExternalTool("ask")
ANSWER = "from outside"


def noted(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def policy_tools(effects: Path, point: Callable[[str], None] = lambda _: None) -> list[Tool]:
    """A tool for each policy, which notes its name, its idempotency key and the attempt in a file."""

    async def act(context: ToolContext) -> str:
        """Acts."""
        point(f"before {context.name}")
        noted(effects, f"{context.name} {context.idempotency_key} {context.attempt}\n")
        point(f"after {context.name}")
        return "acted"

    return [Tool.from_function(act, name=f"{name}_tool", on_interruption=name) for name in POLICIES]


NAMED = [f"{when} {name}_tool" for name in POLICIES for when in ("before", "after")]


class Countdown:
    """Kills the process when it has passed a number of points, or at the one of this name."""

    def __init__(self, left: int, name: str | None = None) -> None:
        self.left = left
        self.name = name

    def __call__(self, name: object = None, *_: object) -> None:
        self.left -= 1
        if self.left < 0 if self.name is None else self.name == name:
            os.kill(os.getpid(), signal.SIGKILL)


class WatchedStore(SqliteStore):
    def __init__(self, path: Path, point: Countdown) -> None:
        super().__init__(path)
        self.point = point

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
    ) -> None:
        self.point()
        await super().append(conversation, after, rows, blobs, flush=flush)
        self.point()


async def talk(folder: Path, number: int, script: str, name: str | None = None) -> None:
    point = Countdown(number, name)
    connect = sqlite3.connect

    def watched(*args: object, **kwargs: object) -> sqlite3.Connection:
        connection = connect(*args, **kwargs)  # type: ignore[arg-type]
        connection.set_trace_callback(point)
        return connection

    sqlite3.connect = watched  # type: ignore[assignment]

    def note(text: str) -> str:
        """Notes a text."""
        point()
        noted(folder / f"{number}.effects", text)
        point()
        return f"noted {text}"

    tools = [note, ASK, *policy_tools(folder / f"{number}.effects", point)]
    store = WatchedStore(folder / f"{number}.db", point)
    async with FakeProvider(SCRIPTS[script]()) as fake:  # type: ignore[arg-type]
        chat = Chat(Agent("openai-responses", base_url=fake.base_url, tools=tools), store=store, id="talk")
        result = await chat.send("go")
        if result.approvals:
            await chat.resume([entry.answer(ANSWER) for entry in result.approvals])
    await store.aclose()


def main() -> int:
    folder, script = Path(sys.argv[1]), sys.argv[2]
    # Loaded once, not in every child.
    for module in (
        "aiohttp",
        "griffe",
        "pydantic",
        "sidestream.wire.http",
        "sidestream.providers.openai.responses.decode.decoder",
    ):
        importlib.import_module(module)
    Agent("openai-responses", base_url="http://127.0.0.1:1/v1", tools=[main])
    gc.freeze()  # A collection in a child would copy the memory of all modules.
    for number in range(MAX_RUNS):
        status = ended(folder, number, script)
        if os.WIFEXITED(status):
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    else:
        return 1
    named = NAMED if script == "policies" and not status else []
    for more, name in enumerate(named, number + 1):
        assert os.WTERMSIG(ended(folder, more, script, name)) == signal.SIGKILL
    print(number + len(named))
    return os.WEXITSTATUS(status)


def ended(folder: Path, number: int, script: str, name: str | None = None) -> int:
    """The status of a process that has run the script."""
    child = os.fork()
    if child == 0:
        signal.alarm(BOUND_S)
        asyncio.run(talk(folder, number, script, name))
        os._exit(0)
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    sys.exit(main())
