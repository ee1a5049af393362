"""`sidestream logs`: what was written down is shown, followed, saved, mended and deleted."""

import asyncio
import json
import os
import sqlite3
import time
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cli.command import Run
from cli.driving import PROMPT, Talks
from requirements import requirement
from sidestream import Agent, Chat
from sidestream.parts import File, TextDelta, part_from_json
from sidestream.store import LogDetail, open_store
from sidestream.store.postgres.store import PostgresStore
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, ResponsesScript, error_reply, pixel_png, responses_text, sse
from support.stores import message

STORE = {"SIDESTREAM_STORE": "talks.db"}


def file_script(name: str) -> ResponsesScript:
    text = "[file](sandbox:/x)"
    citation = {"type": "container_file_citation", "container_id": "cntr_1", "file_id": "cfile_1"}
    citation |= {"filename": name, "start_index": 0, "end_index": len(text)}
    return ResponsesScript().code_interpreter("1", container_id="cntr_1").text(text, annotations=[citation])


@pytest.fixture
def kept(sidestream: Run) -> Any:
    """Writes conversations down: one for each script."""

    def write(**scripts: Any) -> None:
        with FakeProvider(list(scripts.values())).in_thread() as fake:
            fake.add_file("/v1/containers/cntr_1/files/cfile_1/content", pixel_png())
            for id in scripts:
                sidestream("chat", "--id", id, f"about {id}", base_url=fake.base_url, env=STORE)

    return write


@requirement("R92")
def test_logs_list_filters_by_model_and_text(sidestream: Run, kept: Any):
    kept(tea=sse(responses_text("Green.")), rain=sse(responses_text("Wet.")))
    with FakeProvider([sse(responses_text("Blue."))]).in_thread() as fake:
        model = "openai-responses:gpt-5.6-mini"
        sidestream("chat", "-m", model, "--id", "sky", "about sky", base_url=fake.base_url, env=STORE)

    def listed(*given: str) -> list[str]:
        return [line.split()[0] for line in sidestream("logs", "list", *given, env=STORE).stdout.splitlines()]

    assert listed("-m", "MINI") == ["sky"]
    assert listed("-m", "gpt-5.6", "-n", "2") == ["sky", "rain"]
    assert listed("-q", "green") == ["tea"]
    assert listed("-q", "about", "-m", "mini") == ["sky"]
    nothing = sidestream("logs", "list", "-q", "snow", env=STORE)
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "No matches.\n")


@requirement("R92")
def test_logs_show_prints_last_answer_or_its_code(sidestream: Run, kept: Any):
    kept(code=sse(responses_text("Use this:\n\n```python\nprint(1)\n```\n\nor\n\n```python\nprint(2)\n```\n")))
    shown = {flag: sidestream("logs", "show", "code", flag, env=STORE).stdout for flag in ("-r", "-x", "--xl")}
    assert shown["-r"].startswith("Use this:")
    assert (shown["-x"], shown["--xl"]) == ("print(1)\n", "print(2)\n")
    assert sidestream("logs", "show", "code", "-x", "--json", env=STORE).returncode == 2


@requirement("R92")
def test_logs_list_shows_status_of_each_conversation(sidestream: Run, kept: Any):
    approval = ResponsesScript().mcp_approval_request("shop", "buy", {"item": "tea"})
    kept(done=sse(responses_text("Hi.")), failed=error_reply(400, "bad", "no"), waits=approval.reply())
    listed = sidestream("logs", "list", env=STORE)
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert [(row[0], row[3], row[4], row[5:]) for row in rows] == [
        ("waits", "openai-responses:gpt-5.6", "waiting", ["about", "waits"]),
        ("failed", "openai-responses:gpt-5.6", "failed", ["about", "failed"]),
        ("done", "openai-responses:gpt-5.6", "complete", ["about", "done"]),
    ]
    as_json = [
        json.loads(line) for line in sidestream("logs", "list", "--json", "-n", "2", env=STORE).stdout.splitlines()
    ]
    assert [(info["id"], info["status"]) for info in as_json] == [("waits", "waiting"), ("failed", "failed")]
    assert sidestream("logs", env=STORE).stdout == listed.stdout


