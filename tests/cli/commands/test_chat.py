"""`sidestream chat` against a provider on loopback, through pipes and on a terminal."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from cli.command import KEY, Run
from cli.driving import PROMPT, Talks
from requirements import requirement
from sidestream.testing import (
    FakeProvider,
    MessagesScript,
    error_reply,
    pixel_png,
    responses_text,
    sse,
)


def said(text: str, **fields: Any) -> Any:
    return sse(responses_text(text, **fields))


def texts(request: Any) -> list[Any]:
    return [item.get("content") for item in request.json["input"]]


@requirement("R92")
def test_each_line_is_turn_and_conversation_is_kept(sidestream: Run, tmp_path: Path):
    with FakeProvider([said("Hello.", id="resp_1"), said("Fine.", id="resp_2"), said("Bye.")]).in_thread() as fake:
        done = sidestream("chat", "Hi", input="How are you?\n\n", base_url=fake.base_url)
        again = sidestream("chat", "-c", input="Good night\n", base_url=fake.base_url)
    assert (done.returncode, done.stdout) == (0, "Hello.\nFine.\n")
    assert (again.returncode, again.stdout) == (0, "Bye.\n")
    first, second, third = fake.requests
    assert texts(first) == ["Hi"]
    assert second.json["previous_response_id"] == "resp_1"
    assert third.json["previous_response_id"] == "resp_2"
    assert texts(third)[-1] == "Good night"
    (id,) = {line.split()[1].rstrip(";") for line in (done.stderr + again.stderr).splitlines() if "later:" in line}
    listed = sidestream("logs", "list")
    assert listed.stdout.startswith(id)
    assert "complete" in listed.stdout
    assert (tmp_path / ".local/share/sidestream/log.db").exists()


def test_id_chooses_or_starts_conversation_and_keeps_model(sidestream: Run):
    answers = [said(text, id=f"resp_{text}") for text in ("a", "b", "c")]
    with FakeProvider(answers).in_thread() as fake:
        sidestream("chat", "--id", "mine", "-m", "openai-responses:gpt-x", "a", base_url=fake.base_url)
        sidestream("chat", "--id", "mine", "b", base_url=fake.base_url, env={"OPENAI_API_KEY": KEY})
        sidestream("-c", "c", base_url=fake.base_url)
    assert [request.json["model"] for request in fake.requests] == ["gpt-x"] * 3
    assert [request.json.get("previous_response_id") for request in fake.requests] == [None, "resp_a", "resp_b"]


def test_no_log_option_keeps_nothing(sidestream: Run, tmp_path: Path):
    with FakeProvider([said("One.", id="resp_1"), said("Two.")]).in_thread() as fake:
        done = sidestream("chat", "--no-log", input="a\nb\n", base_url=fake.base_url)
    assert (done.stdout, done.stderr) == ("One.\nTwo.\n", "")
    assert fake.requests[1].json["previous_response_id"] == "resp_1"
    assert not (tmp_path / ".local").exists()


def test_failed_turn_prints_one_line_and_chat_continues(sidestream: Run):
    script = [error_reply(400, "bad", f"no good, {KEY}"), said("Two.")]
    with FakeProvider(script).in_thread() as fake:
        done = sidestream("chat", input="a\nb\n", base_url=fake.base_url)
        failed = sidestream("chat", input="a\n", base_url="http://127.0.0.1:9/v1")
    assert (done.returncode, done.stdout) == (0, "Two.\n")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "no good" in line
    assert texts(fake.requests[1]) == ["b"]
    assert failed.returncode == 1


@pytest.mark.parametrize("line", ["/nonsense", "/attach", "/attach nowhere.png", "/model nobody", "/resume"])
def test_failed_command_prints_one_line_and_chat_continues(sidestream: Run, line: str):
    with FakeProvider([said("Two.")]).in_thread() as fake:
        done = sidestream("chat", input=f"{line}\nb\n", base_url=fake.base_url)
    assert (done.returncode, done.stdout) == (0, "Two.\n")
    assert [text for text in done.stderr.splitlines() if text.startswith("error: ")]


def test_help_lists_commands_and_quit_exits(sidestream: Run):
    done = sidestream("chat", input="/help\n/tools\n/quit\nnever sent\n", base_url="http://127.0.0.1:9/v1")
    assert done.returncode == 0
    for word in ("/help", "/model", "/attach", "/resume", "/quit", "tools: none"):
        assert word in done.stderr


@requirement("R92")
def test_model_can_switch_provider_during_chat(sidestream: Run):
    other = FakeProvider([MessagesScript().text("From the other.").reply()], base_path="")
    with FakeProvider([said("One.")]).in_thread() as fake, other.in_thread():
        env = {"ANTHROPIC_BASE_URL": other.base_url, "ANTHROPIC_API_KEY": "sk-ant-other"}
        done = sidestream("chat", input="a\n/model anthropic:claude-x\nb\n", base_url=fake.base_url, env=env)
    assert (done.returncode, done.stdout) == (0, "One.\nFrom the other.\n")
    (request,) = other.requests
    assert request.json["model"] == "claude-x"
    assert [message["role"] for message in request.json["messages"]] == ["user", "assistant", "user"]


@requirement("R92")
def test_attachments_go_with_next_message(sidestream: Run, tmp_path: Path):
    (tmp_path / "a.png").write_bytes(pixel_png())
    (tmp_path / "notes.txt").write_text("remember the milk")
    with FakeProvider([said("One."), said("Two."), said("Three.")]).in_thread() as fake:
        done = sidestream(
            *("chat", "-a", "a.png", "look"), input="/attach notes.txt\nread\nbare\n", base_url=fake.base_url
        )
    assert done.returncode == 0
    kinds = [[part["type"] for part in texts(fake.requests[0])[-1]]]
    assert kinds == [["input_text", "input_image"]]
    assert "remember the milk" in json.dumps(texts(fake.requests[1])[-1])
    assert texts(fake.requests[2])[-1] == "bare"


@requirement("F33")
@pytest.mark.parametrize("store", ["taken/log.db", "taken"])
def test_unusable_store_is_reported_once_and_chat_continues(sidestream: Run, tmp_path: Path, store: str):
    (tmp_path / "taken").write_text("no database at all " * 1000)
    with FakeProvider([said("One.", id="resp_1"), said("Two.")]).in_thread() as fake:
        done = sidestream("chat", "--store", store, input="a\nb\n", base_url=fake.base_url)
    assert (done.returncode, done.stdout) == (1, "One.\nTwo.\n")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "the conversation is" in line
    assert fake.requests[1].json["previous_response_id"] == "resp_1"


@requirement("F33")
@pytest.mark.parametrize("args", [(), ("--json",)])
def test_logged_prompt_is_answered_and_exits_1_when_store_fails(sidestream: Run, tmp_path: Path, args: tuple[str, ...]):
    (tmp_path / "taken").write_text("a file")
    with FakeProvider([said("One.")]).in_thread() as fake:
        done = sidestream(*args, "--log", "--store", "taken/log.db", "a", base_url=fake.base_url)
    assert done.returncode == 1
    assert "One." in done.stdout
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1


@requirement("F26")
@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_stops_answer_and_keeps_chat(talks: Talks, sidestream: Run, terminal: bool):
    gate = asyncio.Event()
    events = responses_text(["Hel", "lo."])
    held = sse([*events[:-5], gate, *events[-5:]])
    with FakeProvider([held, said("Two.")]).in_thread() as fake:
        with talks("chat", "--id", "mine", "a", base_url=fake.base_url, terminal=terminal) as talk:
            talk.expect("Hel")
            if terminal:
                talk.send("\x03")
            else:
                talk.process.send_signal(signal.SIGINT)
            talk.expect("Stopped.")
            talk.expect(PROMPT if terminal else "\n")
            talk.send("b\r" if terminal else "b\n")
            talk.expect("Two.")
            talk.expect(PROMPT if terminal else "\n")
            talk.send("\x04" if terminal else "")
            assert talk.end() == 0
        asyncio.run(fake.wait_idle())
    shown = sidestream("logs", "show", "mine").stdout
    assert "cancelled" in shown
    assert texts(fake.requests[1]) == ["b"]


@requirement("R115", "R92")
def test_line_entered_during_answer_steers_it(talks: Talks, sidestream: Run):
    gate = asyncio.Event()
    events = responses_text(["Hel", "lo."], id="resp_1")
    held = sse([*events[:-5], gate, *events[-5:]])
    fake = FakeProvider([held, said("Brief.", id="resp_2"), said("Bye.")])
    with fake.in_thread(), talks("chat", "--id", "mine", "a", base_url=fake.base_url, terminal=True) as talk:
        talk.expect("Hel")
        talk.send("\r/help\r")
        talk.expect("commands work only at the prompt")
        talk.send("Be brief.\r")
        talk.expect(r"steer: Be brief\. \(pending\)")
        fake.release(gate)
        talk.expect("steer: Be brief.")
        talk.expect("Brief.")
        talk.expect(PROMPT)
        talk.send("b\r")
        talk.expect("Bye.")
        talk.expect(PROMPT)
        talk.send("\x04")
        assert talk.end() == 0
    assert [texts(request) for request in fake.requests] == [["a"], ["Be brief."], ["b"]]
    assert fake.requests[1].json["previous_response_id"] == "resp_1"
    shown = sidestream("logs", "show", "mine").stdout
    assert shown.index("Hello.") < shown.index("Be brief.") < shown.index("Brief.")


@requirement("R115", "R92")
def test_each_line_of_pipe_is_separate_message(talks: Talks):
    gate = asyncio.Event()
    events = responses_text(["Hel", "lo."], id="resp_1")
    held = sse([*events[:-5], gate, *events[-5:]])
    fake = FakeProvider([held, said("Two.")])
    with fake.in_thread(), talks("chat", "--no-log", "a", base_url=fake.base_url) as talk:
        talk.expect("Hel")
        talk.send("b\n")
        fake.release(gate)
        talk.expect("Two.")
        assert talk.end() == 0
    assert "steer" not in talk.shown
    assert [texts(request) for request in fake.requests] == [["a"], ["b"]]


@requirement("F26")
def test_ctrl_c_twice_at_empty_prompt_exits(talks: Talks):
    with talks("chat", "--no-log", base_url="http://127.0.0.1:9/v1", terminal=True) as talk:
        talk.expect(PROMPT)
        talk.send("\x03")
        talk.expect("Ctrl-C again")
        talk.expect(PROMPT)
        talk.send("\x03")
        assert talk.end() == 130


def test_escape_enter_inserts_newline_and_enter_sends(talks: Talks):
    fake = FakeProvider([said("Two lines.")])
    with fake.in_thread(), talks("chat", base_url=fake.base_url, terminal=True) as talk:
        talk.expect(PROMPT)
        talk.send("one\x1b\rtwo\r")
        talk.expect("Two lines.")
        talk.expect(PROMPT)
        talk.send("\x04")
        assert talk.end() == 0
    assert texts(fake.requests[0]) == ["one\ntwo"]


def test_model_cannot_send_control_sequences_to_terminal(talks: Talks):
    fake = FakeProvider([said("\x1b]52;c;Zm9v\x07a\x1b[2Jb\x9b31m")])
    with fake.in_thread(), talks("chat", "--no-log", "hi", base_url=fake.base_url, terminal=True) as talk:
        talk.expect("ab")
        talk.expect(PROMPT)
        talk.send("\x04")
        assert talk.end() == 0
    assert "\x1b]52" not in talk.shown
    assert "Zm9v" not in talk.shown


@pytest.mark.parametrize(
    "args",
    [
        ("--no-log", "--id", "x"),
        ("-c", "--id", "x"),
        ("-c",),
        ("-a", "-", "hi"),
        ("-a", "nowhere.png", "hi"),
        ("-a", ".", "hi"),
        ("--mcp", "nowhere.json", "hi"),
        ("--mcp", "-", "hi"),
        ("-m", "nobody", "hi"),
        ("a", "b"),
    ],
)
def test_invalid_chat_usage_prints_one_line_and_exits_2(sidestream: Run, args: tuple[str, ...]):
    done = sidestream("chat", *args, base_url="http://127.0.0.1:9/v1")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")


def test_chat_fills_template_with_each_message(sidestream: Run, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("Some notes.")
    sidestream("--save", "french", "-s", "Speak $lang.", "Translate: $input")
    args = ("chat", "-n", "-t", "french", "-p", "lang", "French", "-f", "notes.txt", "one")
    with FakeProvider([sse(responses_text("un")), sse(responses_text("deux"))]).in_thread() as fake:
        done = sidestream(*args, input="two\n", base_url=fake.base_url)
    assert (done.returncode, done.stdout) == (0, "un\ndeux\n")
    assert {request.json["instructions"] for request in fake.requests} == {"Speak French."}
    said = [request.json["input"][-1]["content"] for request in fake.requests]
    assert said == ["Some notes.\n\nTranslate: one", "Translate: two"]


def test_chat_sends_template_without_input_first(sidestream: Run):
    sidestream("--save", "joke", "-m", "openai-responses:gpt-fun", "Tell a joke.")
    with FakeProvider([sse(responses_text("Ha.")), sse(responses_text("Ho."))]).in_thread() as fake:
        sidestream("chat", "-n", "-t", "joke", input="Another.\n", base_url=fake.base_url)
        missing = sidestream("chat", "-n", "-p", "lang", "French", base_url=fake.base_url)
    assert [request.json["input"][-1]["content"] for request in fake.requests] == ["Tell a joke.", "Another."]
    assert fake.requests[0].json["model"] == "gpt-fun"
    assert (missing.returncode, "-t" in missing.stderr) == (2, True)
