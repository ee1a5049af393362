"""Calls of local MCP servers: what a person is asked, and a conversation that goes on after a crash."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.command import KEY, Run
from cli.driving import PROMPT, Talks
from requirements import requirement
from sidestream import Agent, Chat, ExternalTool, open_store, tool
from sidestream.cli.chat.approvals import ApprovalPrompt
from sidestream.messages.message import ChatMessage, ToolCallPart, ToolResultPart
from sidestream.testing import FakeProvider, ResponsesScript, error_reply, responses_text, sse
from sidestream.tools.approvals import PendingApproval
from support.children import ends, is_alive
from support.places import TESTS
from support.waiting import wait_until

ROGUE = TESTS / "support" / "mcp_servers" / "rogue.py"
SECRET = "canary-of-a-server-77a1"


def said(text: str) -> Any:
    return sse(responses_text(text))


def calls(name: str, arguments: Any, call_id: str = "call_1") -> Any:
    return ResponsesScript().function_call(name, arguments, call_id).reply()


def outputs(request: Any) -> dict[str, Any]:
    """What the model was told of the calls, by their id."""
    return {item["call_id"]: item["output"] for item in request.json["input"] if "output" in item}


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    """Writes an mcp.json with the server that does as it is told, and a secret of its own."""

    def write(*options: str) -> str:
        server = {"command": sys.executable, "args": ["-I", str(ROGUE), *options], "env": {"API_TOKEN": SECRET}}
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"rogue": server}}).replace(SECRET, "${TOKEN}"))
        return "mcp.json"

    return write


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the server writes what it gets."""
    return tmp_path / "received.jsonl"


def tool_calls(log: Path) -> list[str]:
    """The tools that were really called."""
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    messages = [json.loads(line) for line in lines]
    return [message["params"]["name"] for message in messages if message.get("method") == "tools/call"]


@requirement("R92", "R76")
def test_approved_call_is_shown_and_runs(sidestream: Run, config: Any, log: Path):
    with FakeProvider([calls("echo", {"say": "hi"}), said("Done.")]).in_thread() as fake:
        done = sidestream(
            *("chat", "--mcp", config("--log", str(log))),
            input="go\ny\n",
            base_url=fake.base_url,
            env={"TOKEN": SECRET},
        )
    assert (done.returncode, done.stdout) == (0, "Done.\n")
    lines = done.stderr.splitlines()
    at = lines.index("approval needed: echo of rogue")
    assert lines[at + 1 : at + 3] == ['  say: "hi"', "  requested by the model"]
    assert tool_calls(log) == ["echo"]
    assert "hi" in outputs(fake.requests[1])["call_1"]


@requirement("R76")
@pytest.mark.parametrize(
    ("args", "answer", "told"),
    [((), "n not on a Sunday\n", "not on a Sunday"), (("--approve", "deny"), "", "was denied")],
)
def test_denied_call_does_not_run_and_model_gets_reason(
    sidestream: Run, config: Any, log: Path, args: tuple[str, ...], answer: str, told: str
):
    with FakeProvider([calls("echo", {}), said("Fine.")]).in_thread() as fake:
        done = sidestream(
            *("chat", *args, "--mcp", config("--log", str(log))),
            input=f"go\n{answer}",
            base_url=fake.base_url,
            env={"TOKEN": SECRET},
        )
    assert (done.returncode, done.stdout) == (0, "Fine.\n")
    assert tool_calls(log) == []
    assert told in outputs(fake.requests[1])["call_1"]


def test_approve_run_option_runs_calls_without_asking(sidestream: Run, config: Any, log: Path):
    with FakeProvider([calls("echo", {}), said("Done.")]).in_thread() as fake:
        mcp = config("--log", str(log))
        done = sidestream("go", "--approve", "run", "--mcp", mcp, base_url=fake.base_url, env={"TOKEN": SECRET})
    assert (done.returncode, done.stdout) == (0, "Done.\n")
    assert tool_calls(log) == ["echo"]
    assert "approval" not in done.stderr


