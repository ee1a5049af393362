"""A server's life: when it starts, who may use it, how it ends, and what is left of it (nothing)."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, ConfigurationError, Tool
from sidestream.errors import MissingExtraError, ToolServerError
from sidestream.mcp import MCPServer
from sidestream.testing import ScriptedModel, tool_call
from sidestream.tools.server_side import MCPApproval, ToolFilter
from sidestream.tools.tool import ToolContext
from support.children import ends, is_alive, started
from support.mcp_servers.peers import HERE, asked, call, modern, rogue, told, tools_of
from support.waiting import eventually


@requirement("R80")
async def test_server_starts_on_first_use_and_is_kept(tmp_path: Path):
    log = tmp_path / "log"
    server = rogue("--log", str(log))
    assert not log.exists()
    first = await server.list()
    assert await server.list() is first
    assert (await told(server, "echo", {"a": 1})) == {"a": 1}
    assert len(asked(log, "initialize")) == 1
    assert len(asked(log, "tools/list")) == 1
    await server.aclose()
    await server.aclose()


@requirement("R80")
async def test_concurrent_first_use_starts_server_once(tmp_path: Path):
    log = tmp_path / "log"
    async with rogue("--log", str(log)) as server:
        answers = await asyncio.gather(*(told(server, "echo", {"n": n}) for n in range(20)))
        assert answers == [{"n": n} for n in range(20)]
        assert len(asked(log, "initialize")) == 1


@requirement("R80")
async def test_closed_server_restarts_on_next_use():
    server = rogue()
    first = (await told(server, "pid"))["pid"]
    await server.aclose()
    assert not is_alive(first)
    second = (await told(server, "pid"))["pid"]
    await server.aclose()
    assert second != first
    assert not is_alive(second)


@requirement("R80")
def test_each_event_loop_has_own_connection_ending_with_it():
    server = rogue()

    async def once() -> int:
        return (await told(server, "pid"))["pid"]

    pids = [asyncio.run(once()) for _ in range(2)]
    assert len(set(pids)) == 2
    assert not any(is_alive(pid) for pid in pids)


@requirement("R80")
def test_loops_in_several_threads_share_server_object():
    server = rogue()
    pids: list[int] = []

    async def use() -> None:
        pids.append((await told(server, "pid"))["pid"])
        for number in range(20):
            assert (await told(server, "echo", {"n": number})) == {"n": number}

    threads = [threading.Thread(target=asyncio.run, args=(use(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(pids)) == 3
    assert not any(is_alive(pid) for pid in pids)


PROGRAM = f"""
import asyncio, json, sys
from pathlib import Path
from sidestream.mcp import MCPServer
from sidestream.tools.tool import ToolContext

def start(*options):
    return MCPServer("rogue", command=sys.executable, args=["-I", {str(HERE / "rogue.py")!r}, *options])

async def ask(server, name, **arguments):
    tools = {{tool.name: tool for tool in await server.list()}}
    outcome = await tools[name].run(arguments, ToolContext("c", name))
    print(json.loads(outcome.result)["pid"], flush=True)

"""
"""The beginning of programs that treat their servers badly; each pid they get is printed."""


@requirement("R80")
def test_connection_of_abruptly_closed_loop_is_dropped():
    code = """
server = start()
loop = asyncio.new_event_loop()
loop.run_until_complete(ask(server, "pid"))
loop.close()

async def again():
    await ask(server, "pid")
    input()  # the test looks now
    await server.aclose()

