"""What code inside a container sends to its host: bounded in memory and in time, and said to the model."""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from msgspec.structs import replace

from portable.sandbox.test_containers import run, started
from requirements import requirement
from sidestream import Agent, ProgrammaticToolCalling
from sidestream.limits import DEFAULT_SANDBOX_LIMITS, MIB
from sidestream.portable.sandbox.port import ToolAnswer
from sidestream.testing import ScriptedModel, tool_call

SLOW_MACHINE_S = 60.0
"""Far more than any of these takes, and far less than a clock that stands still."""
CHANNEL = "import os\nwrite = lambda data: os.write(4, data)\n"
"""The kernel's own descriptor: code inside can write to it."""
FLOODS = {
    "calls": "while True: write(b'call 1 4 2\\n1nope{}' * 3000)",
    "distinct": "n = 0\nwhile True:\n    n += 1\n    a = b'{\"x\":%d}' % n\n    write(b'call 1 4 %d\\n1look' % len(a) + a)",
    "arguments": "a = b'[' + b'[],' * (12 << 20) + b'0]'\nwrite(b'call 1 4 %d\\n1nope' % len(a))\nwhile True: write(a)",
    "name": "a = b'y' * (30 << 20)\nwrite(b'call 1 %d 2\\n1' % len(a))\nwhile True: write(a)",
    "number": "write(b'call 9999999 4 2\\n')\nwhile True: write(b'1' * 9999999)",
    "all arguments": "a = b'\"' + b'y' * (1 << 20) + b'\"'\nwhile True: write(b'call 1 4 %d\\n1look' % len(a) + a)",
}


async def answered(name: str, arguments: object) -> ToolAnswer:
    return ToolAnswer("y")


