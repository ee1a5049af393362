"""Log search and export, branches of a chat, embeddings, completion, doctor, MCP checks, and start-up."""

import asyncio
import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.command import COMMAND, Run
from cli.driving import PROMPT, Talks
from requirements import requirement
from sidestream.cli.chat.chat_commands import completions
from sidestream.store import open_store
from sidestream.store.log.search import search
from sidestream.testing import FakeProvider, Recording, ResponsesScript, responses_text, sse
from support.places import TESTS
from support.stores import message as message_row

ROGUE = TESTS / "support" / "mcp_servers" / "rogue.py"
STORE = {"SIDESTREAM_STORE": "talks.db"}


def said(text: str, **fields: Any) -> Any:
    return sse(responses_text(text, **fields))


async def test_search_finds_words_phrases_and_prefixes_best_first(tmp_path: Path):
    store = open_store(tmp_path / "talks.db")
    texts = {
        "a": "The total solar eclipse of 2027 is longest near Luxor.",
        "b": "An eclipse is an eclipse: eclipse, eclipse.",
        "c": "Le café est fermé. 100 % sûr_e.",
        "d": "Nothing of the kind.",
    }
    for id, text in texts.items():
        await store.append(id, 0, [message_row(1, text)])

    async def ids(query: str, **options: Any) -> list[str]:
        return [hit.conversation.id for hit in await search(store, query, **options)]

    assert await ids("eclipse") == ["b", "a"]
    assert await ids("ECLIPSE luxor") == ["a"]
    assert await ids('"solar eclipse"') == ["a"]
    assert await ids('"eclipse solar"') == []
    assert await ids("ecl*") == ["b", "a"]
    assert await ids("CAFÉ") == ["c"]
    assert await ids("eclipse", limit=1) == ["b"]
    assert await ids("absent") == await ids("  ") == await ids('"') == []
    assert await ids("eclipse AND (luxor OR") == []  # nothing in it is an operator
    (hit,) = await search(store, "luxor")
    assert (hit.seq, hit.role, "**Luxor**" in hit.text) == (1, "user", True)
    await store.aclose()


@requirement("R170")
def test_logs_are_searched_and_exported(sidestream: Run, tmp_path: Path):
    citation = {
        "type": "url_citation",
        "url": "https://a.example/x",
        "title": "A page",
        "start_index": 0,
        "end_index": 9,
    }
    script = ResponsesScript().code_interpreter("print(1)", logs="1\n").text("It rains.", annotations=[citation])
    with FakeProvider([script.reply()]).in_thread() as fake:
        sidestream("chat", "--id", "mine", "Will it rain in Uppsala?", base_url=fake.base_url, env=STORE)
    found = sidestream("logs", "search", "uppsala", env=STORE)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("mine  ")
    assert "user: Will it rain in Uppsala?" in found.stdout
    (hit,) = [
        json.loads(line) for line in sidestream("logs", "search", "rains", "--json", env=STORE).stdout.splitlines()
    ]
    assert (hit["id"], hit["role"]) == ("mine", "model")
    assert sidestream("logs", "search", "snow", env=STORE).returncode == 1
    text = sidestream("logs", "export", "mine", env=STORE).stdout
    code = "**Ran Python** (provider)\n\n```python\nprint(1)\n```\n\nResult of code_interpreter:\n\n```\n1\n```"
    for part in ("# Will it rain", "## You", code, "It rains.[^1]", "[^1]: [A page]("):
        assert part in text
    exported = json.loads(sidestream("logs", "export", "-f", "json", env=STORE).stdout)
    assert [entry["role"] for entry in exported["messages"]] == ["user", "model"]
    done = sidestream("logs", "export", "-f", "recording", "-o", "run.json", env=STORE)
    assert done.returncode == 0, done.stderr
    assert len(Recording.load(tmp_path / "run.json").exchanges) == 1
    played = sidestream("replay", "run.json")
    assert played.stdout == "It rains.\n"
    for part in ("  │ print(1)", "Ran Python", "  [1] A page"):
        assert part in played.stderr
    taken = sidestream("logs", "export", "-o", "run.json", env=STORE)
    assert (taken.returncode, "exists" in taken.stderr) == (2, True)


@requirement("R170")
def test_chat_branches_goes_back_and_retries(sidestream: Run, tmp_path: Path):
    lines = ["b", "/undo", "c", "/retry", "/branch", "d", "/save talk.md", "/save talk.md", "exit", "never"]
    replies = [said(text, id=f"resp_{text}") for text in ("one", "two", "three", "four", "five")]
    with FakeProvider(replies).in_thread() as fake:
        done = sidestream("chat", "--id", "mine", "a", input="\n".join(lines), base_url=fake.base_url, env=STORE)
        ids = [row.split()[0] for row in sidestream("logs", env=STORE).stdout.splitlines()]
    assert done.stdout == "one\ntwo\nthree\nfour\nfive\n"
    sent = [
        ([item["content"] for item in request.json["input"]], request.json.get("previous_response_id"))
        for request in fake.requests
    ]
    assert sent == [
        (["a"], None),
        (["b"], "resp_one"),
        (["c"], "resp_one"),  # /undo took b back
        (["c"], "resp_one"),  # /retry asks c again
        (["d"], "resp_four"),
    ]
    assert "mine" in ids
    assert len(ids) == 4  # the original, and three branches
    saved = (tmp_path / "talk.md").read_text()
    assert saved.index("a") < saved.index("four") < saved.index("five")
    assert "two" not in saved
    assert "exists" in done.stderr