def test_empty_store_is_reported(sidestream: Run):
    done = sidestream("logs", "list", env=STORE)
    assert (done.returncode, done.stdout) == (0, "")
    assert "sidestream logs on" in done.stderr


@requirement("R92")
def test_conversation_is_shown_as_text_records_and_parts(sidestream: Run, kept: Any):
    script = ResponsesScript().web_search("news").text(["Hel\x1b[31m", "lo."])
    kept(mine=script.reply())
    text = sidestream("logs", "show", "mine", env=STORE)
    assert (text.returncode, text.stderr) == (0, "")
    wanted = iter(["user, 2", "  about mine", "openai-responses:gpt-5.6 answers", "Searched “news”", "Hello."])
    want = next(wanted)
    for line in text.stdout.splitlines():
        want = next(wanted, "") if want and line.startswith(want) else want
    assert want == ""
    assert "\x1b" not in text.stdout
    records = [json.loads(line) for line in sidestream("logs", "show", "--json", env=STORE).stdout.splitlines()]
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert records[0]["body"]["message"]["parts"][0]["text"] == "about mine"
    parts = [part_from_json(line) for line in sidestream("logs", "show", "-", "--parts", env=STORE).stdout.splitlines()]
    grammar.check(parts)
    assert [part.delta for part in parts if isinstance(part, TextDelta)] == ["Hel\x1b[31mlo."]


@requirement("R220")
def test_log_with_bytes_of_responses_is_shown(sidestream: Run, tmp_path: Path):
    async def write() -> None:
        async with (
            FakeProvider([sse(responses_text("Green."))]) as fake,
            aclosing(open_store(tmp_path / "talks.db")) as store,
        ):
            agent = Agent("openai-responses:m", base_url=fake.base_url)
            await Chat(agent, store=store, id="tea", log=LogDetail(wire=True)).send("about tea")

    asyncio.run(write())
    for options in ((), ("--json",), ("--parts",)):
        shown = sidestream("logs", "show", "tea", *options, env=STORE)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "Green." in shown.stdout


@requirement("R92")
def test_conversation_is_found_by_id_prefix(sidestream: Run, kept: Any):
    kept(chat_abc=sse(responses_text("One.")), chat_abd=sse(responses_text("Two.")))
    assert "One." in sidestream("logs", "show", "abc", env=STORE).stdout
    assert "Two." in sidestream("logs", "show", "chat_abd", env=STORE).stdout
    several, unknown = (sidestream("logs", "show", id, env=STORE) for id in ("chat_ab", "chat_xbc"))
    assert several.returncode == unknown.returncode == 2
    for done in (several, unknown):
        (line,) = done.stderr.splitlines()
        assert "chat_abc" in line
        assert "chat_abd" in line


@requirement("R92")
def test_active_conversation_can_be_tailed(talks: Talks, sidestream: Run, kept: Any):
    kept(mine=sse(responses_text("One.")))
    with FakeProvider([sse(responses_text("Two."))]).in_thread() as fake:
        with talks("logs", "tail", "mine", base_url=fake.base_url, env=STORE) as talk:
            talk.expect("One.")
            sidestream("chat", "--id", "mine", "more", base_url=fake.base_url, env=STORE)
            talk.expect("more")
            talk.expect("Two.")
        with talks("logs", "tail", "mine", "--after", "2", "--json", base_url=fake.base_url, env=STORE) as talk:
            assert json.loads(talk.expect(r"\{.*\}\n")[0])["seq"] == 3