@requirement("R92", "R84")
@pytest.mark.parametrize("command", [("chat", "go"), ("prompt", "--log", "go")])
def test_unanswered_run_waits_and_names_resume_command(
    sidestream: Run, config: Any, log: Path, command: tuple[str, ...]
):
    with FakeProvider([calls("echo", {"say": "hi"}), said("Done.")]).in_thread() as fake:
        mcp = config("--log", str(log))
        env = {"TOKEN": SECRET}
        done = sidestream(*command, "--mcp", mcp, base_url=fake.base_url, env=env)
        assert done.returncode == 3
        (hint,) = [line for line in done.stderr.splitlines() if "Resume with: " in line]
        words = hint.partition("Resume with: sidestream ")[2].split()
        assert sidestream("logs").stdout.split()[4] == "waiting"
        unanswered = sidestream(*words, base_url=fake.base_url, env=env)
        assert unanswered.returncode == 3
        assert len(fake.requests) == 1
        resumed = sidestream(*words, input="what?\ny\n", base_url=fake.base_url, env=env)
    assert (resumed.returncode, resumed.stdout) == (0, "Done.\n")
    assert resumed.stderr.count("approval needed: echo of rogue") == 1
    assert tool_calls(log) == ["echo"]
    assert "hi" in outputs(fake.requests[1])["call_1"]


def test_unlogged_waiting_run_exits_with_same_code(sidestream: Run, config: Any, log: Path):
    with FakeProvider([calls("echo", {})]).in_thread() as fake:
        done = sidestream("go", "--mcp", config(), base_url=fake.base_url, env={"TOKEN": SECRET})
    assert done.returncode == 3
    assert "--approve run" in done.stderr


def test_new_message_drops_waiting_turn(talks: Talks, config: Any):
    with FakeProvider([calls("echo", {}), said("Something else.")]).in_thread() as fake:
        given = {"base_url": fake.base_url, "terminal": True, "env": {"TOKEN": SECRET}}
        with talks("chat", "--mcp", config(), "go", **given) as talk:
            talk.expect("Run it")
            talk.send("\x03")
            talk.expect("needs your approval")
            talk.expect(PROMPT)
            talk.send("never mind\r")
            talk.expect("Something else")
            talk.expect(PROMPT)
            talk.send("\x04")
            assert talk.end() == 0
    assert [item.get("content") for item in fake.requests[1].json["input"]] == ["never mind"]


@requirement("F41")
async def test_approval_prompt_shows_everything_without_controls():
    hostile = "rm\x1b[2K\rls \u202egpj.\x9b31m" + "x" * 1000 + "THE END"
    call = PendingApproval(
        approval_id="a",
        run_id="r",
        call_id="c",
        tool="sh\x1b[31mell",
        input={"command\u202e": hostile, "n": 1},
        digest="d",
        provenance="requested after reading https://a.example/\x1b[31mx and 2 more",
        server_label="srv\nrun it? y",
    )
    lines: list[str] = []
    answers = iter(["", "yes please", "v", "n: too \x1b odd"])

    async def read(question: str) -> str | None:
        return next(answers)

    decisions = await ApprovalPrompt(lambda text, *styles: lines.append(text), read).decide([call])
    assert decisions is not None
    assert (decisions[0].is_approved, decisions[0].reason) == (False, "too \x1b odd")
    assert all(line.isprintable() for line in lines)
    assert lines[0] == "approval needed: sh\\x1b[31mell of srv\\nrun it? y"
    assert lines[1].startswith('  command\\u202e: "rm\\u001b[2K\\rls \\u202egpj.')
    assert "1,0" in lines[1]
    assert "THE END" not in lines[1]
    assert any("THE END" in line for line in lines)
    assert "https://a.example/" in lines[3]


@requirement("R76")
@pytest.mark.parametrize(
    ("typed", "reason"), [(["y", "", "never"], None), (["y", "v", "n go away"], "go away"), ([None], None)]
)
@pytest.mark.parametrize("approve", ["ask", "run"])
async def test_external_call_can_be_denied_but_not_approved(
    typed: list[str | None], reason: str | None, approve: Any
) -> None:
    call = PendingApproval(
        approval_id="a",
        run_id="r",
        call_id="c",
        tool="ask_user",
        input={"question": "?"},
        digest="d",
        provenance="requested by the model",
        is_external=True,
    )
    lines: list[str] = []
    answers = iter(typed)

    async def read(question: str) -> str | None:
        return next(answers)

    prompt = ApprovalPrompt(lambda text, *styles: lines.append(text), read, approve)
    decisions = await prompt.decide([call], is_resumed=True)
    assert lines[0] == "external result needed: ask_user"
    assert decisions == (None if reason is None else [call.deny(reason)])


async def waiting_call(path: Path, base_url: str) -> str:
    """Leaves a conversation whose call waits for its result; returns its id."""
    store = open_store(path)
    agent = Agent("openai-responses", base_url=base_url, api_key=KEY, tools=[ExternalTool("ask_user")])
    chat = Chat(agent, store=store)
    await chat.send("go")
    await store.aclose()
    return chat.id


