"""An MCP server of the older generation in plain JSON-RPC, which does whatever it is told, however bad.

Every tool it lists comes from a file that is read anew for each list. What it receives is written to a log.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
SLEEPER = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = bytearray(b"x") * (int(sys.argv[1]) << 20)
print("up", flush=True)
time.sleep(600)
"""

parser = argparse.ArgumentParser()
parser.add_argument("--tools", type=Path)
parser.add_argument("--log", type=Path)
parser.add_argument("--start", default="well")
parser.add_argument("--endless-pages", action="store_true")
parser.add_argument("--ignore-end", action="store_true")
parser.add_argument("--word", action="append")
options = parser.parse_args()
waiting: dict[str, Any] = {}


def send(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def text(value: object) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


def tools() -> list[dict[str, Any]]:
    if options.tools is not None:
        return json.loads(options.tools.read_text("utf-8"))
    return [{"name": name, "description": f"Does {name}.", "inputSchema": OBJECT} for name in CALLS]


def spawn(arguments: dict[str, Any]) -> dict[str, Any]:
    """A grandchild that holds our pipes open and so much memory, and ignores SIGTERM.

    It may be in a session of its own, without an environment, and the child of a process that has ended.
    """
    sleeper = [sys.executable, "-c", SLEEPER, str(arguments.get("mib", 0))]
    if arguments.get("orphaned"):
        sleeper = ["/bin/sh", "-c", '"$0" "$@" & echo $!', *sleeper]
    child = subprocess.Popen(
        sleeper,
        stdout=subprocess.PIPE,
        start_new_session=arguments.get("detached", False),
        env={} if arguments.get("bare") else None,
    )
    assert child.stdout is not None
    if arguments.get("orphaned"):
        pid, _ = sorted((child.stdout.readline() for _ in range(2)), key=lambda line: line == b"up\n")
        child.wait(60)
        return text({"pid": int(pid)})
    child.stdout.readline()
    return text({"pid": child.pid})


def progress(arguments: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    for step in range(1, 4):
        params = {
            "progressToken": meta["progressToken"],
            "progress": step,
            "total": 3,
            "message": f"step {step}\x1b[31m",
        }
        send({"method": "notifications/progress", "params": params})
    return text("done")


def flood(arguments: dict[str, Any]) -> dict[str, Any]:
    for _ in range(arguments["mib"]):
        write(b"x" * 1024 * 1024)
    return text("flooded")


def noise(arguments: dict[str, Any]) -> dict[str, Any]:
    write(b"debug: here I am\n\n{not json}\n[1, 2]\n\xff\xfe\n" * 50)
    return text("quiet again")


def leave(arguments: dict[str, Any]) -> dict[str, Any]:
    sys.stderr.write("last words, api_key=canary-in-stderr\n")
    sys.stderr.flush()
    os._exit(arguments.get("code", 3))


def end_by_signal(arguments: dict[str, Any]) -> None:
    os.kill(os.getpid(), arguments["signal"])


def close_output(arguments: dict[str, Any]) -> None:
    os.close(1)


def facts(arguments: dict[str, Any]) -> dict[str, Any]:
    return text(
        {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "arguments": [os.fsencode(word).hex() for word in sys.orig_argv],
            "descriptors": sorted(os.listdir("/proc/self/fd"), key=int),
            "environment": Path("/proc/self/environ").read_text("utf-8"),
            "ignored": Path("/proc/self/status").read_text("utf-8").partition("SigIgn:")[2].split()[0],
        }
    )


def change(arguments: dict[str, Any]) -> dict[str, Any]:
    send({"method": "notifications/tools/list_changed"})
    return text("told")


def note(arguments: dict[str, Any]) -> dict[str, Any]:
    send({"method": "notifications/message", "params": {"level": "info", "data": "api_key=canary-in-log hello"}})
    return text("noted")


def line(arguments: dict[str, Any]) -> None:
    write(arguments["line"].encode() + b"\n")


CALLS: dict[str, Any] = {
    "echo": text,
    "env": lambda arguments: text(dict(os.environ)),
    "pid": lambda arguments: text({"pid": os.getpid(), "group": os.getpgid(0)}),
    "raw": lambda arguments: arguments["result"],
    "line": line,
    "hang": lambda arguments: None,
    "facts": facts,
    "exit": leave,
    "end-by-signal": end_by_signal,
    "close-output": close_output,
    "flood": flood,
    "noise": noise,
    "spawn": spawn,
    "progress": progress,
    "change": change,
    "note": note,
    "ask": None,
}


def call(request_id: Any, params: dict[str, Any]) -> None:
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "ask":
        waiting[f"ask-{request_id}"] = request_id
        send({"id": f"ask-{request_id}", "method": arguments["method"], "params": arguments.get("params", {})})
        return
    act = CALLS.get(name, text)
    result = act(arguments, params["_meta"]) if name == "progress" else act(arguments)
    if result is not None:
        send({"id": request_id, "result": result})


def answer(message: dict[str, Any]) -> None:
    request_id, params = message.get("id"), message.get("params", {})
    match message.get("method"):
        case "initialize":
            capabilities = {"tools": {"listChanged": True}, "logging": {}}
            info = {"name": "rogue", "version": "1"}
            version = params["protocolVersion"]
            send(
                {
                    "id": request_id,
                    "result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info},
                }
            )
        case "tools/list" if options.start == "mute":
            pass
        case "tools/list":
            page: dict[str, Any] = {"tools": tools()}
            if options.endless_pages:
                page["nextCursor"] = f"page-{time.monotonic_ns()}"
                page["tools"] = [{"name": page["nextCursor"], "inputSchema": OBJECT}]
            send({"id": request_id, "result": page})
        case "tools/call":
            call(request_id, params)
        case None if request_id in waiting:
            given = {key: message[key] for key in ("result", "error") if key in message}
            send({"id": waiting.pop(request_id), "result": text(given)})
        case str() if request_id is not None:
            send({"id": request_id, "error": {"code": -32601, "message": "Method not found"}})
        case _:
            pass


def start() -> None:
    match options.start:
        case "exit":
            sys.exit("cannot start: no licence, password=canary-in-stderr")
        case "hang":
            time.sleep(600)
        case "noise":
            write(b"Server is starting...\n\x1b[32mready\x1b[0m\n")
        case "flood":
            with contextlib.suppress(BrokenPipeError):
                while True:
                    write(b"x" * 65536 + b"\n")
        case "one-line":
            with contextlib.suppress(BrokenPipeError):
                while True:
                    write(b"x" * 65536)
        case "crash-on-list":
            CALLS.clear()
        case _:
            pass


if options.ignore_end:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
start()
for received in sys.stdin.buffer:
    if options.log is not None:
        with options.log.open("ab") as log:
            log.write(received)
    decoded = json.loads(received)
    if options.start == "crash-on-list" and decoded.get("method") == "tools/list":
        os._exit(9)
    answer(decoded)
if options.log is not None:
    with options.log.open("ab") as log:
        log.write(b'{"method": "end of input"}\n')
if options.ignore_end:
    time.sleep(120)  # not for ever: the parent of a failed test may have been killed
