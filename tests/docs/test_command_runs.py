"""Command lines of the README and the docs run: in a home of their own, against a fake provider and real local parts."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from cli.command import COMMAND, KEY
from docs.test_commands import PAGES, ROOT, shell_lines
from providers.local.embedded import skip_without
from requirements import requirement
from sidestream import Agent, Chat, open_store
from sidestream.providers.local.files import PACKAGES, folder_of
from sidestream.testing import (
    FakeProvider,
    MessagesScript,
    Received,
    Reply,
    ResponsesScript,
    json_reply,
    pixel_png,
)
from support.mcp_servers.peers import HERE
from support.portable_index import pdf_of
from support.warm import Warm, run

skip_without("xllamacpp", "numpy", "safetensors", "tokenizers", model="smollm2-135m")

CANNOT = {
    "sidestream local install": "it downloads 180 MB from the package index",
    "sidestream local remove": "it removes what `local install` added",
    "sidestream logs resume 3f2a --mcp mcp.json": "it needs a turn that was left: tests/cli/chat/test_approvals.py",
    "sidestream mcp logout docs": "it needs a server that somebody signed in to: tests/cli/commands/test_mcp_login.py",
    "sidestream mcp login docs": "it waits for a person in a browser: tests/cli/commands/test_mcp_login.py",
    "sidestream mcp login docs --mcp other.json --scope write --no-browser --timeout 60": "as above",
    "sidestream serve --host 0.0.0.0 --token TOKEN_OF_ANNA_FOR_EXAMPLE --allow-host chat.example.com --allow-origin https://app.example.com": (
        "it would listen on all addresses of this machine: tests/server/test_security.py"
    ),
}
"""Line → why it is not run here."""
CANNOT_BEGIN = {
    "sidestream logs migrate ": "its database is the reader's; tests/store/test_schema.py migrates real ones",
    "sidestream worker ": "its databases and engines are the reader's; tests/cli has workers on real ones",
    "sidestream runs show ": "this and the next: they need a run in progress, which tests/cli has",
    "sidestream runs tail ": "as above",
    "sidestream runs cancel ": "as above",
    "sidestream runs resume ": "as above",
    "sidestream runs approve ": "as above",
    "sidestream runs deny ": "as above",
    "sidestream runs fork ": "it needs the agent of the run; tests/agent/test_forks.py has one",
}
"""How lines begin that are not run here → why."""
STATUS = {
    'sidestream -m gpt-5 "Hi"': 2,
    'sidestream -o temperatur 0 "Hi"': 2,
    'sidestream -T web_search:context=high "Hi"': 2,
}
"""Lines that the docs show because they fail → with which exit code."""
INPUT = {"sidestream keys set anthropic": "sk-ant-typed\n"}
"""Line → what a person types; `/exit` to the others."""
NEEDS_SHELL = re.compile(r"[|&;<>()$`*?~\[\]{}#!]")
QUOTED = re.compile(r"'[^']*'|\"[^\"$`\\!]*\"")
"""What a shell takes as it is."""
CONVERSATION = "3f2a9c51d0e74b68"


def vectors(request: Received) -> Reply:
    """A vector for each text."""
    data = [{"index": index, "embedding": [float(index), 1.0]} for index in range(len(request.json["input"]))]
    return json_reply({"data": data, "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}})


def google_vectors(request: Received) -> Reply:
    """The same in Google's form."""
    return json_reply({"embeddings": [{"values": [float(at), 1.0]} for at in range(len(request.json["requests"]))]})


def fake_provider() -> FakeProvider:
    """Answers whatever the docs ask, at every vendor."""
    fake = FakeProvider()

    def answer(request: Received) -> Reply:
        person = '{"name": "Ada", "age": 36}'
        others = ', {"name": "Alan", "age": 41}'
        text = f'{{"items": [{person}{others}]}}' if b'"items"' in request.body else person
        return ResponsesScript().text(text).reply()

    fake.on("POST", "*/responses", answer)
    fake.on("POST", "*/messages", MessagesScript().text("Hello.").reply())
    fake.on("POST", "*/embeddings", vectors)
    fake.on("POST", "*:batchEmbedContents", google_vectors)
    fake.on("GET", "*/models", json_reply({"object": "list", "data": [{"id": "gpt-5.6", "object": "model"}]}))
    return fake


async def log_of(path: Path, base_url: str) -> None:
    """A conversation under the id that the docs use."""
    path.parent.mkdir(parents=True)
    store = open_store(path)
    async with aclosing(store), Agent("openai-responses", base_url=base_url, api_key=KEY) as agent:
        await Chat(agent, store=store, id=CONVERSATION).send("How long is the longest totality of an eclipse?")