@pytest.fixture
def killed(talks: Talks) -> Any:
    """Leaves a conversation whose process was killed while it showed an answer, and follows it meanwhile."""

    def leave(fake: FakeProvider, id: str) -> None:
        with talks("chat", "--id", id, "begin", base_url=fake.base_url, env=STORE) as talk:
            talk.expect("Half of")
            with talks("logs", "tail", id, base_url=fake.base_url, env=STORE) as tail:
                tail.expect("Half of")
            talk.kill()

    return leave


def half() -> Any:
    """An answer that stops after its first words."""
    events = ResponsesScript(id="r1").text(["Half of ", "it."]).events()
    first = next(index for index, event in enumerate(events) if event["type"].endswith("output_text.delta"))
    return sse([*events[: first + 1], asyncio.Event()])


@requirement("R92", "R112")
def test_killed_turn_blocks_next_message_until_discarded(sidestream: Run, killed: Any):
    with FakeProvider([half(), sse(responses_text("Next."))]).in_thread() as fake:
        killed(fake, "mine")
        assert sidestream("logs", "list", env=STORE).stdout.split()[4] == "unfinished"
        assert "Half of" in sidestream("logs", "show", "mine", env=STORE).stdout
        for command in (("-c", "next"), ("chat", "-c"), ("chat", "--id", "mine", "next")):
            refused = sidestream(*command, base_url=fake.base_url, env=STORE)
            assert refused.returncode == 3
            assert "unfinished" in refused.stderr
            assert "sidestream logs resume mine" in refused.stderr
        assert sidestream("logs", "discard", "mine", env=STORE).returncode == 0
        assert sidestream("logs", "discard", "mine", env=STORE).returncode == 2
        assert sidestream("logs", "list", env=STORE).stdout.split()[4] == "complete"
        assert sidestream("-c", "next", base_url=fake.base_url, env=STORE).stdout == "Next.\n"
    assert [item["content"] for item in fake.requests[-1].json["input"]] == ["next"]


@requirement("R92")
@pytest.mark.parametrize("command", [("-c", "next"), ("chat", "-c", "next")], ids=["prompt", "chat"])
def test_killed_turn_is_resumed_on_request_at_terminal(talks: Talks, killed: Any, command: Any):
    script = [half(), sse(responses_text("All of it.", id="resp_2")), sse(responses_text("Next."))]
    with FakeProvider(script).in_thread() as fake:
        killed(fake, "mine")
        with talks(*command, base_url=fake.base_url, env=STORE, terminal=True) as talk:
            talk.expect("unfinished")
            talk.expect(r"\[r\]esume it")
            talk.send("r\r")
            talk.expect("All of it.")
            talk.expect("Next.")
            if command[0] == "chat":
                talk.expect(PROMPT)
                talk.send("\x04")
            assert talk.end() == 0
    assert [message.json["input"] for message in fake.requests][1][0]["content"] == "begin"


@requirement("R92")
def test_next_message_names_failed_turn_it_drops(sidestream: Run, kept: Any):
    kept(mine=error_reply(400, "bad", "no"))
    with FakeProvider([sse(responses_text("Next."))]).in_thread() as fake:
        done = sidestream("-c", "next", base_url=fake.base_url, env=STORE)
    assert (done.returncode, done.stdout) == (0, "Next.\n")
    assert "last turn of mine: failed" in done.stderr
    assert "sidestream logs resume mine" in done.stderr


@requirement("R92", "R84")
def test_failed_turn_resumes_and_complete_one_needs_prompt(sidestream: Run, kept: Any):
    kept(mine=error_reply(400, "bad", "no"))
    with FakeProvider([sse(responses_text("One.", id="resp_1")), sse(responses_text("Two."))]).in_thread() as fake:
        refused = sidestream("logs", "resume", "mine", "and more", base_url=fake.base_url, env=STORE)
        first = sidestream("logs", "resume", base_url=fake.base_url, env=STORE)
        complete = sidestream("logs", "resume", base_url=fake.base_url, env=STORE)
        second = sidestream(
            "logs", "resume", "mine", "and more", "-m", "openai-responses:gpt-y", base_url=fake.base_url, env=STORE
        )
    assert (refused.returncode, complete.returncode) == (2, 2)
    assert (first.stdout, second.stdout) == ("One.\n", "Two.\n")
    assert [item["content"] for item in fake.requests[0].json["input"]] == ["about mine"]
    assert fake.requests[1].json["model"] == "gpt-y"