@requirement("R92")
def test_logged_external_call_is_shown_and_can_be_denied(sidestream: Run, tmp_path: Path) -> None:
    with FakeProvider([calls("ask_user", {"question": "Colour?"}), said("Fine.")]).in_thread() as fake:
        chat = asyncio.run(waiting_call(tmp_path / "log.db", fake.base_url))
        where = ("--store", str(tmp_path / "log.db"))
        shown = sidestream("logs", "show", chat, *where)
        assert 'external result needed: ask_user {"question":"Colour?"}' in shown.stdout + shown.stderr
        left = sidestream("logs", "resume", chat, *where, "--approve", "run", base_url=fake.base_url)
        assert left.returncode == 3
        assert "The call needs an external result." in left.stderr
        assert f"sidestream logs resume {chat} --approve run" in left.stderr
        done = sidestream("logs", "resume", chat, *where, input="y\nn later\n", base_url=fake.base_url)
    assert (done.returncode, done.stdout) == (0, "Fine.\n")
    assert "later" in outputs(fake.requests[1])["call_1"]


@requirement("R92", "R84", "F32")
def test_answer_killed_midway_resumes_without_repeating_tool(
    talks: Talks, sidestream: Run, npm_servers: Path, tmp_path: Path
):
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "minutes of May.txt").write_text("…")
    program = str(npm_servers / "server-filesystem" / "dist" / "index.js")
    server = {"command": "node", "args": [program, str(folder)]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"filesystem": server}}))
    gate = asyncio.Event()
    events = responses_text(["There is ", "one file."])
    held = sse([*events[:-5], gate, *events[-5:]])
    script = [calls("list_directory", {"path": str(folder)}), held, said("There is one file.")]
    with FakeProvider(script).in_thread() as fake:
        with talks("chat", "--mcp", "mcp.json", "What is there?", base_url=fake.base_url, terminal=True) as talk:
            id = talk.expect(r"conversation (\w+)")[1]
            talk.expect("approval needed: list_directory of filesystem")
            talk.expect("Run it")
            talk.send("y\r")
            talk.expect("There is ")
            talk.kill()
        assert sidestream("logs", "list").stdout.split()[4] == "unfinished"
        done = sidestream("logs", "resume", id, "--mcp", "mcp.json", base_url=fake.base_url)
        shown = sidestream("logs", "show", id)
    assert (done.returncode, done.stdout) == (0, "There is one file.\n")
    assert "approval" not in done.stderr
    asked, first, again = fake.requests
    assert "list_directory" in [tool["name"] for tool in asked.json["tools"]]
    assert "minutes of May.txt" in outputs(first)["call_1"]
    assert outputs(again) == outputs(first)
    for word in ("What is there?", "approved list_directory", "minutes of May.txt", "There is one file."):
        assert word in shown.stdout


@requirement("R92", "R84", "F32")
@pytest.mark.parametrize(("answer", "count"), [("y", 2), ("n", 1)])
def test_resuming_killed_tool_asks_before_running_it_again(
    talks: Talks, sidestream: Run, config: Any, log: Path, answer: str, count: int
):
    tools = [{"name": "hang", "description": "d", "inputSchema": {"type": "object", "properties": {}}}]
    log.with_name("tools.json").write_text(json.dumps(tools))
    mcp = config("--log", str(log), "--tools", str(log.with_name("tools.json")))
    env = {"TOKEN": SECRET}
    with FakeProvider([calls("hang", {}), said("Done.")]).in_thread() as fake:
        with talks("chat", "--mcp", mcp, "go", base_url=fake.base_url, env=env) as talk:
            id = talk.expect(r"conversation (\w+)")[1]
            talk.expect("approval needed: hang of rogue")
            talk.send("y\n")
            wait_until(lambda: tool_calls(log) == ["hang"])
            talk.kill()
        with talks("logs", "resume", id, "--mcp", mcp, base_url=fake.base_url, env=env) as talk:
            talk.expect("approval needed: hang")
            talk.expect("warning: it was started before the run broke off")
            talk.expect("may have run already")
            talk.expect("Run it")
            assert tool_calls(log) == ["hang"]
            assert len(fake.requests) == 1
            talk.send(f"{answer}\n")
            if answer == "n":
                talk.expect("Done.")
                assert talk.end() == 0
            else:
                wait_until(lambda: len(tool_calls(log)) == 2)
    assert tool_calls(log) == ["hang"] * count