asyncio.run(again())
"""
    pipe = subprocess.PIPE
    with started(sys.executable, "-c", PROGRAM + code, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        assert program.stdout is not None
        first, second = (int(program.stdout.readline()) for _ in range(2))
        assert ends(first)
        assert is_alive(second)
        program.communicate(b"\n", timeout=60)
    assert program.returncode == 0
    assert not is_alive(second)


@requirement("F26", "R80")
async def test_cancelled_caller_cancels_request_and_not_server(tmp_path: Path):
    log = tmp_path / "log"
    async with rogue("--log", str(log)) as server:
        pid = (await told(server, "pid"))["pid"]
        calling = asyncio.create_task(call(server, "hang"))
        await eventually(lambda: len(asked(log, "tools/call")) == 2)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await eventually(lambda: bool(asked(log, "notifications/cancelled")))
        assert (await told(server, "pid"))["pid"] == pid


@requirement("F26")
async def test_cancelled_first_caller_leaves_start_to_others():
    async with rogue() as server:
        impatient = asyncio.create_task(server.list())
        patient = asyncio.create_task(server.list())
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        assert await patient


@requirement("F26")
async def test_closing_during_hanging_call_ends_call():
    server = rogue()
    tools = await tools_of(server)
    calling = asyncio.create_task(tools["hang"].run({}, ToolContext("c", "hang")))
    await told(server, "echo")
    await server.aclose()
    outcome = await calling
    assert outcome.is_error
    assert "it was closed" in outcome.result["message"]


@requirement("F26")
async def test_closing_during_start_ends_start():
    server = rogue("--start", "hang")
    listing = asyncio.create_task(server.list())
    await asyncio.sleep(0)
    connection = server._connection()
    await eventually(lambda: connection._stdio is not None and connection._stdio.process is not None)
    pid = connection._stdio.process.pid
    async with asyncio.timeout(30):
        await server.aclose()
        with pytest.raises(ToolServerError):
            await listing
    assert not is_alive(pid)


@requirement("F26")
async def test_repeatedly_cancelled_owner_leaves_no_process(tmp_path: Path):
    log = tmp_path / "log"
    server = rogue("--ignore-end", "--log", str(log))
    pid = (await told(server, "pid"))["pid"]
    owner = server._connection()._task
    owner.cancel()
    await eventually(lambda: bool(asked(log, "end of input")))
    assert not owner.done()
    owner.cancel()  # once more, in the midst of the ladder
    began = time.monotonic()
    await asyncio.wait({owner})
    assert time.monotonic() - began < 5
    assert not is_alive(pid)
    await server.aclose()


async def test_server_not_reading_its_input_can_be_closed(tmp_path: Path):
    server = MCPServer("deaf", command=sys.executable, args=["-c", "import time; time.sleep(600)"], start_timeout_s=0.2)
    with pytest.raises(ToolServerError):
        await server.list()
    await server.aclose()


@requirement("F26")
async def test_garbage_collected_server_is_ended():
    server = rogue()
    pid = (await told(server, "pid"))["pid"]
    owner = server._connection()._task
    del server
    gc.collect()
    await eventually(lambda: not is_alive(pid))
    await asyncio.wait({owner})


@requirement("F26")
@pytest.mark.parametrize("ending", ["sys.exit()", "raise SystemExit(1)", "raise ValueError"])
def test_program_ending_without_closing_leaves_no_process(ending: str):
    code = f"""
async def main():
    await ask(server, "pid")
    await ask(server, "spawn", detached=True)

# The loop is kept and not closed: nothing but the program's end can end the server.
server = start("--ignore-end")
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
{ending}
"""
    program = [sys.executable, "-c", PROGRAM + code]
    done = subprocess.run(program, capture_output=True, encoding="utf-8", timeout=60, check=False)
    pids = [int(line) for line in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    assert all(ends(pid) for pid in pids)


@requirement("F26")
def test_ctrl_c_in_program_ends_its_servers():
    code = """
async def main():
    server = start()
    await ask(server, "pid")
    await ask(server, "hang")