@requirement("R92", "F37")
def test_files_are_listed_and_saved_under_safe_names(sidestream: Run, kept: Any, tmp_path: Path):
    kept(mine=file_script("../../passwd.png").reply())
    listed = sidestream("logs", "files", "mine", env=STORE)
    assert "passwd.png (image/png" in listed.stdout
    for _ in range(2):
        assert sidestream("logs", "files", "mine", "--out", "out", env=STORE).returncode == 0
    saved = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert saved == {"passwd.png": pixel_png(), "passwd-1.png": pixel_png()}


@requirement("R92", "R83")
def test_lost_file_is_reported_by_every_command_needing_it(sidestream: Run, kept: Any, tmp_path: Path):
    kept(mine=file_script("a.png").reply())
    blobs = [path for path in (tmp_path / "talks.db.blobs").rglob("*") if path.is_file()]
    (blob,) = [path for path in blobs if path.read_bytes() == pixel_png()]
    blob.write_bytes(b"other")
    checked = sidestream("logs", "check", env=STORE)
    assert checked.returncode == 1
    assert checked.stdout.startswith("damaged-blob: ")
    files = sidestream("logs", "files", "mine", "--out", "out", env=STORE)
    assert files.returncode == 1
    assert "error: " in files.stderr
    assert "[file]" in sidestream("logs", "show", "mine", env=STORE).stdout


@requirement("F33", "F58")
def test_damaged_log_is_checked_and_repaired(sidestream: Run, kept: Any, tmp_path: Path):
    kept(mine=sse(responses_text("One.")))
    whole = sidestream("logs", "check", env=STORE)
    assert (whole.returncode, whole.stdout) == (0, "")
    with closing(sqlite3.connect(tmp_path / "talks.db")) as database:
        database.execute("UPDATE records SET body = x'7b' WHERE seq = 3")
        database.commit()
    found = sidestream("logs", "check", env=STORE)
    assert found.returncode == 1
    assert "unreadable-record" in found.stdout
    shown = sidestream("logs", "show", "mine", env=STORE)
    assert shown.returncode == 1
    assert "about mine" in shown.stdout
    assert "One." in shown.stdout
    assert "record 3" in shown.stderr
    assert sidestream("logs", "check", "--repair", env=STORE).returncode == 0
    assert sidestream("logs", "check", env=STORE).returncode == 0


@requirement("R92")
def test_conversation_is_deleted_with_its_files(sidestream: Run, kept: Any, tmp_path: Path):
    kept(mine=file_script("a.png").reply())
    unknown = sidestream("logs", "delete", "other", env=STORE)
    assert (unknown.returncode, "sidestream logs list" in unknown.stderr) == (2, True)
    assert sidestream("logs", "delete", "mine", env=STORE).returncode == 0
    assert sidestream("logs", "list", env=STORE).stdout == ""
    assert not [path for path in (tmp_path / "talks.db.blobs").rglob("*") if path.is_file()]
    for path in (tmp_path / "talks.db.blobs").rglob("*"):
        os.utime(path, (0, 0))
    assert "0 files removed" in sidestream("logs", "collect", env=STORE).stderr


async def written(path: Path, *conversations: tuple[str, float]) -> None:
    """Writes conversations that changed so many seconds ago."""
    store = open_store(path)
    for name, age_s in conversations:
        await store.append(name, 0, [replace(message(1, f"In {name}."), time=time.time() - age_s)])
    await store.aclose()


def ids(sidestream: Run) -> list[str]:
    return sorted(
        json.loads(line)["id"] for line in sidestream("logs", "list", "--json", env=STORE).stdout.splitlines()
    )