@requirement("F26")
@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_stops_tool_then_chat_and_leaves_no_child(talks: Talks, config: Any, tmp_path: Path, terminal: bool):
    spawned = {"name": "spawn", "description": "d", "inputSchema": {"type": "object", "properties": {}}}
    (tmp_path / "tools.json").write_text(json.dumps([spawned, {**spawned, "name": "hang"}]))
    mcp = config("--ignore-end", "--log", str(tmp_path / "log"), "--tools", str(tmp_path / "tools.json"))
    script = [calls("spawn", {}), calls("hang", {}, "call_2")]
    with FakeProvider(script).in_thread() as fake:
        given = {"base_url": fake.base_url, "env": {"TOKEN": SECRET}, "terminal": terminal}
        with talks("chat", "--no-log", "--approve", "run", "--mcp", mcp, "go", **given) as talk:
            pid = int(talk.expect(r'"pid": (\d+)')[1])
            wait_until(lambda: tool_calls(tmp_path / "log") == ["spawn", "hang"])
            children = [pid, *children_of(talk.process.pid)]
            assert all(map(is_alive, children))
            talk.process.send_signal(signal.SIGINT)
            talk.expect("Stopped.")
            talk.process.send_signal(signal.SIGINT)
            assert talk.end() == 130
            assert [child for child in children if not ends(child)] == []


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_bytes().rpartition(b") ")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(name))
    return found


@requirement("F44")
def test_secrets_are_in_no_output_and_in_no_store(sidestream: Run, config: Any, tmp_path: Path):
    script = [calls("env", {}), error_reply(401, "bad_key", f"bad key {KEY}, not Bearer {KEY}")]
    with FakeProvider(script).in_thread() as fake:
        done = sidestream(
            *("chat", "--approve", "run", "--mcp", config(), "go"),
            base_url=fake.base_url,
            env={"TOKEN": SECRET, "ANTHROPIC_API_KEY": f"{KEY}-2"},
        )
        shown = [sidestream("logs", "show", *args).stdout for args in ((), ("--json",), ("--parts",), ("-v",))]
    assert done.returncode == 1
    assert fake.requests[0].headers["authorization"] == f"Bearer {KEY}"
    kept = [path for path in (tmp_path / ".local").rglob("*") if path.is_file()]
    assert any(path.name == "log.db" for path in kept)
    assert [path for path in kept if KEY.encode() in path.read_bytes()] == []
    assert KEY not in "".join(shown)
    # The server itself has told its own secret as the result of a call: that is content.
    assert SECRET in outputs(fake.requests[1])["call_1"]
    assert SECRET not in done.stderr.replace(f'"API_TOKEN": "{SECRET}"', "")


@pytest.fixture
def remote_config(tmp_path: Path) -> str:
    """An mcp.json with a server that the provider calls, and a secret for it."""
    server = {"server_label": "docs", "server_url": "https://docs.example/mcp", "authorization": "${TOKEN}"}
    (tmp_path / "mcp.json").write_text(json.dumps({"remote_servers": [server]}))
    return "mcp.json"


def requested() -> list[Any]:
    return [ResponsesScript().mcp_approval_request("docs", "search", {"q": "x"}).reply(), said("Done.")]


@requirement("R113", "R76")
@pytest.mark.parametrize(
    ("args", "input", "sent", "approved"),
    [
        ((), "y\n", "always", [True]),
        (("--approve", "ask"), "n\n", "always", [False]),
        (("--approve", "run"), "", "never", [True]),
        (("--approve", "deny"), "", "always", [False]),
    ],
)
def test_provider_calls_remote_server_under_approve_option(
    sidestream: Run, remote_config: str, args: tuple[str, ...], input: str, sent: str, approved: list[bool]
):
    with FakeProvider(requested()).in_thread() as fake:
        done = sidestream(
            *("chat", *args, "--mcp", remote_config),
            input=f"go\n{input}",
            base_url=fake.base_url,
            env={"TOKEN": SECRET},
        )
        first, second = (request.json for request in fake.requests)
    assert (done.returncode, done.stdout) == (0, "Done.\n")
    (tool,) = first["tools"]
    assert (tool["server_label"], tool["require_approval"], tool["authorization"]) == ("docs", sent, SECRET)
    assert [item["approve"] for item in second["input"] if "approve" in item] == approved
    assert ("approval needed: search of docs, run by the provider" in done.stderr) == bool(input)
    assert SECRET not in done.stderr