class Peak:
    """The most memory that this process had since then."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._now()

    def _now(self) -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    @property
    def grown_bytes(self) -> int:
        return self._now() - self._before


@requirement("F51", "R122")
@pytest.mark.parametrize("flood", FLOODS)
async def test_flood_of_calls_ends_container(flood: str) -> None:
    async with started() as container:
        peak, began = Peak(), monotonic()
        outcome = await container.run(
            CHANNEL + FLOODS[flood], lambda text: None, tools=["look"], call_tool=answered
        )  # fmt: skip
        assert outcome.ending == "flood"
        assert not container.is_alive
        assert peak.grown_bytes < 128 * MIB
        assert monotonic() - began < SLOW_MACHINE_S


@requirement("F51")
async def test_calls_of_program_are_bounded_in_total() -> None:
    limits = replace(DEFAULT_SANDBOX_LIMITS, calls=40)
    code = "for n in range(100):\n    try: await look(x=n)\n    except Exception: pass"
    async with started(limits=limits) as container:
        outcome = await container.run(code, lambda text: None, tools=["look"], call_tool=answered)
        assert outcome.ending == "flood"


@requirement("F51", "R122")
async def test_program_gathering_many_calls_stays_within_bounds() -> None:
    code = "import asyncio\nprint(sum(await asyncio.gather(*(double(n=n, pad='y' * 9000) for n in range(1000)))))"

    async def double(name: str, arguments: Any) -> ToolAnswer:
        return ToolAnswer(arguments["n"] * 2)

    async with started() as container:
        outcome = await container.run(code, lambda text: None, tools=["double"], call_tool=double)
        assert (outcome.ending, outcome.logs) == ("completed", "999000\n")


async def test_arguments_too_large_are_error_inside() -> None:
    code = "try: await look(x='y' * (1 << 21))\nexcept ValueError as error: print(error)\nprint(await look(x=1))"
    async with started() as container:
        outcome = await container.run(code, lambda text: None, tools=["look"], call_tool=answered)
        assert outcome.ending == "completed"
        assert outcome.logs == "look() takes at most 1048576 bytes of arguments as JSON, not 2097161\ny\n"


async def test_arguments_nested_too_deep_are_answered() -> None:
    seen: list[Any] = []

    async def look(name: str, arguments: Any) -> ToolAnswer:
        seen.append(arguments)
        return ToolAnswer("refused", is_error=True)

    code = "deep = '[' * 50000 + ']' * 50000\n" + CHANNEL + "write(b'call 1 4 %d\\n1look' % len(deep) + deep.encode())"
    async with started() as container:
        await container.run(f"{code}\nprint(await look())", lambda text: None, tools=["look"], call_tool=look)
    assert seen == [None, {}]


COMPUTING = {
    "loop": "while True: pass",
    "thread": "import threading, time\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()\ntime.sleep(600)",
    "lost children": (
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "while True:\n    if os.fork() == 0:\n        end = time.monotonic() + 0.05\n        while time.monotonic() < end: pass\n"
        "        os._exit(0)\n    time.sleep(0.04)"
    ),
}


@requirement("F51", "R122")
@pytest.mark.parametrize("how", COMPUTING)
async def test_clock_runs_while_code_computes_beside_pending_call(how: str) -> None:
    async def never(name: str, arguments: object) -> ToolAnswer:
        await asyncio.Event().wait()
        raise AssertionError

    code = "import asyncio\npending = asyncio.ensure_future(look())\nawait asyncio.sleep(0)\n" + COMPUTING[how]
    async with started(limits=replace(DEFAULT_SANDBOX_LIMITS, cell_s=2.0)) as container:
        began = monotonic()
        outcome = await asyncio.wait_for(
            container.run(code, lambda text: None, tools=["look"], call_tool=never), SLOW_MACHINE_S
        )
        assert outcome.ending == "timeout"
        assert monotonic() - began >= 2.0


@requirement("F51")
async def test_clock_runs_while_answers_are_not_read() -> None:
    async def large(name: str, arguments: object) -> ToolAnswer:
        return ToolAnswer("y" * MIB)

    code = CHANNEL + "write(b'call 1 4 2\\n1look{}' * 8)\nimport time\ntime.sleep(600)"
    async with started(limits=replace(DEFAULT_SANDBOX_LIMITS, cell_s=2.0)) as container:
        outcome = await asyncio.wait_for(
            container.run(code, lambda text: None, tools=["look"], call_tool=large), SLOW_MACHINE_S
        )
        assert outcome.ending == "timeout"


@requirement("F51", "R122")
async def test_deliverables_are_bounded_in_total() -> None:
    limits = replace(DEFAULT_SANDBOX_LIMITS, file_bytes=2 * MIB, delivered_bytes=3 * MIB)
    sparse = "for n in range(4): open(f'{n}.bin', 'wb').truncate(1 << 20)"
    async with started(limits=limits) as container:
        outcome = await run(container, sparse)
        assert [file.name for file in outcome.files] == ["0.bin", "1.bin", "2.bin"]
        assert outcome.notes == ("3.bin (1048576 bytes) was not delivered",)
        again = await run(container, "open('late.bin', 'wb').truncate(1 << 20)")
        assert [file.name for file in again.files] == ["late.bin"]


@requirement("F51")
async def test_forged_deliverables_are_bounded() -> None:
    limits = replace(DEFAULT_SANDBOX_LIMITS, file_bytes=1 * MIB, delivered_bytes=2 * MIB)
    forged = "data = b'z' * (1 << 20)\nfor _ in range(100): write(b'file 1 %d\\na' % len(data)); write(data)"
    named = "write(b'file %d 1\\n' % (30 << 20))\nwhile True: write(b'n' * (1 << 20))"
    noted = "while True: write(b'skipped 1 1\\na1' * 1000)"
    async with started(limits=limits) as container:
        outcome = await run(container, CHANNEL + forged)
        assert sum(len(file.data) for file in outcome.files) == 2 * MIB
        for code in (named, noted):
            async with started(limits=limits) as other:
                peak = Peak()
                assert (await run(other, CHANNEL + code)).ending == "died"
                assert peak.grown_bytes < 64 * MIB


@requirement("F51")
async def test_model_reads_why_program_was_stopped() -> None:
    async with started():
        pass
    code = CHANNEL + FLOODS["calls"]
    programs = ProgrammaticToolCalling(execution="here", sandbox="bubblewrap")
    model = ScriptedModel([tool_call("programmatic_tool_calling", code=code), "done"])
    async with Agent(model, server_side_tools=[programs]) as agent:
        result = await agent.send("go")
    (entry,) = result.tool_results
    assert entry.is_error
    assert entry.result["notes"] == [
        "the code made more tool calls at once, or with larger arguments, than a program may, and was stopped"
    ]


SHARED = "x = [0]\nfor _ in range(40): x = [x, x]\n"
"""A value of forty lists that is a terabyte as text."""


@requirement("F51", "R122")
@pytest.mark.parametrize("value", ["x", "10 ** 10000", "'y' * 10 ** 7", "{1: x}", "(x, x)"])
async def test_monty_hides_oversized_values(value: str) -> None:
    async with started("monty") as container:
        outcome = await asyncio.wait_for(run(container, SHARED + value), SLOW_MACHINE_S)
        assert (outcome.ending, len(outcome.logs) < 200) == ("completed", True)
        assert "too large to show" in outcome.logs
        assert (await run(container, "[1, 'a', {2: (3,)}]")).logs == "[1, 'a', {2: (3,)}]\n"


@requirement("F51")
async def test_monty_program_cannot_pass_oversized_values() -> None:
    seen: list[Any] = []

    async def look(name: str, arguments: Any) -> ToolAnswer:
        seen.append(arguments)
        return ToolAnswer("y")

    code = f"{SHARED}try:\n    await look(x=x)\nexcept ValueError as error:\n    print(error)\nprint(await look(x=[1]))"
    async with started("monty") as container:
        outcome = await asyncio.wait_for(
            container.run(code, lambda text: None, tools=["look"], call_tool=look), SLOW_MACHINE_S
        )
    assert outcome.logs.startswith("look() takes at most 1048576 bytes of arguments")
    assert outcome.logs.endswith("\ny\n")
    assert seen == [{"x": [1]}]


@requirement("F51")
async def test_monty_output_is_bounded() -> None:
    limits = replace(DEFAULT_SANDBOX_LIMITS, output_bytes=1 * MIB)
    async with started("monty", limits) as container:
        outcome = await run(container, "while True: print('y' * 10000)")
        assert (outcome.ending, container.is_alive) == ("output", False)
