"""`sidestream record`: a command's provider traffic becomes a recording that plays, without its secrets."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from cli.command import KEY, Run
from cli.driving import Talks
from requirements import requirement
from sidestream.testing import (
    FakeProvider,
    MessagesScript,
    Recording,
    ResponsesScript,
    error_reply,
    responses_text,
    sse,
)

PROGRAM = """
import asyncio
from sidestream import Agent, CodeInterpreter

async def main():
    result = await Agent("openai-responses", server_side_tools=[CodeInterpreter()]).send("plot")
    print(len(result.output))

asyncio.run(main())
"""


@requirement("R170")
def test_recorded_program_replays_without_secrets(sidestream: Run, tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)
    script = ResponsesScript().code_interpreter("print(1)", logs="1\n").text(f"Done, {KEY}.")
    with FakeProvider([script.reply()]).in_thread() as fake:
        done = sidestream("record", "run.json", "--", sys.executable, "program.py", base_url=fake.base_url, env=PATH)
        assert fake.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert done.returncode == 0, done.stderr
    assert "1 exchange recorded in run.json" in done.stderr
    text = (tmp_path / "run.json").read_text()
    assert KEY not in text
    (exchange,) = Recording.load(tmp_path / "run.json").exchanges
    assert (exchange.request.method, exchange.request.path) == ("POST", "/v1/responses")
    assert exchange.is_stream
    played = sidestream("replay", "run.json")
    assert played.stdout == "Done, [redacted].\n"
    assert "Ran Python" in played.stderr
    answered = sidestream("-m", "replay:run.json", "plot")
    assert answered.stdout == "Done, [redacted].\n"


PATH = {"PYTHONSAFEPATH": ""}
ME = (sys.executable, "-m", "sidestream")


@requirement("R170")
def test_cli_and_another_provider_can_be_recorded(sidestream: Run, tmp_path: Path):
    other = FakeProvider([MessagesScript().text("From the other.").reply()], base_path="")
    with other.in_thread():
        env = {"ANTHROPIC_BASE_URL": other.base_url, "ANTHROPIC_API_KEY": "sk-ant-other-secret"}
        done = sidestream("record", "a.json", *ME, "-m", "anthropic:claude-x", "Hi", env=env)
    assert (done.returncode, done.stdout) == (0, "From the other.\n")
    assert "sk-ant-other" not in (tmp_path / "a.json").read_text()
    assert sidestream("replay", "a.json").stdout == "From the other.\n"


@requirement("R170")
def test_recorded_stream_passes_through_live(talks: Talks):
    gate = asyncio.Event()
    events = responses_text(["Hel", "lo."])
    fake = FakeProvider([sse([*events[:-5], gate, *events[-5:]])])
    with fake.in_thread(), talks("record", "a.json", *ME, "chat", "-n", "Hi", base_url=fake.base_url) as talk:
        talk.expect("Hel")
        fake.release(gate)
        talk.expect("lo.")
        assert talk.end() == 0


def test_error_is_recorded_and_exit_code_is_kept(sidestream: Run, tmp_path: Path):
    with FakeProvider([error_reply(400, "bad", "no good")]).in_thread() as fake:
        done = sidestream("record", "a.json", *ME, "Hi", base_url=fake.base_url)
    assert done.returncode == 1
    (exchange,) = Recording.load(tmp_path / "a.json").exchanges
    assert exchange.response.status == 400
    assert "no good" in json.dumps(exchange.response.body)


def test_unreachable_provider_is_reported(sidestream: Run, tmp_path: Path):
    done = sidestream("record", "a.json", *ME, "-o", "max_retries", "0", "Hi", base_url="http://127.0.0.1:9/v1")
    assert done.returncode == 1
    assert "warning: a request was not forwarded: 127.0.0.1:9" in done.stderr
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("taken.json", "true"), "--force"),
        (("nowhere/a.json", "true"), "folder"),
        (("a.json", "no-such-program-at-all"), "no-such-program"),
        (("a.json",), "COMMAND"),
    ],
)
def test_invalid_record_usage_is_reported_in_one_line(
    sidestream: Run, tmp_path: Path, args: tuple[str, ...], said: str
):
    (tmp_path / "taken.json").write_text("mine")
    done = sidestream("record", *args)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert said in line
    assert (tmp_path / "taken.json").read_text() == "mine"


def test_command_without_traffic_leaves_no_file(sidestream: Run, tmp_path: Path):
    done = sidestream("record", "a.json", "true")
    assert done.returncode == 1
    assert "Nothing was recorded" in done.stderr
    assert not (tmp_path / "a.json").exists()