@requirement("R92")
def test_server_conversation_is_deleted_with_its_branches(sidestream: Run, tmp_path: Path):
    names = ["/abc", "/abc~2", "/abc~13", "/abcd", "/abc~x", "anna/abc", "abc", "abc~2"]
    asyncio.run(written(tmp_path / "talks.db", *((name, 1.0) for name in names)))
    done = sidestream("logs", "delete", "/abc~2", env=STORE)
    assert (done.returncode, "2 more of its branches" in done.stderr) == (0, True)
    assert ids(sidestream) == sorted(["/abc~x", "/abcd", "abc", "abc~2", "anna/abc"])
    assert sidestream("logs", "delete", "abc", env=STORE).returncode == 0
    assert ids(sidestream) == sorted(["/abc~x", "/abcd", "abc~2", "anna/abc"])


@requirement("R92")
def test_conversations_expire_by_last_change(sidestream: Run, tmp_path: Path):
    day = 86_400.0
    ages = {"old": 40 * day, "new": day, "/talk": 50 * day, "/talk~2": day, "/gone": 31 * day, "/gone~2": 90 * day}
    asyncio.run(written(tmp_path / "talks.db", *ages.items()))
    for wrong in ("30", "soon", "-1d", "0d"):
        assert sidestream("logs", "expire", "--", wrong, env=STORE).returncode == 2
    shown = sidestream("logs", "expire", "30d", "--dry-run", env=STORE)
    assert sorted(line.split()[0] for line in shown.stdout.splitlines()) == ["/gone", "/gone~2", "old"]
    assert len(ids(sidestream)) == 6
    done = sidestream("logs", "expire", "30d", env=STORE)
    assert (done.returncode, "3 conversations deleted" in done.stderr) == (0, True)
    assert ids(sidestream) == ["/talk", "/talk~2", "new"]


class OldPostgres(PostgresStore):
    migrations = PostgresStore.migrations[:1]


@requirement("F35")
def test_older_schema_is_migrated_on_request_with_backup_choice(sidestream: Run, tmp_path: Path, postgres_url: str):
    async def create() -> None:
        old = OldPostgres(postgres_url)
        await old._connections.writing.do(lambda connection, _: old._server.create(connection))
        await old.aclose()

    asyncio.run(create())
    store = {"SIDESTREAM_STORE": postgres_url}
    for wrong in ([], ["--backup", "a.sql", "--no-backup"]):
        assert sidestream("logs", "migrate", *wrong, env=store).returncode == 2
    done = sidestream("logs", "migrate", "--backup", "a.sql", env=store)
    assert (done.returncode, "Migrated from version 1 to" in done.stderr) == (0, True), done.stderr
    assert sidestream("logs", "migrate", "--backup", "a.sql", env=store).returncode == 2
    for location in (store, STORE):
        done = sidestream("logs", "migrate", "--no-backup", env=location)
        assert (done.returncode, "Nothing to do" in done.stderr) == (0, True)
    assert (tmp_path / "a.sql").read_text().endswith("COMMIT;\n")


def test_shown_parts_contain_file_bytes(sidestream: Run, kept: Any):
    kept(mine=file_script("a.png").reply())
    parts = [part_from_json(line) for line in sidestream("logs", "show", "--parts", env=STORE).stdout.splitlines()]
    assert [part.data for part in parts if isinstance(part, File)] == [pixel_png()]


@pytest.mark.parametrize("command", [("list",), ("show",), ("resume",), ("check",)])
def test_unopenable_store_is_reported_in_one_line(sidestream: Run, tmp_path: Path, command: tuple[str, ...]):
    (tmp_path / "talks.db").write_bytes(b"no database at all " * 1000)
    done = sidestream("logs", *command, env=STORE)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) <= 1


def test_every_record_kind_can_be_shown():
    from sidestream.cli.chat.transcript import _RENDERERS
    from sidestream.store.records import Body

    assert {kind.__name__ for kind in _RENDERERS} == {kind.__name__ for kind in Body.__args__}
