"""`sidestream "prompt"` against a provider on loopback."""

import asyncio
import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from cli.command import COMMAND, KEY, Run
from requirements import requirement
from sidestream.parts import File, TextDelta, part_from_json
from sidestream.stream import grammar
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    MessagesScript,
    Reply,
    ResponsesScript,
    error_reply,
    html_page,
    pixel_png,
    responses_text,
    sse,
)
from support.children import started
from support.citations import citing
from support.sandboxes import needs
from support.web_pages import page, serve


def test_only_answer_goes_to_stdout(sidestream: Run):
    with FakeProvider([sse(responses_text("Hello you."))]).in_thread() as fake:
        done = sidestream("-m", "openai-responses:gpt-x", "--system", "Be brief.", "Hi", base_url=fake.base_url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello you.\n", "")
    (request,) = fake.requests
    assert request.json["model"] == "gpt-x"
    assert request.json["instructions"] == "Be brief."
    assert request.headers["authorization"] == f"Bearer {KEY}"


def test_model_is_read_from_environment(sidestream: Run):
    with FakeProvider([sse(responses_text("Hello"))]).in_thread() as fake:
        done = sidestream("Hi", base_url=fake.base_url, env={"SIDESTREAM_MODEL": "openai-responses:gpt-env"})
    assert done.returncode == 0
    assert fake.requests[0].json["model"] == "gpt-env"


def test_base_url_option_overrides_environment(sidestream: Run):
    with FakeProvider([sse(responses_text("Hello"))]).in_thread() as fake:
        done = sidestream("--base-url", fake.base_url, "Hi", base_url="http://127.0.0.1:9/v1")
    assert done.stdout == "Hello\n"


@pytest.mark.parametrize(
    ("args", "piped", "sent"),
    [
        (("-",), "from a pipe\n", "from a pipe"),
        ((), "from a pipe\n", "from a pipe"),
        (("Summarise this",), "a text\n", "Summarise this\n\na text"),
        (("Hi",), "", "Hi"),
    ],
)
def test_prompt_is_read_from_arguments_and_stdin(sidestream: Run, args: tuple[str, ...], piped: str, sent: str):
    with FakeProvider([sse(responses_text("Hello"))]).in_thread() as fake:
        done = sidestream(*args, base_url=fake.base_url, input=piped)
    assert done.returncode == 0
    assert fake.requests[0].json["input"] == [{"role": "user", "content": sent}]


def test_json_prints_every_part_and_nothing_to_stderr(sidestream: Run):
    escape = "\x1b[31mred\x1b[0m"
    script = ResponsesScript().web_search("news").text([escape])
    with FakeProvider([script.reply()]).in_thread() as fake:
        done = sidestream("--json", "-T", "web_search", "Hi", base_url=fake.base_url)
    parts = [part_from_json(line) for line in done.stdout.splitlines()]
    grammar.check(parts)
    assert [part.delta for part in parts if isinstance(part, TextDelta)] == [escape]
    assert (done.returncode, done.stderr) == (0, "")
    assert fake.requests[0].json["tools"][0]["type"] == "web_search"


def test_non_streaming_answer_prints_same_output(sidestream: Run):
    script = ResponsesScript().code_interpreter("print(1)", logs="1\n").text("Done.")
    with FakeProvider([script.reply(), script.whole_reply()]).in_thread() as fake:
        streamed = sidestream("Hi", base_url=fake.base_url)
        whole = sidestream("--no-stream", "Hi", base_url=fake.base_url)
    assert streamed.stdout == whole.stdout == "Done.\n"
    assert fake.requests[1].json["stream"] is False
    for done in (streamed, whole):
        assert "  │ print(1)\n" in done.stderr
        assert "  │ 1\n" in done.stderr


BLOCKS = """Here:

```python
print(1)
```

and:

~~~~sh
ls ```
~~~~
"""


@pytest.mark.parametrize(
    ("option", "answer", "printed"),
    [
        ("-x", BLOCKS, "print(1)\n"),
        ("--xl", BLOCKS, "ls ```\n"),
        ("--extract", "```\ncut off", "cut off\n"),
        ("--extract-last", "None here.", "None here.\n"),
    ],
)
def test_only_code_block_is_printed(sidestream: Run, option: str, answer: str, printed: str):
    with FakeProvider([sse(responses_text(answer))]).in_thread() as fake:
        done = sidestream(option, "Hi", base_url=fake.base_url)
    assert (done.returncode, done.stdout) == (0, printed)
    assert ("has no code block" in done.stderr) == (answer == "None here.")


@pytest.mark.parametrize(
    "args", [("-x", "--json"), ("-x", "--xl"), ("--schema", "a", "--schema-multi", "b"), ("--key", " ")]
)
def test_contradicting_options_are_refused(sidestream: Run, args: tuple[str, ...]):
    done = sidestream(*args, "Hi")
    assert (done.returncode, done.stdout) == (2, "")


def test_schema_multi_requests_list_of_items(sidestream: Run):
    with FakeProvider([sse(responses_text('{"items": []}'))]).in_thread() as fake:
        done = sidestream("--schema-multi", "name, age int", "Hi", base_url=fake.base_url)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"items": []})
    schema = fake.requests[0].json["text"]["format"]["schema"]
    assert list(schema["properties"]) == ["items"]
    assert list(schema["properties"]["items"]["items"]["properties"]) == ["name", "age"]