def test_chat_changes_system_prompt_and_tools(sidestream: Run):
    lines = [
        "/system Be brief.",
        "a",
        "/tools web_search:context_size=high",
        "b",
        "/system -",
        "c",
        "/tools",
        "/sytem x",
    ]
    with FakeProvider([said("one"), said("two"), said("three")]).in_thread() as fake:
        done = sidestream("chat", "-n", input="\n".join(lines), base_url=fake.base_url)
    first, second, third = (request.json for request in fake.requests)
    assert (first["instructions"], first.get("tools", [])) == ("Be brief.", [])
    assert (second["instructions"], second["tools"][0]["search_context_size"]) == ("Be brief.", "high")
    assert "instructions" not in third
    assert "tools: web_search" in done.stderr
    assert "did you mean /system?" in done.stderr


@requirement("R170")
def test_tab_completes_chat_commands(talks: Talks, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("remember")
    assert completions("/re") == ["/retry ", "/resume "]
    assert completions("/model lmst") == ["/model lmstudio"]
    assert "/tools web_search" in completions("/tools web")
    assert completions("hello") == completions("/nothing ") == []
    fake = FakeProvider([said("Two.")])
    with fake.in_thread(), talks("chat", "-n", base_url=fake.base_url, terminal=True) as talk:
        talk.expect(PROMPT)
        talk.send("/att\t")
        talk.expect("ach")  # The terminal gets only what is new.
        talk.send("not\t")
        talk.expect("es.txt")
        talk.send("\r")
        talk.expect("will be sent with the next message")
        talk.expect(PROMPT)
        talk.send("quit\r")
        assert talk.end() == 0


@requirement("R170")
def test_strings_are_embedded_and_ranked(sidestream: Run, tmp_path: Path):
    args = ("-m", "local")
    done = sidestream("embed", *args, "a cat", "a dog")
    if done.returncode == 2 and "local install" in done.stderr:
        pytest.skip("no embedded model (`make setup` installs it)")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["id"], row["text"], len(row["vector"])) for row in rows] == [
        ("text 1", "a cat", 384),
        ("text 2", "a dog", 384),
    ]
    (tmp_path / "pets.jsonl").write_text(done.stdout)
    (tmp_path / "more.txt").write_text("a stock exchange\n\na kitten\n")
    ranked = sidestream("similar", *args, "kittens", "pets.jsonl", "more.txt", "--json")
    found = [json.loads(line) for line in ranked.stdout.splitlines()]
    assert [entry["id"] for entry in found[:2]] == ["more.txt:3", "text 1"]
    assert found[0]["score"] > found[1]["score"] > found[-1]["score"]
    piped = sidestream("similar", *args, "-n", "1", "kittens", input="a bank\na kitten\n")
    assert piped.stdout.split()[1:] == ["2", "a", "kitten"]
    for wrong in (("embed", "-i", "nowhere.txt"), ("similar", "x", "nowhere.txt"), ("embed", "-m", "anthropic", "x")):
        assert sidestream(*wrong).returncode == 2


@requirement("R170")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed_for_each_shell(sidestream: Run, shell: str):
    done = sidestream("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_SIDESTREAM_COMPLETE={shell}_complete" in done.stdout


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("sidestream lo", "logs"),
        ("sidestream logs ex", "export"),
        ("sidestream -m anth", "anthropic"),
        ("sidestream -T web_s", "web_search"),
        ("sidestream chat --no-", "--no-log"),
    ],
)
def test_shell_completes_commands_options_providers_and_tools(sidestream: Run, words: str, wanted: str):
    given = {"_SIDESTREAM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = sidestream(env=given)
    assert wanted in [line.rpartition(",")[2] for line in done.stdout.splitlines()]


@requirement("R170")
def test_doctor_lists_setup_and_fails_when_broken(sidestream: Run, tmp_path: Path):
    whole = sidestream("doctor")
    assert whole.returncode == 0, whole.stdout
    for part in ("OPENAI_API_KEY: environment", "openai-responses: the saved default", "log.db: 0 conversations"):
        assert part in whole.stdout
    assert "does not answer" not in whole.stdout
    assert "extra all" not in whole.stdout
    (tmp_path / "mcp.json").write_text("{")
    (tmp_path / "bad.db").write_bytes(b"no database at all " * 1000)
    env = {"SIDESTREAM_STORE": "bad.db", "SIDESTREAM_MODEL": "nobody", "OPENAI_BASE_URL": "nonsense"}
    broken = sidestream("doctor", "--json", env=env)
    assert broken.returncode == 1
    found = [json.loads(line) for line in broken.stdout.splitlines()]
    assert {entry["topic"] for entry in found if entry["state"] == "broken"} == {"keys", "model", "log", "mcp"}


@pytest.mark.parametrize("broken", [{"command": "no-such-program-at-all"}, {"command": "x", "nonsense": 1}])
def test_broken_mcp_server_is_left_out_unless_required(sidestream: Run, tmp_path: Path, broken: dict[str, Any]):
    works = {"command": sys.executable, "args": ["-I", str(ROGUE)]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"fails": broken, "works": works}}))
    with FakeProvider([sse(responses_text("Hi."))]).in_thread() as fake:
        done = sidestream("--mcp", "-", "Hi", base_url=fake.base_url)
        strict = sidestream("--mcp", "-", "--mcp-required", "Hi", base_url=fake.base_url)
    assert (done.returncode, done.stdout) == (0, "Hi.\n")
    assert re.fullmatch(r"warning: .*'fails'.* left out.*\n", done.stderr)
    assert "pid" in [tool["name"] for tool in fake.requests[0].json["tools"]]
    assert strict.returncode in (1, 2)
    assert "'fails'" in strict.stderr
    assert len(fake.requests) == 1


