"""F26, R78: a run that is cancelled, wherever it is, leaves no task, descriptor or process, and a record of its end."""

import asyncio
import gc
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, open_store
from sidestream.store.log.conversation import Conversation
from sidestream.testing import FakeProvider, Reply, ResponsesScript, no_leaks, responses_text, sse
from support.mcp_servers.peers import asked, rogue
from support.waiting import eventually


def look(name: str) -> str:
    """Looks something up in a thread."""
    return f"{name} is there"


async def listen(name: str) -> str:
    """Listens in the event loop."""
    await asyncio.sleep(0)
    return f"{name} is quiet"


def script() -> list[Reply]:
    both = (
        ResponsesScript(id="r1").function_call("look", {"name": "a"}, "c1").function_call("listen", {"name": "a"}, "c2")
    )
    return [both.reply(), ResponsesScript(id="r2").text("done").reply()]


def children() -> set[str]:
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@asynccontextmanager
async def nothing_left() -> AsyncGenerator[None]:
    """Fails if a task, thread, descriptor or process outlives its block, or the event loop reports an error."""
    reports: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, report: reports.append(report))
    before = set(os.listdir("/proc/self/fd")), children()
    async with no_leaks():
        yield
    assert (set(os.listdir("/proc/self/fd")), children()) == before
    gc.collect()  # an exception that nobody has retrieved is reported when its task goes
    await asyncio.sleep(0)
    assert reports == []


class Steps:
    """Counts the steps of all tasks that begin in its block; after so many of them it cancels a task."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.cancelled: asyncio.Task[Any] | None = None
        """The task to cancel."""

    def __enter__(self) -> "Steps":
        asyncio.get_running_loop().set_task_factory(self._counted)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().set_task_factory(None)

    def stepped(self) -> None:
        """A task is about to make a step."""
        self._left -= 1
        if not self._left and self.cancelled is not None:
            asyncio.get_running_loop().call_soon(self.cancelled.cancel)  # after the step

    def _counted(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        assert isinstance(work, Coroutine)
        return asyncio.Task(Stepped(work, self), loop=loop, **options)


class Stepped(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are counted."""

    def __init__(self, work: Coroutine[Any, Any, Any], steps: Steps) -> None:
        self._work = work
        self._steps = steps

    def send(self, value: Any) -> Any:
        self._steps.stepped()
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        self._steps.stepped()
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()


@requirement("F26", "R78")
async def test_chat_cancelled_at_any_await_leaves_only_its_record(tmp_path: Path) -> None:
    async def run(count: int) -> bool:
        """Cancels after so many steps of its tasks. Returns whether it was complete before."""
        store = open_store(tmp_path / f"{count}.db")
        async with FakeProvider(script()) as fake:
            agent = Agent("openai-responses", base_url=fake.base_url, tools=[look, listen])
            with Steps(count) as steps:
                steps.cancelled = sending = asyncio.create_task(Chat(agent, store=store, id="talk").send("hi"))
                await asyncio.wait([sending])
            await fake.wait_answered()
        kinds = [record.kind for record in await Conversation(store, "talk").records()]
        await store.aclose()
        if kinds:  # else it was cancelled before anything was written
            # The log may be complete before the caller is.
            assert kinds[-1] in (("finish", "cancelled") if sending.cancelled() else ("finish",))
        return not sending.cancelled()

    await run(0)  # opens what stays open
    count, is_complete = 0, False
    async with nothing_left():
        while not is_complete:  # Then there is no await left at which it could be cancelled.
            count += 1
            async with no_leaks():
                is_complete = await run(count)


POINTS: dict[str, tuple[list[str], Callable[[], list[Reply]], str]] = {
    "it starts": (["--start", "hang"], list, ""),
    "its tools are listed": (["--start", "mute"], list, "tools/list"),
    "the model answers": ([], lambda: [sse([*responses_text("on")[:5], asyncio.Event()])], "tools/list"),
    "its tool runs": ([], lambda: [ResponsesScript().function_call("hang", {}, "c").reply()], "tools/call"),
}
"""Where the server is: its options, the provider's replies, and the last request that the server received."""


@requirement("F26", "R78")
@pytest.mark.parametrize("point", POINTS)
async def test_cancelled_agent_with_local_server_leaves_no_process(point: str, tmp_path: Path) -> None:
    options, replies, last = POINTS[point]
    log = tmp_path / "log"

    async def use(fake: FakeProvider) -> None:
        server = rogue("--log", str(log), *options)
        async with Agent("openai-responses", base_url=fake.base_url, tools=[server], approval="run") as agent:
            await agent.send("hi")

    async with nothing_left(), FakeProvider(replies()) as fake:
        before = children()
        running = asyncio.create_task(use(fake))
        await eventually(lambda: bool(asked(log, last)) if last else children() != before)
        if point == "the model answers":
            await fake.wait_for_requests(1)
        running.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait([running])
        assert running.cancelled()
        assert children() == before


@requirement("F26", "R78")
@pytest.mark.parametrize("way", ["cancel", "aclose"])
async def test_run_without_response_is_stopped_at_once_by_other_task(way: str):
    gate, asked_for = asyncio.Event(), asyncio.Event()

    async def judge(question: Any) -> str:
        asked_for.set()
        await gate.wait()  # It never answers.
        return "run"

    async with nothing_left(), FakeProvider([script()[0], sse([gate, *responses_text("late")])]) as fake:
        for policy, tools in ((judge, [look, listen]), (None, [])):
            agent = Agent("openai-responses", base_url=fake.base_url, tools=tools, approval=policy)
            run = agent.stream("go", errors="parts")
            count = len(fake.requests)

            async def read(run: Any = run) -> list[Any]:
                return [part async for part in run]

            reading = asyncio.create_task(read())
            async with asyncio.timeout(30):
                if policy is None:
                    await eventually(lambda count=count: len(fake.requests) > count)
                else:
                    await asked_for.wait()
                await getattr(run, way)()
                assert "finish" not in [part.type for part in await reading]
            await agent.aclose()