def test_query_selects_first_matching_model(sidestream: Run):
    with FakeProvider([sse(responses_text("Hi."))] * 2).in_thread() as fake:
        done = sidestream("-q", "GPT", "-q", "mini", "Hi", base_url=fake.base_url)
        default = sidestream("-q", "gpt", "Hi", base_url=fake.base_url, env={"SIDESTREAM_MODEL": "anthropic"})
        missing = sidestream("-q", "haiku", "Hi", base_url=fake.base_url)
    model, second = (request.json["model"] for request in fake.requests)
    assert "mini" in model
    assert done.stderr == f"model: openai-responses:{model} (-q GPT mini)\n"
    assert (second, default.returncode) == ("gpt-5.6", 0)
    assert (missing.returncode, "no known model contains haiku" in missing.stderr) == (2, True)


def test_key_option_takes_key_or_stored_name(sidestream: Run):
    stored, given = "sk-stored-0123456789", "sk-given-0123456789"
    sidestream("keys", "set", "WORK_KEY", input=stored)
    with FakeProvider([sse(responses_text("Hi."))] * 2).in_thread() as fake:
        for key in ("WORK_KEY", given):
            done = sidestream("--key", key, "--log", "--store", "talks.db", "Hi", base_url=fake.base_url)
            assert (done.returncode, done.stdout) == (0, "Hi.\n")
    sent = [request.headers["authorization"] for request in fake.requests]
    assert sent == [f"Bearer {stored}", f"Bearer {given}"]


def test_functions_option_takes_python_code(sidestream: Run, tmp_path: Path):
    (tmp_path / "default.py").write_text("def triple(x: int) -> int:\n    return 3 * x\n")
    code = "def double(x: int) -> int: return 2 * x"
    replies = [ResponsesScript().function_call("double", {"x": 4}, "c1").reply(), sse(responses_text("8."))]
    with FakeProvider(replies).in_thread() as fake:
        done = sidestream("--functions", code, "--functions", "default.py", "Hi", base_url=fake.base_url)
        wrong = sidestream("--functions", "def double(x", "Hi", base_url=fake.base_url)
    assert (done.returncode, done.stdout) == (0, "8.\n")
    assert [tool["name"] for tool in fake.requests[0].json["tools"]] == ["double", "triple"]
    assert fake.requests[1].json["input"][-1]["output"] == "8"
    assert (wrong.returncode, "SyntaxError" in wrong.stderr) == (2, True)


def anthropic(fake: FakeProvider) -> dict[str, str]:
    """What the environment of a command needs for this provider."""
    return {"ANTHROPIC_BASE_URL": fake.base_url, "ANTHROPIC_API_KEY": KEY, "SIDESTREAM_MODEL": "anthropic"}


