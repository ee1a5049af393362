"""A process that is killed while it creates or changes the file leaves a journal that the next reader must undo."""

import subprocess
import sys
from pathlib import Path

import pytest

from requirements import requirement
from sidestream import Agent, Chat, open_store
from sidestream.testing import FakeProvider, ResponsesScript

KILLED = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE half (done TEXT)")
connection.executemany("INSERT INTO half VALUES (?)", [("x" * 4000,)] * 50)  # more than the cache holds
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def left_behind(tmp_path: Path) -> Path:
    """A file whose first transaction was killed after pages of it had reached the disk."""
    path = tmp_path / "talk.db"
    path.touch(0o600)
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60, check=False).returncode == -9
    assert path.with_name("talk.db-journal").stat().st_size > 0
    assert path.stat().st_size > 0
    return path


@requirement("F32")
async def test_chat_starts_in_file_whose_creation_was_killed(left_behind: Path) -> None:
    async with FakeProvider([ResponsesScript().text("Hello").reply()]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url), store=left_behind, id="talk")
        await chat.load()
        assert (await chat.send("hi")).output == "Hello"
        assert chat.store_error is None
    assert len(await open_store(left_behind).read("talk")) > 2


@requirement("F32")
async def test_reader_and_check_undo_partial_creation(left_behind: Path) -> None:
    store = open_store(left_behind)
    assert await store.read("talk") == []
    assert await store.check() == []
    await store.aclose()


@requirement("F32")
async def test_repair_of_zeroed_file_terminates(tmp_path: Path) -> None:
    store = open_store(tmp_path / "talk.db")
    async with FakeProvider([ResponsesScript().text("Hello").reply()]) as fake:
        await Chat(Agent("openai-responses", base_url=fake.base_url), store=store, id="talk").send("hi")
    await store.aclose()
    path = tmp_path / "talk.db"
    with path.open("r+b") as file:  # Zeroes, from the second page on.
        file.seek(4096)
        file.write(bytes(path.stat().st_size - 4096))
    store = open_store(path)
    problems = await store.check(repair=True)
    assert [problem.is_repaired for problem in problems] == [True] * len(problems)
    assert await store.check() == []
    await store.aclose()
