"""F31: client tools that raise, hang, return too much or exit, in a program of its own that must survive them."""

import json
import subprocess
import sys
from typing import Any

import pytest

from requirements import requirement
from sidestream.limits import DEFAULT_LIMITS
from sidestream.testing import FakeProvider, ResponsesScript

PROGRAM = """
import asyncio, socket, sys, threading, time
from sidestream import Agent, tool

def raises():
    "d"
    raise ValueError("a secret of the program")

@tool(timeout_s=0.5)
def hangs():
    "d"
    time.sleep(3600)

@tool(timeout_s=0.5)
def hangs_on_an_event():
    "d"
    threading.Event().wait()

def floods():
    "d"
    return "x" * 50_000_000

def floods_with_a_structure():
    "d"
    return [{"n": n, "text": "y" * 1000} for n in range(50_000)]

def floods_with_bytes():
    "d"
    return bytes(50_000_000)

def is_no_json():
    "d"
    return {"socket": socket.SocketType}

def exits():
    "d"
    sys.exit(3)

async def exits_in_the_loop():
    "d"
    raise SystemExit(3)

tools = [raises, hangs, hangs_on_an_event, floods, floods_with_a_structure, floods_with_bytes, is_no_json, exits,
         exits_in_the_loop]
agent = Agent("openai-responses", base_url=sys.argv[1], api_key="k", tools=tools)
if sys.argv[2] == "sync":
    print(agent.send_sync("hi").output)
else:
    print(asyncio.run(agent.send("hi")).output)
"""

ERRORS = {
    "raises": {"error": "ValueError"},
    "exits": {"error": "SystemExit"},
    "exits_in_the_loop": {"error": "SystemExit"},
}
FLOODS = ("floods", "floods_with_a_structure", "floods_with_bytes")
HANGS = ("hangs", "hangs_on_an_event")


@requirement("F31")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_program_survives_hostile_tools_and_exits(mode: str) -> None:
    script = ResponsesScript()
    for name in (*ERRORS, *FLOODS, *HANGS, "is_no_json"):
        script.function_call(name, {}, name)
    with FakeProvider([script.reply(), ResponsesScript().text("Still here.").reply()]).in_thread() as fake:
        program = [sys.executable, "-c", PROGRAM, fake.base_url, mode]
        done = subprocess.run(program, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "Still here.\n"), done.stderr
    outputs: dict[str, Any] = {
        item["call_id"]: item["output"] for item in fake.requests[1].json["input"] if "output" in item
    }
    assert {name: json.loads(outputs[name]) for name in ERRORS} == ERRORS
    for name in HANGS:
        assert json.loads(outputs[name])["error"] == "TimeoutError"
    for name in FLOODS:
        assert len(outputs[name]) <= DEFAULT_LIMITS.max_tool_result_bytes
        assert "[cut: the first " in outputs[name][-100:]
    assert json.loads(outputs["is_no_json"])["error"] == "TypeError"
    assert "a secret of the program" not in fake.requests[1].body.decode()