def test_uncited_search_results_are_folded_links(sidestream: Run):
    found = [{"type": "web_search_result", "url": f"https://a.example/{at}", "title": f"Page {at}"} for at in range(8)]
    cited = {
        "type": "web_search_result_location",
        "url": "https://a.example/1",
        "title": "Page 1",
        "cited_text": "rain",
    }
    script = MessagesScript().web_search("rain", found).text("It rains.", citations=[cited])
    with FakeProvider([script.reply(), script.reply()]).in_thread() as fake:
        done = sidestream("-T", "web_search", "--log", "Hi", env=anthropic(fake))
        verbose = sidestream("-v", "-T", "web_search", "Hi", env=anthropic(fake))
    assert done.stderr.splitlines()[1:] == [
        "Searched “rain” · 8 pages",
        "sources:",
        "  [1] Page 1  https://a.example/1",
        "      “rain”",
        "  Page 0  https://a.example/0",
        "  Page 2  https://a.example/2",
        "  Page 3  https://a.example/3",
        "  … and 4 more that are not cited; -v lists them",
    ]
    assert verbose.stderr.count("https://a.example/") == 8
    assert sidestream("logs", "files").stdout == ""


def test_edited_file_is_shown_without_editor_command(sidestream: Run):
    edit = {"command": "create", "path": "/tmp/a.py", "file_text": "print(1)\n"}
    created = {"type": "text_editor_code_execution_create_result", "is_file_update": False}
    with FakeProvider([MessagesScript().text_editor(edit, created).text("Done.").reply()]).in_thread() as fake:
        done = sidestream("-T", "code_interpreter", "Hi", env=anthropic(fake))
    assert done.stderr.startswith("Writing code…\n  │ print(1)\n")


def test_progress_goes_to_stderr(sidestream: Run):
    citation = {"type": "url_citation", "url": "https://a.example/x", "title": "A page", "start_index": 0}
    script = (
        ResponsesScript()
        .reasoning("Let me look.")
        .web_search("rain in Rome", sources=["https://a.example/x"])
        .image(partials=2)
        .text("It rains.", annotations=[{**citation, "end_index": 9}])
    )
    with FakeProvider([script.reply()]).in_thread() as fake:
        done = sidestream("-v", "--thinking", "low", "Hi", base_url=fake.base_url)
    assert done.stdout == "It rains.\n"
    wanted = [
        "model: gpt-5.6",
        "Thinking…",
        "  │ Let me look.",
        "Searched “rain in Rome” · 1 page",
        "Made an image",
        "file: image_2.png (image/png, 69 B); --out DIR saves it",
        "sources:",
        "  [1] A page  https://a.example/x",
        "usage: 36 tokens in",
    ]
    lines = iter(done.stderr.splitlines())
    assert [want for want in wanted if not any(line.startswith(want) for line in lines)] == []
    assert "\x1b" not in done.stderr


@requirement("R100")
@pytest.mark.parametrize(
    ("level", "effort", "is_shown"), [("high", "high", True), ("on", "medium", True), ("off", "none", False)]
)
def test_reasoning_is_requested_at_level_and_shown(sidestream: Run, level: str, effort: str, is_shown: bool):
    script = ResponsesScript().reasoning("Let me look.").text("It rains.")
    with FakeProvider([script.reply()]).in_thread() as fake:
        done = sidestream("--thinking", level, "Hi", base_url=fake.base_url)
        sent = fake.requests[0].json["reasoning"]
    assert (done.returncode, done.stdout) == (0, "It rains.\n")
    assert sent == ({"effort": effort, "summary": "auto"} if is_shown else {"effort": effort})
    assert ("Let me look." in done.stderr) is is_shown


@requirement("R100")
@pytest.mark.parametrize(("level", "word"), [("hard", "medium"), ("0", "medium"), ("4096", "budget")])
def test_unknown_or_unsupported_reasoning_level_is_usage_error(sidestream: Run, level: str, word: str):
    done = sidestream("--thinking", level, "Hi", base_url="http://127.0.0.1:1/v1")
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr


def test_model_cannot_send_control_sequences_to_terminal(sidestream: Run):
    link = "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\"
    script = (
        ResponsesScript()
        .reasoning("think\x1b[2J")
        .web_search("\x1b]0;title\x07query\rover")
        .code_interpreter(["pri", "nt('\x1b[3", "1m')\x07"], logs="\x9b31mred\n")
        .text(["a\x1b", f"]52;c;Zm9v\x07b{link}\x1b[", "31mc\r\nd\te\x00"])
    )
    with FakeProvider([script.reply()]).in_thread() as fake:
        done = sidestream("--thinking", "on", "Hi", base_url=fake.base_url)
    assert done.stdout == "abclickc\nd\te\n"
    assert [c for c in done.stderr if (c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f"] == []
    assert "  │ print('')\n" in done.stderr


def test_files_are_saved_under_safe_names_without_overwriting(sidestream: Run, tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "passwd.png").write_bytes(b"mine")
    text = "[file](sandbox:/x)"
    citation = {"type": "container_file_citation", "container_id": "cntr_1", "file_id": "cfile_1"}
    citation |= {"filename": "../../passwd.png", "start_index": 0, "end_index": len(text)}
    script = ResponsesScript().code_interpreter("1", container_id="cntr_1").text(text, annotations=[citation])
    with FakeProvider([script.reply(), script.reply()]).in_thread() as fake:
        fake.add_file("/v1/containers/cntr_1/files/cfile_1/content", pixel_png())
        done = sidestream("--out", "out", "Hi", base_url=fake.base_url)
        as_json = sidestream("--json", "--out", "new/out", "Hi", base_url=fake.base_url)
    assert (done.returncode, as_json.returncode) == (0, 0)
    assert f"saved as {Path('out', 'passwd-1.png')}" in done.stderr
    files = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*.png")}
    assert files == {
        "out/passwd.png": b"mine",
        "out/passwd-1.png": pixel_png(),
        "new/out/passwd.png": pixel_png(),
    }
    (told,) = [part for line in as_json.stdout.splitlines() if isinstance(part := part_from_json(line), File)]
    assert told.name == "../../passwd.png"


def test_uncreatable_folder_is_reported_before_sending(sidestream: Run, tmp_path: Path):
    (tmp_path / "taken").write_text("a file")
    with FakeProvider().in_thread() as fake:
        done = sidestream("--out", "taken/out", "Hi", base_url=fake.base_url)
    assert done.returncode == 2
    assert fake.requests == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no files")
@pytest.mark.parametrize("args", [(), ("--json",)])
def test_unsaved_file_is_reported_and_fails_command(sidestream: Run, args: tuple[str, ...]):
    with FakeProvider([ResponsesScript().image().text("Done.").reply()]).in_thread() as fake:
        done = sidestream(*args, "--out", "/proc/self", "Hi", base_url=fake.base_url)
    assert done.returncode == 1
    assert "Done." in done.stdout
    assert "image_0.png" in done.stderr


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (error_reply(401, "invalid_api_key", f"Incorrect API key: {KEY}"), "OPENAI_API_KEY"),
        (error_reply(404, "model_not_found", "no such model"), "no such model"),
        (error_reply(429, "slow_down", "too fast", {"retry-after": "1000"}), "too fast"),
        (html_page(), "base URL"),
        (ResponsesScript().text("Hel").failed("server_error", "it broke").reply(), "it broke"),
        (sse(responses_text("Hello"), cut_after_bytes=2000), "again"),
    ],
)
def test_failed_run_prints_reason_in_one_line(sidestream: Run, reply: Reply, said: str):
    with FakeProvider([reply, reply]).in_thread() as fake:
        done = sidestream("Hi", base_url=fake.base_url)
        as_json = sidestream("--json", "Hi", base_url=fake.base_url)
    assert done.returncode == as_json.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
    grammar.check([part_from_json(line) for line in as_json.stdout.splitlines()])
    assert as_json.stderr == ""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (ResponsesScript().text("Hel").incomplete(), "output limit"),
        (ResponsesScript().text("Hel").incomplete("content_filter"), "content filter"),
        (ResponsesScript().refusal("No."), "declined"),
    ],
)
def test_unusual_finish_is_reported_in_one_line_with_exit_0(sidestream: Run, script: ResponsesScript, said: str):
    with FakeProvider([script.reply()]).in_thread() as fake:
        done = sidestream("Hi", base_url=fake.base_url)
    assert done.returncode == 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("stopped: ")]
    assert said in line