@requirement("R76")
@pytest.mark.parametrize("command", [(), ("chat",), ("logs", "resume")])
@pytest.mark.parametrize("word", ["always", "never"])
def test_unknown_approve_value_is_rejected_and_valid_ones_named(sidestream: Run, command: tuple[str, ...], word: str):
    done = sidestream(*command, "--approve", word, "go")
    assert done.returncode == 2
    assert all(f"'{known}'" in done.stderr for known in ("ask", "run", "deny"))


@requirement("R76", "R113")
@pytest.mark.parametrize(("own", "answer"), [(None, ""), ("always", "y\n")])
def test_resumed_call_follows_option_unless_its_server_asks(
    sidestream: Run, remote_config: str, tmp_path: Path, own: str | None, answer: str
):
    content = json.loads((tmp_path / remote_config).read_text())
    content["remote_servers"][0] |= {"require_approval": own} if own else {}
    (tmp_path / remote_config).write_text(json.dumps(content))
    with FakeProvider(requested()).in_thread() as fake:
        given: dict[str, Any] = {"base_url": fake.base_url, "env": {"TOKEN": SECRET}}
        assert sidestream("chat", "--mcp", remote_config, "go", **given).returncode == 3
        resume = ("logs", "resume", "--approve", "run", "--mcp", remote_config)
        if answer:
            assert sidestream(*resume, **given).returncode == 3
        done = sidestream(*resume, input=answer, **given)
    assert (done.returncode, done.stdout) == (0, "Done.\n")
    assert [item["approve"] for item in fake.requests[1].json["input"]] == [True]


@requirement("R171")
async def test_call_shows_differences_from_last_executed_one():
    def called(id: str, **given: Any) -> list[ChatMessage]:
        return [
            ChatMessage.model(ToolCallPart(id, "book", given)),
            ChatMessage.user(ToolResultPart(id, "book", "failed" if id == "c2" else "booked", is_error=id == "c2")),
        ]

    history = [*called("c1", train="SJ 40", seats=1, note="window"), *called("c2", train="SJ 41", seats=9)]
    given = {"train": "SJ 40", "seats": 2}
    pending = PendingApproval(
        approval_id="a1", run_id="r", call_id="c3", tool="book", input=given, digest="d", provenance="requested by you"
    )
    lines: list[str] = []

    async def read(question: str) -> str | None:
        return "y"

    prompt = ApprovalPrompt(lambda text, *styles: lines.append(text.strip()), read)
    assert await prompt.decide([pending], history) is not None
    assert 'train: "SJ 40"' in lines
    assert "seats: 2   (was 1)" in lines
    assert 'note: not given   (was "window")' in lines


@pytest.mark.parametrize("can_remember", [True, False])
async def test_tool_can_be_allowed_for_conversation_when_offered(can_remember: bool):
    pending = PendingApproval(
        approval_id="a1",
        run_id="r",
        call_id="c1",
        tool="book",
        input={},
        digest="d",
        provenance="requested by the model",
        can_remember=can_remember,
    )
    questions: list[str] = []
    answers = iter(["a lot", "a", "y"])

    async def read(question: str) -> str | None:
        questions.append(question)
        return next(answers)

    (decision,) = await ApprovalPrompt(lambda text, *styles: None, read).decide([pending]) or ()
    assert decision.is_approved
    assert (decision.grant is not None) is can_remember
    assert ("[a]lways" in questions[0]) is can_remember


async def test_remembered_approvals_are_listed_and_revoked_by_command(sidestream: Run, tmp_path: Path):
    with FakeProvider([calls("book", {}), said("Booked.")]).in_thread() as fake:
        store = open_store(tmp_path / "talks.db")
        book = tool(approval="ask", name="book")(lambda: "booked")
        chat = Chat(
            Agent("openai-responses", base_url=fake.base_url, api_key=KEY, tools=[book]), store=store, id="mine"
        )
        waiting = await chat.send("Book.")
        await chat.resume([pending.approve(remember="conversation") for pending in waiting.approvals])
        await store.aclose()
        lines = ["/allowed", "/allowed drive", "/allowed book", "/allowed"]
        command = asyncio.to_thread(
            sidestream, "chat", "--id", "mine", input="\n".join(lines), env={"SIDESTREAM_STORE": "talks.db"}
        )
        done = await command
    shown = [line for line in done.stderr.splitlines() if "allowed in this conversation" in line]
    assert [line.rpartition(": ")[2] for line in shown if "/allowed to list" not in line] == ["book", "none", "none"]
    assert "drive is not allowed in this conversation" in done.stderr