def prepare(home: Path) -> None:
    """The files that the docs name."""
    (home / "photo.jpg").write_bytes(pixel_png())
    for name in ("notes.txt", "essay.txt", "titles.txt"):
        (home / name).write_text("Machine learning\nCooking\n")
    function = 'def get_weather(city: str) -> str:\n    """The weather."""\n    return "sunny"\n'
    (home / "tools.py").write_text(function.replace("weather", "time"))
    (home / "mytools.py").write_text(function)
    (home / "mybot.py").write_text('from sidestream import Agent\nagent = Agent("openai-responses")\n')
    (home / "my_agent.py").write_text(
        'from sidestream import Agent\nprint(Agent("openai-responses").send_sync("Hi").text)\n'
    )
    server = {"command": sys.executable, "args": ["-I", str(HERE / "patient.py"), str(home)]}
    (home / "mcp.json").write_text(json.dumps({"mcpServers": {"docs": server}}))
    (home / "docs").mkdir()
    (home / "docs" / "retries.md").write_text("# Retries\n\nRetries are configured with `Agent(retries=…)`.\n")
    (home / "handbook.pdf").write_bytes(pdf_of(["A handbook about retries."]))
    (home / "models").mkdir()
    (home / "models" / "qwen.gguf").symlink_to(next(folder_of(PACKAGES["smollm2-135m"]).glob("*.gguf")))


def environment(home: Path, base_url: str) -> dict[str, str]:
    """Nothing of the machine's own settings and keys."""
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), KEY)
    urls = dict.fromkeys(("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"), base_url)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    usual = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "SSL_CERT_FILE": os.environ["SSL_CERT_FILE"]}
    return {**usual, "PYTHONPATH": str(home), **keys, **urls}


def plain(line: str) -> list[str] | None:
    """The command of a line that needs no shell; the others run in a shell, with the installed script."""
    words = shlex.split(line)
    return [*COMMAND, *words[1:]] if words[0] == "sidestream" and not NEEDS_SHELL.search(QUOTED.sub("", line)) else None


def stopped(line: str, mark: str, **settings: Any) -> str | None:
    """Runs a line until it has printed the mark, then interrupts it; what it printed, if the mark was not in it."""
    process = Warm(
        plain(line) or ["bash", "-c", f"exec {line}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **settings,
    )
    printed = ""
    try:
        assert process.stdout is not None
        while mark not in printed and (read := process.stdout.readline()):
            printed += read
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(60)
    return None if mark in printed else printed


def problem_with(line: str, **settings: Any) -> str | None:
    """Runs a line to its end, or until it serves or follows; what went wrong, if anything."""
    if line.startswith("sidestream serve") and "--list" not in line:
        return stopped(f"{line} --port 0", "http://127.0.0.1:", **settings)  # The port of the docs may be taken.
    if line.startswith("sidestream logs tail"):
        return stopped(line, "Ada", **settings)
    if line.startswith("sidestream -m local") and line.endswith('"'):
        line += " -o max_tokens 16"  # How long the model would speak is a matter of chance.
    done = run(
        plain(line) or ["bash", "-c", f"set -o pipefail; {line}"],
        input=INPUT.get(line, "/exit\n" if " chat" in line else ""),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        **settings,
    )
    is_right = done.returncode == STATUS.get(line, 0) and "Traceback" not in done.stderr
    return None if is_right else f"{done.returncode}: {done.stdout[-300:]}{done.stderr[-600:]}"


PAGES_WITH_LINES = {
    path.relative_to(ROOT).as_posix(): lines for path in PAGES if (lines := shell_lines(path.read_text("utf-8")))
}


@requirement("R172")
@pytest.mark.parametrize("page", PAGES_WITH_LINES)
@pytest.mark.timeout(600)
def test_command_lines_of_page_run(page: str, tmp_path: Path):
    prepare(tmp_path)
    wrong: dict[str, str] = {}
    with fake_provider().in_thread() as fake:
        asyncio.run(log_of(tmp_path / ".local" / "share" / "sidestream" / "log.db", fake.base_url))
        settings: Any = {"env": environment(tmp_path, fake.base_url), "cwd": tmp_path}
        for line in PAGES_WITH_LINES[page]:
            is_run = line not in CANNOT and "…" not in line and not line.startswith(tuple(CANNOT_BEGIN))
            if is_run and (problem := problem_with(line, **settings)) is not None:
                wrong[line] = problem
    assert wrong == {}


def test_skipped_command_lines_are_still_in_docs():
    lines = {line for found in PAGES_WITH_LINES.values() for line in found}
    assert (CANNOT.keys() | STATUS.keys() | INPUT.keys()) - lines == set()
    assert all(any(line.startswith(beginning) for line in lines) for beginning in CANNOT_BEGIN)