@requirement("R92")
def test_call_awaiting_approval_exits_with_code_3(sidestream: Run):
    script = ResponsesScript().mcp_approval_request("shop", "buy", {"item": "tea"})
    with FakeProvider([script.reply()]).in_thread() as fake:
        done = sidestream("Hi", base_url=fake.base_url)
    assert done.returncode == 3
    assert "approval needed: buy of shop, run by the provider" in done.stderr
    assert '  item: "tea"' in done.stderr


@requirement("R92")
def test_files_stdin_and_urls_are_attached_by_type(sidestream: Run, tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(pixel_png())
    (tmp_path / "b.bin").write_text("plain words")
    (tmp_path / "c").write_bytes(b"%PDF-1.4 and so on")
    url = "https://a.example/b.png"
    args = [word for name in ("a.txt", "b.bin", "c", "-", url) for word in ("-a", name)]
    with FakeProvider([sse(responses_text("Hello"))]).in_thread() as fake:
        done = sidestream(*args, "Look", input="from a pipe", base_url=fake.base_url)
    assert done.returncode == 0, done.stderr
    (message,) = fake.requests[0].json["input"]
    text, image, words, document, piped, link = message["content"]
    assert text == {"type": "input_text", "text": "Look"}
    assert image["image_url"].startswith("data:image/png;base64,")
    assert (words["type"], "plain words" in words["text"], "b.bin" in words["text"]) == ("input_text", True, True)
    assert document["file_data"].startswith("data:application/pdf;base64,")
    assert "from a pipe" in piped["text"]
    assert link["image_url"] == url


@requirement("R193")
def test_attached_data_goes_to_container_of_code_tool(sidestream: Run, tmp_path: Path):
    needs("bubblewrap")
    (tmp_path / "sales.csv").write_bytes(b"region,units\n" + b"North,12\n" * 100_000)
    (tmp_path / "plot.png").write_bytes(pixel_png())
    code = {"code": "print(sum(1 for _ in open('sales.csv')))"}
    script = [ChatScript().tool_call("code_interpreter", code).reply(), ChatScript().text("100001 rows").reply()]
    with FakeProvider(script).in_thread() as fake:
        flags = ("-m", "openai:m", "-T", "code_interpreter", "-a", "sales.csv", "-a", "plot.png", "Count.")
        done = sidestream(*flags, base_url=fake.base_url)
    assert done.stdout == "100001 rows\n"
    first, last = (request.json["messages"] for request in fake.requests)
    assert [entry["type"] for entry in first[0]["content"]] == ["text", "text", "image_url"]
    assert "sales.csv (text/csv, 900013 bytes)" in first[0]["content"][1]["text"]
    assert "100001" in last[-1]["content"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.png", "No such file"),
        (".", "folder"),
        ("empty", "empty"),
        ("long", "32 MB"),
        ("/dev/zero", "32 MB"),
        ("latin.txt", "UTF-8"),
        ("https://", "host"),
    ],
)
def test_invalid_attachment_is_one_line_and_nothing_is_sent(sidestream: Run, tmp_path: Path, name: str, said: str):
    (tmp_path / "empty").touch()
    (tmp_path / "latin.txt").write_bytes(b"x" * 2000 + "é".encode("latin-1"))
    with (tmp_path / "long").open("wb") as long:
        long.truncate(33_000_000)
    with FakeProvider().in_thread() as fake:
        done = sidestream("-a", name, "Look", base_url=fake.base_url)
    assert (done.returncode, done.stdout, fake.requests) == (2, "", [])
    (line,) = done.stderr.splitlines()
    assert said in line


@requirement("R92")
def test_logged_prompt_can_be_continued(sidestream: Run):
    script = [sse(responses_text("One.", id="resp_1")), sse(responses_text("Two.")), sse(responses_text("Three."))]
    with FakeProvider(script).in_thread() as fake:
        first = sidestream("--log", "a", base_url=fake.base_url)
        second = sidestream("-c", "b", base_url=fake.base_url)
        third = sidestream("c", base_url=fake.base_url)
    assert [done.stdout for done in (first, second, third)] == ["One.\n", "Two.\n", "Three.\n"]
    assert first.stderr == second.stderr
    assert fake.requests[1].json["previous_response_id"] == "resp_1"
    assert "previous_response_id" not in fake.requests[2].json
    assert len(sidestream("logs").stdout.splitlines()) == 1