asyncio.run(main())
"""
    pipe = subprocess.PIPE
    with started(sys.executable, "-c", PROGRAM + code, stdout=pipe, stderr=pipe) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        assert is_alive(pid)
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
    assert ends(pid)


@requirement("R80")
async def test_server_leads_its_own_process_group():
    async with rogue() as server:
        facts = await told(server, "pid")
        assert facts["group"] == facts["pid"] != os.getpgid(0)


@requirement("R80")
async def test_missing_command_error_suggests_install():
    server = MCPServer("files", command="no-such-program-here")
    with pytest.raises(ToolServerError) as caught:
        await server.list()
    assert (caught.value.server, caught.value.code) == ("files", "tool-server")
    assert "'no-such-program-here' not found on PATH: install" in caught.value.message


async def test_missing_folder_is_named(tmp_path: Path):
    server = rogue(cwd=tmp_path / "gone")
    with pytest.raises(ToolServerError, match="gone"):
        await server.list()


async def test_unexecutable_program_is_named(tmp_path: Path):
    program = tmp_path / "program"
    program.write_text("text")
    with pytest.raises(ToolServerError, match="install"):
        await MCPServer("files", command=str(program)).list()


@requirement("R80")
async def test_non_mcp_program_is_reported_with_its_output():
    server = MCPServer("echo", command="echo", args=["usage: echo"])
    with pytest.raises(ToolServerError) as caught:
        await server.list()
    assert "exited with code 0" in caught.value.message
    assert "usage: echo" in caught.value.message


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"sidestream\[mcp\]"):
        asyncio.run(rogue().list())


# Lists


@requirement("R80")
async def test_changed_list_is_refetched_in_older_protocol_version(tmp_path: Path):
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([{"name": "change", "inputSchema": {"type": "object"}}]))
    async with rogue("--tools", str(file)) as server:
        assert set(await tools_of(server)) == {"change"}
        file.write_text(json.dumps([{"name": name, "inputSchema": {"type": "object"}} for name in ("change", "new")]))
        assert set(await tools_of(server)) == {"change"}
        await call(server, "change")
        assert set(await tools_of(server)) == {"change", "new"}
        assert server.warnings == ()


@requirement("R80")
async def test_changed_list_is_refetched_in_newer_protocol_version():
    async with modern() as server:
        before = await tools_of(server)
        connection = server._connection()
        await eventually(lambda: connection.is_subscribed)
        kept = await server.list()
        assert await server.list() is kept
        changes = connection.changes
        assert (await call(server, "learn")).result == "learned"
        await eventually(lambda: connection.changes > changes)
        after = await tools_of(server)
        assert set(after) - set(before) == {"learned"}
        assert (await call(server, "learned")).result == "I am new"


# Permissions


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (None, {"read", "write"}),
        (["read"], {"read"}),
        (ToolFilter(read_only=True), {"read"}),
        (ToolFilter(names=["write"]), {"write"}),
        ([], set()),
    ],
)
async def test_only_allowed_tools_are_offered(tmp_path: Path, allowed: Any, names: set[str]):
    file = tmp_path / "tools.json"
    listed = [{"name": "read", "annotations": {"readOnlyHint": True}}, {"name": "write"}]
    file.write_text(json.dumps([{"inputSchema": {"type": "object"}, **tool} for tool in listed]))
    async with rogue("--tools", str(file), allowed_tools=allowed) as server:
        assert set(await tools_of(server)) == names


async def test_unknown_allowed_name_is_warning():
    async with rogue(allowed_tools=["echo", "ecko"]) as server:
        await server.list()
        assert ["'ecko'" in warning for warning in server.warnings] == [True]


@pytest.mark.parametrize(
    ("approval", "read", "write"),
    [
        (None, None, None),
        ("ask", "ask", "ask"),
        ("deny", "deny", "deny"),
        ({"write": "ask", "read": "run"}, "run", "ask"),
        ({"write": "ask"}, None, "ask"),
        (MCPApproval(never=ToolFilter(read_only=True)), "run", "ask"),
        (MCPApproval(never=["read", "write"], always=["write"]), "run", "ask"),
        (MCPApproval(never=["read"]), "run", "ask"),
    ],
)
async def test_approval_policy_is_set_per_tool(tmp_path: Path, approval: Any, read: Any, write: Any):
    file = tmp_path / "tools.json"
    listed = [{"name": "read", "annotations": {"readOnlyHint": True}}, {"name": "write"}]
    file.write_text(json.dumps([{"inputSchema": {"type": "object"}, **tool} for tool in listed]))
    async with rogue("--tools", str(file), approval=approval) as server:
        tools = await tools_of(server)
        assert (tools["read"].approval, tools["write"].approval) == (read, write)


@requirement("R161")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("ask", ["ask", "ask", "ask"]),
        ("retry", ["retry", "retry", "retry"]),
        ({"write": "fail", "put": "retry"}, ["ask", "retry", "fail"]),
        # What a server says of its tools counts only if the user trusts it.
        ("hints", ["retry", "retry", "ask"]),
    ],
)
async def test_interruption_policy_is_set_per_tool(tmp_path: Path, policy: Any, expected: list[str]):
    file = tmp_path / "tools.json"
    hints = {"read": {"readOnlyHint": True}, "put": {"idempotentHint": True}, "write": {"idempotentHint": False}}
    listed = [{"name": name, "annotations": hint} for name, hint in hints.items()]
    file.write_text(json.dumps([{"inputSchema": {"type": "object"}, **tool} for tool in listed]))
    async with rogue("--tools", str(file), on_interruption=policy) as server:
        tools = await tools_of(server)
        assert [tools[name].on_interruption for name in hints] == expected


@requirement("F41")
@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        (None, "approval"),
        ({"readOnlyHint": True}, "approval"),
        ({"openWorldHint": True}, "approval"),
        ({"openWorldHint": False}, "stop"),
    ],
)
async def test_sensitive_tool_asks_after_server_of_unknown_nature(
    tmp_path: Path, hints: dict[str, bool] | None, expected: str
):
    file = tmp_path / "tools.json"
    listed = {"name": "echo", "inputSchema": {"type": "object"}} | ({} if hints is None else {"annotations": hints})
    file.write_text(json.dumps([listed]))
    deleted: list[str] = []

    def delete(name: str) -> None:
        deleted.append(name)

    sensitive = Tool.from_function(delete, is_sensitive=True)
    model = ScriptedModel([tool_call("echo"), tool_call("delete", name="x"), "ok"])
    async with rogue("--tools", str(file), approval="run") as server:
        result = await Agent(model, tools=[sensitive], mcp=[server]).send("hi")
    assert (result.finish_reason, bool(deleted)) == (expected, expected == "stop")


async def test_search_tools_of_server_are_named_by_developer(tmp_path: Path):
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([{"name": name, "inputSchema": {"type": "object"}} for name in ("find", "say")]))
    async with rogue("--tools", str(file), reads_outside=["find"]) as server:
        assert {tool.name: tool.reads_outside for tool in await server.list()} == {"find": True, "say": False}
    with pytest.raises(ConfigurationError):
        rogue(reads_outside="find")


@requirement("R80")
@pytest.mark.parametrize(
    ("hints", "is_sensitive", "is_open_world"),
    [
        (None, False, True),
        ({}, False, True),
        ({"readOnlyHint": True}, False, True),
        ({"destructiveHint": True}, True, True),
        ({"destructiveHint": False, "openWorldHint": False}, False, False),
        ({"openWorldHint": True}, True, True),
        ({"readOnlyHint": True, "destructiveHint": True, "openWorldHint": True}, False, True),
    ],
)
async def test_annotations_say_which_tools_are_sensitive(
    tmp_path: Path, hints: dict[str, bool] | None, is_sensitive: bool, is_open_world: bool
):
    file = tmp_path / "tools.json"
    tool = {"name": "x", "inputSchema": {"type": "object"}} | ({} if hints is None else {"annotations": hints})
    file.write_text(json.dumps([tool]))
    async with rogue("--tools", str(file)) as server:
        (listed,) = await server.list()
        assert (listed.is_sensitive, listed.is_open_world, listed.server_label) == (
            is_sensitive,
            is_open_world,
            "rogue",
        )