def test_model_chosen_for_user_is_named_once(sidestream: Run, tmp_path: Path):
    (tmp_path / ".config" / "sidestream" / "settings.json").write_text('{"log": false}')
    with FakeProvider([sse(responses_text("Hi."))] * 3).in_thread() as fake:
        lines = [sidestream("Hi", base_url=fake.base_url).stderr for _ in range(2)]
        assert sidestream("-m", "openai-responses", "Hi", base_url=fake.base_url).stderr == ""
    assert lines[0].startswith("model: openai-responses (OPENAI_API_KEY is set")
    assert lines[1] == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--schema", "", "Hi"), "--schema is empty"),
        (("--cid", "zzz", "--store", "talks.db", "Hi"), "no conversation 'zzz'; sidestream logs list shows"),
        (("--cid", "chat_abcdef01235", "--store", "talks.db", "Hi"), "did you mean chat_abcdef01234?"),
        (("models", "default", "nope:x"), "'nope'"),
        (("models", "default", "openia:x"), "did you mean openai:x?"),
        (("chat", "-n", "/foo"), "unknown command /foo; /help lists"),
    ],
)
async def test_wrong_name_gets_fitting_advice(sidestream: Run, tmp_path: Path, args: tuple[str, ...], message: str):
    store = open_store(tmp_path / "talks.db")
    await store.append("chat_abcdef01234", 0, [message_row(1, "Hi")])
    await store.aclose()
    done = await asyncio.to_thread(sidestream, *args)
    assert done.returncode != 0
    assert message in done.stderr
    assert "nope" not in args[-1] or "did you mean" not in done.stderr


def test_doctor_lists_optional_parts_with_all(sidestream: Run):
    lines = sidestream("doctor", "--all", "--json").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert len(set(lines)) == len(lines)
    assert {"mcp", "servers", "embedded model"} <= {entry["topic"] for entry in found}
    assert all("ollama" in entry["text"] for entry in found if "11434" in entry["text"])


def test_doctor_reports_chosen_server_that_does_not_answer(sidestream: Run):
    done = sidestream("doctor", env={"SIDESTREAM_MODEL": "ollama:qwen3"})
    assert done.returncode == 1
    assert re.search(r"broken +ollama: \S+ does not answer \(start the server\)", done.stdout), done.stdout


@requirement("R170")
def test_mcp_servers_are_listed_and_checked(sidestream: Run, tmp_path: Path):
    servers = {
        "works": {"command": sys.executable, "args": ["-I", str(ROGUE)]},
        "fails": {"command": "no-such-program-at-all"},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    listed = sidestream("mcp", "list")
    assert [line.split()[:2] for line in listed.stdout.splitlines()] == [["works", "here"], ["fails", "here"]]
    checked = sidestream("mcp", "check")
    assert checked.returncode == 1
    assert "works: " in checked.stdout
    assert "fails: failed: " in checked.stdout
    one = sidestream("mcp", "check", "works")
    assert (one.returncode, "  pid\n" in one.stdout) == (0, True)
    unknown = sidestream("mcp", "check", "wroks")
    assert (unknown.returncode, "works" in unknown.stderr) == (2, True)


def test_module_runs_as_program():
    done = subprocess.run(
        [sys.executable, "-m", "sidestream", "--version"], capture_output=True, encoding="utf-8", timeout=60, check=True
    )
    assert done.stdout.startswith("sidestream ")


@requirement("R170")
def test_help_costs_at_most_twice_importing_click():
    def cost(*command: str) -> float:
        best = 60.0
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, capture_output=True, timeout=60, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return best

    assert cost(*COMMAND, "--help") <= 2 * cost(sys.executable, "-c", "import click")