@pytest.mark.parametrize("is_file", [False, True])
def test_schema_types_answer(sidestream: Run, tmp_path: Path, is_file: bool):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    given = "schema.json" if is_file else json.dumps(schema)
    with FakeProvider([sse(responses_text('{"n": 5}'))]).in_thread() as fake:
        done = sidestream("--schema", given, "How many?", base_url=fake.base_url)
    assert (done.returncode, done.stdout) == (0, '{"n": 5}\n')
    assert fake.requests[0].json["text"]["format"]["schema"]["properties"] == {"n": {"type": "integer"}}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--schema", "nowhere.json", "Hi"), "nowhere.json"),
        (("--schema", "{", "Hi"), "JSON"),
        (("--mcp", "nowhere.json", "Hi"), "nowhere.json"),
        (("-c", "Hi"), "no conversation"),
        (("-T", "web_serch", "Hi"), "web_search"),
        (("-T", "mcp", "Hi"), "needs"),
        (("-m", "nobody", "Hi"), "nobody"),
        (("-m", "openai-responses", "Hi"), "OPENAI_API_KEY"),
        (("Hi", "you"), "quotes"),
        (("--bogus", "Hi"), "--bogus"),
        (("   ",), "prompt"),
        ((), "prompt"),
    ],
)
def test_invalid_prompt_usage_prints_one_line_and_exits_2(sidestream: Run, args: tuple[str, ...], said: str):
    base_url = None if "openai-responses" in args else "http://127.0.0.1:9/v1"
    env = {"OPENAI_API_KEY": ""} if base_url is None else {}
    done = sidestream(*args, base_url=base_url, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_non_utf8_stdin_is_rejected(environment: dict[str, str]):
    env = {**environment, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    done = subprocess.run(
        [*COMMAND, "Hi"], env=env, input=b"\xff\xfe\x00", capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert b"UTF-8" in done.stderr


@pytest.mark.parametrize("args", [("Hi",), ("--json", "Hi")])
def test_closed_pipe_exits_quietly(sidestream: Run, args: tuple[str, ...]):
    reader, writer = os.pipe()
    os.close(reader)
    with FakeProvider([sse(responses_text("Hello"))]).in_thread() as fake:
        done = sidestream(*args, base_url=fake.base_url, stdout=writer)
        asyncio.run(fake.wait_idle())
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_full_disk_is_reported(sidestream: Run):
    with FakeProvider([sse(responses_text("Hello"))]).in_thread() as fake, open("/dev/full", "w") as full:
        done = sidestream("Hi", base_url=fake.base_url, stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")


def test_ctrl_c_closes_connection(environment: dict[str, str]):
    events = responses_text("Hello you.")
    stalled = sse(events[: -len(["text done", "part done", "item done", "completed"])], stall_after_bytes=1_000_000)
    with FakeProvider([stalled]).in_thread() as fake:
        env = {**environment, "OPENAI_BASE_URL": fake.base_url}
        pipe = subprocess.PIPE
        with started(*COMMAND, "Hi", env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as command:
            assert command.stdout is not None
            assert command.stdout.read(5) == b"Hello"
            command.send_signal(signal.SIGINT)
            out, err = command.communicate(timeout=30)
        asyncio.run(fake.wait_idle())
    assert command.returncode == 130
    assert out in (b"\n", b" you.\n")
    assert b"Traceback" not in err


@requirement("R171")
@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_terminal_without_colour_shows_plain_text(environment: dict[str, str], plain: dict[str, str]):
    script = ResponsesScript().web_search("news").text("**Hello**")
    with FakeProvider([script.reply()]).in_thread() as fake:
        screen = on_a_terminal("Hi", env={**environment, "OPENAI_BASE_URL": fake.base_url, **plain})
    assert screen == "Searched “news”\r\n\r\n**Hello**\r\n"


def on_a_terminal(*args: str, env: dict[str, str]) -> str:
    """What a terminal gets to show."""
    terminal, theirs = pty.openpty()
    with started(*COMMAND, *args, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs) as command:
        os.close(theirs)
        shown = bytearray()
        while True:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # The other end is closed: all has been read.
                break
        assert command.wait(timeout=30) == 0
    os.close(terminal)
    return shown.decode()


def test_usage_shows_tokens_and_cost_on_stderr(sidestream: Run):
    replies = [ResponsesScript(model=name).text("Hello").reply() for name in ("gpt-5-2025-08-07", "gpt-x")]
    with FakeProvider(replies).in_thread() as fake:
        known = sidestream("-m", "openai-responses:gpt-5", "--usage", "Hi", base_url=fake.base_url)
        unknown = sidestream("-m", "openai-responses:gpt-x", "--usage", "Hi", base_url=fake.base_url)
    # 36 tokens at 1.25 and 1 at 10 dollars per million.
    assert (known.stdout, known.stderr) == ("Hello\n", "usage: 36 tokens in, 1 out, $0.000055\n")
    assert unknown.stderr == "usage: 36 tokens in, 1 out, cost unknown (no price: openai-responses:gpt-x)\n"


@requirement("R230")
def test_check_shows_each_claim_with_its_state(sidestream: Run):
    link = "([a](http://127.0.0.1:9/a))"
    text = f"Oslo is old. {link}"
    note = {
        "type": "url_citation",
        "url": "http://127.0.0.1:9/a",
        "title": "A",
        "start_index": 13,
        "end_index": len(text),
    }
    replies = [ResponsesScript().text(text, annotations=[note]).reply() for _ in range(2)]
    with FakeProvider([*replies, ResponsesScript().text("Hello").reply()]).in_thread() as fake:
        shown = sidestream("-m", "openai-responses:m", "--check", "Hi", base_url=fake.base_url)
        lines = sidestream("-m", "openai-responses:m", "--check", "--json", "Hi", base_url=fake.base_url)
        none = sidestream("-m", "openai-responses:m", "--check", "Hi", base_url=fake.base_url)
    assert shown.returncode == lines.returncode == none.returncode == 0
    assert "evidence:\n  unreachable: Oslo is old.\n      A  http://127.0.0.1:9/a: " in shown.stderr
    sources = [part for line in lines.stdout.splitlines() if (part := json.loads(line))["type"] == "source"]
    assert [(part["id"], part.get("evidence", {}).get("state")) for part in sources] == [
        (sources[0]["id"], None),
        (sources[0]["id"], "unreachable"),
    ]
    assert "evidence: the answer cites no source" in none.stderr


@requirement("R231")
async def test_check_compares_pages_of_named_host(sidestream: Run):
    claims = ["Oslo has 700,000 inhabitants.", "Oslo has 900,000 inhabitants."]
    async with serve({"/oslo": page("<main><p>Oslo has 700,000 inhabitants.</p></main>")}) as site:
        script = citing((claim, site.url("/oslo"), "Oslo") for claim in claims)
        with FakeProvider([script.reply()]).in_thread() as fake:
            args = "-m", "openai-responses:m", "-T", f"web_fetch:allow_hosts={site.host}", "--check", "--log", "Hi"
            shown = await asyncio.to_thread(sidestream, *args, base_url=fake.base_url)
    logged = await asyncio.to_thread(sidestream, "logs", "show")
    exported = await asyncio.to_thread(sidestream, "logs", "export")
    assert shown.returncode == logged.returncode == exported.returncode == 0
    assert f"\n  quoted: {claims[0]}\n" in shown.stderr
    assert f"\n  contradicted: {claims[1]}\n" in shown.stderr
    assert f"evidence:\n  quoted: {claims[0]}\n" in logged.stdout
    assert f"  page {site.url('/oslo')} of " in logged.stdout
    assert f"- contradicted: {claims[1]} (Oslo: " in exported.stdout


@requirement("R73")
def test_cost_limit_rejects_model_without_price(sidestream: Run):
    with FakeProvider([sse(responses_text("Hello"))]).in_thread() as fake:
        refused = sidestream("-m", "openai-responses:gpt-x", "--max-cost", "1", "Hi", base_url=fake.base_url)
        known = sidestream("-m", "openai-responses:gpt-5", "--max-cost", "1", "Hi", base_url=fake.base_url)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "openai-responses:gpt-x" in refused.stderr
    assert (known.returncode, known.stdout) == (0, "Hello\n")
    assert len(fake.requests) == 1
