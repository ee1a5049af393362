"""Damages copies of a SQLite store in every way a disk can, and checks that each is survived.

`python corruption.py SEED COUNT` tries COUNT files and prints those that failed; `sweep` is the same for a test. Each
file is tried in a process of its own, with a time bound: a repair that never ends is a failure like any other.
"""

import asyncio
import contextlib
import gc
import importlib
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from sidestream import Agent, Chat, ChatMessage
from sidestream.cli.main import run as run_command
from sidestream.errors import BlobError, NewerSchemaError, StoreError
from sidestream.store.protocol import StoreProblem
from sidestream.store.records import MessageAdded, Row, pack
from sidestream.store.sqlite.store import SqliteStore
from sidestream.testing import FakeProvider, ResponsesScript
from support.stores import row

BOUND_S = 20
"""One file may take this long; most take a fifth of a second."""
PAGE = 4096
SIDES = ("", "-wal", "-shm", "-journal")
NAMES = ("long", "talk", "waiting", "second")

Files = dict[str, bytes]
"""Suffix of a file of the store → its content; a missing file has no entry."""
Logs = dict[str, list[Row]]


class Base(NamedTuple):
    """An intact store, as files, with the logs it holds."""

    name: str
    files: Files
    blobs: Path
    logs: Logs


class Damage(NamedTuple):
    """One way to damage a store."""

    name: str
    apply: Callable[[Files, random.Random], None]
    keeps_content: bool = True
    """What survives must be a prefix of what was stored; False where bytes inside a record may change unnoticed."""


# Intact stores


async def fill(store: SqliteStore, records: int) -> None:
    """Four conversations: one of many records, one with a tool and blobs, one that waits for a person, a short one."""

    def note(text: str) -> str:
        """Notes a text."""
        return "noted " * 4000

    replies = [
        ResponsesScript(id="r1").function_call("note", {"text": "a"}, "call_a").reply(),
        ResponsesScript(id="r2").text("Noted. " * 200).reply(),
        ResponsesScript(id="r3").function_call("note", {"text": "b"}, "call_b").reply(),
        ResponsesScript(id="r4").text("Hello.").reply(),
    ]
    for start in range(0, records, 100):
        await store.append("long", start, history(start + 1, min(start + 100, records)))
    async with FakeProvider(replies) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[note])
        await Chat(agent, store=store, id="talk").send("note it: " + "x " * 12_000)
        asking = Agent("openai-responses", base_url=fake.base_url, tools=[note], approval="ask")
        await Chat(asking, store=store, id="waiting").send("note that")
        await Chat(agent, store=store, id="second").send("hello")


async def make_bases(folder: Path) -> list[Base]:
    """A large store without a WAL, a small one, one with a WAL, one with a rollback journal."""
    return [
        await make_base(folder / "large", records=1500, has_wal=False),
        await make_base(folder / "small", records=20, has_wal=False),
        await make_base(folder / "wal", records=300, has_wal=True),
        with_journal(folder / "journal", await make_base(folder / "before", records=300, has_wal=False)),
    ]


async def make_base(folder: Path, *, records: int, has_wal: bool) -> Base:
    store = SqliteStore(folder / "log.db")
    await fill(store, records)
    logs = {name: await store.read(name) for name in NAMES}
    files = files_in(folder)
    await store.aclose()
    if not has_wal:
        with closing(sqlite3.connect(store.path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        files = files_in(folder)
    return Base(folder.name, files, store.blobs.path, logs)


def with_journal(folder: Path, base: Base) -> Base:
    """The same store in the middle of a transaction with a rollback journal, as a killed process leaves it."""
    write_files(folder, base.files)
    with closing(sqlite3.connect(folder / "log.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA cache_size = 5")
        connection.execute("BEGIN")
        connection.execute("UPDATE records SET body = body || ' '")
        files = files_in(folder)
    assert "-journal" in files
    return Base("journal", files, base.blobs, base.logs)


def files_in(folder: Path) -> Files:
    paths = {suffix: folder / f"log.db{suffix}" for suffix in SIDES}
    return {suffix: path.read_bytes() for suffix, path in paths.items() if path.exists()}


def write_files(folder: Path, files: Files) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, data in files.items():
        (folder / f"log.db{suffix}").write_bytes(data)


# Ways to damage it


def history(first: int, last: int) -> list[Row]:
    """Rows with these numbers: messages of an imported history."""
    messages = ((seq, ChatMessage.user(f"{seq:05} " * 30)) for seq in range(first, last + 1))
    return [row(seq, "message", body=pack(MessageAdded(message, opens_turn=False))[0]) for seq, message in messages]


def pages_of(data: bytes) -> int:
    return max(1, len(data) // PAGE)


def truncated_at_a_page(files: Files, chance: random.Random) -> None:
    files[""] = files[""][: chance.randrange(pages_of(files[""])) * PAGE]


def truncated_anywhere(files: Files, chance: random.Random) -> None:
    files[""] = files[""][: chance.randrange(len(files[""]))]


def zeroed_pages(files: Files, chance: random.Random) -> None:
    data = bytearray(files[""])
    for _ in range(chance.choice([1, 1, 2, 5])):
        start = chance.randrange(pages_of(data)) * PAGE
        data[start : start + PAGE] = bytes(len(data[start : start + PAGE]))
    files[""] = bytes(data)


def zeroed_to_the_end(files: Files, chance: random.Random) -> None:
    start = chance.randrange(len(files[""]))
    files[""] = files[""][:start] + bytes(len(files[""]) - start)


def random_page(files: Files, chance: random.Random) -> None:
    data = bytearray(files[""])
    start = chance.randrange(pages_of(data)) * PAGE
    data[start : start + PAGE] = chance.randbytes(len(data[start : start + PAGE]))
    files[""] = bytes(data)


def random_range(files: Files, chance: random.Random) -> None:
    data = bytearray(files[""])
    start = chance.randrange(len(data))
    size = min(chance.choice([1, 4, 100, 5000]), len(data) - start)
    data[start : start + size] = chance.randbytes(size)
    files[""] = bytes(data)


def flipped_header(files: Files, chance: random.Random) -> None:
    files[""] = flipped(files[""], chance, 0, 100)


def flipped_page_header(files: Files, chance: random.Random) -> None:
    start = chance.randrange(pages_of(files[""])) * PAGE
    files[""] = flipped(files[""], chance, start, start + 12)


def flipped_cell_pointers(files: Files, chance: random.Random) -> None:
    start = chance.randrange(pages_of(files[""])) * PAGE
    files[""] = flipped(files[""], chance, start + 8, start + 80)


def flipped_schema(files: Files, chance: random.Random) -> None:
    files[""] = flipped(files[""], chance, 100, PAGE)


def flipped_anywhere(files: Files, chance: random.Random) -> None:
    for _ in range(chance.choice([1, 3, 30])):
        files[""] = flipped(files[""], chance, 0, len(files[""]))


def flipped(data: bytes, chance: random.Random, start: int, end: int) -> bytes:
    place = chance.randrange(start, min(end, len(data)))
    return data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]


def swapped_pages(files: Files, chance: random.Random) -> None:
    data = bytearray(files[""])
    one, other = (chance.randrange(pages_of(data)) * PAGE for _ in range(2))
    data[one : one + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[one : one + PAGE]
    files[""] = bytes(data)


def repeated_page(files: Files, chance: random.Random) -> None:
    data = bytearray(files[""])
    one, other = (chance.randrange(pages_of(data)) * PAGE for _ in range(2))
    data[one : one + PAGE] = data[other : other + PAGE]
    files[""] = bytes(data)


def appended_garbage(files: Files, chance: random.Random) -> None:
    files[""] += chance.randbytes(chance.choice([1, PAGE - 1, PAGE, 3 * PAGE]))


def emptied(files: Files, chance: random.Random) -> None:
    files[""] = b""


def removed(files: Files, chance: random.Random) -> None:
    del files[""]


def without_side_files(files: Files, chance: random.Random) -> None:
    for suffix in SIDES[1:]:
        files.pop(suffix, None)


def damaged_side_file(files: Files, chance: random.Random) -> None:
    """A WAL, its index or a journal that is cut, zeroed or changed; one of garbage where there was none."""
    suffix = chance.choice(SIDES[1:])
    data = files.get(suffix) or chance.randbytes(chance.choice([0, 32, 512, 2 * PAGE]))
    match chance.randrange(4):
        case 0:
            data = data[: chance.randrange(len(data) + 1)]
        case 1:
            data = bytes(len(data))
        case 2 if data:
            data = flipped(data, chance, 0, len(data))
        case _:
            data += chance.randbytes(100)
    files[suffix] = data


BAD_TEXT = "CAST(x'ff41c328' AS TEXT)"
BAD_VALUES = {
    "conversations": ("id", "head", "created", "updated", "title", "model", "last"),
    "records": ("conversation", "seq", "time", "run", "kind", "body", "blobs"),
    "blob_references": ("digest",),
}
STRANGE = (BAD_TEXT, "x'00ff'", "''", "-1", "9223372036854775807", "1e999", "'\x01\u202e'", "zeroblob(70000)")


def strange_value(files: Files, chance: random.Random) -> None:
    """A column with a value that no program of ours wrote: invalid UTF-8 above all."""
    table = chance.choice(list(BAD_VALUES))
    column, value = chance.choice(BAD_VALUES[table]), chance.choice([BAD_TEXT, BAD_TEXT, *STRANGE])
    offset = chance.randrange(40)
    row = f"SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT 1 OFFSET {offset}"
    if table == "blob_references":
        statement = f"UPDATE OR IGNORE {table} SET {column} = {value}"
    else:
        statement = f"UPDATE OR IGNORE {table} SET {column} = {value} WHERE rowid = coalesce(({row}), 1)"
    changed(files, statement)


def changed_record(files: Files, chance: random.Random) -> None:
    """A record that is JSON, but not one of ours."""
    bodies = ("null", "[]", "{}", '{"type":"segment","kind":"text","parts":[]}', '{"type":"message","message":5}')
    table = f"SELECT rowid FROM records ORDER BY rowid DESC LIMIT 1 OFFSET {chance.randrange(40)}"
    changed(files, f"UPDATE records SET body = CAST('{chance.choice(bodies)}' AS BLOB) WHERE rowid = ({table})")


def deleted_rows(files: Files, chance: random.Random) -> None:
    table = chance.choice(list(BAD_VALUES))
    changed(files, f"DELETE FROM {table} WHERE abs(random() % 3) = 0")


def changed_schema(files: Files, chance: random.Random) -> None:
    changed(
        files,
        chance.choice(
            [
                "DROP TABLE blob_references",
                "DROP TABLE conversations",
                "DROP TABLE records",
                "DROP INDEX conversations_by_time",
                "ALTER TABLE records RENAME COLUMN body TO content",
                "ALTER TABLE conversations RENAME TO talks",
                "PRAGMA user_version = 0",
                "PRAGMA user_version = 77",
                "PRAGMA user_version = -3",
                "PRAGMA application_id = 5",
            ]
        ),
    )


def changed(files: Files, statement: str) -> None:
    """Runs a statement on the store, with whatever WAL or journal it has."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), files)
        with closing(sqlite3.connect(Path(folder) / "log.db", isolation_level=None)) as connection:
            connection.execute(statement)
            files.clear()
            files.update(files_in(Path(folder)))


DAMAGES = (
    Damage("truncated at a page", truncated_at_a_page),
    Damage("truncated anywhere", truncated_anywhere),
    Damage("zeroed pages", zeroed_pages),
    Damage("zeroed to the end", zeroed_to_the_end),
    Damage("random page", random_page, keeps_content=False),
    Damage("random range", random_range, keeps_content=False),
    Damage("flipped header", flipped_header),
    Damage("flipped page header", flipped_page_header, keeps_content=False),
    Damage("flipped cell pointers", flipped_cell_pointers, keeps_content=False),
    Damage("flipped schema", flipped_schema, keeps_content=False),
    Damage("flipped anywhere", flipped_anywhere, keeps_content=False),
    Damage("swapped pages", swapped_pages),
    Damage("repeated page", repeated_page, keeps_content=False),
    Damage("appended garbage", appended_garbage),
    Damage("emptied", emptied, keeps_content=False),
    Damage("removed", removed, keeps_content=False),
    Damage("without side files", without_side_files, keeps_content=False),
    Damage("damaged side file", damaged_side_file, keeps_content=False),
    Damage("strange value", strange_value, keeps_content=False),
    Damage("changed record", changed_record, keeps_content=False),
    Damage("deleted rows", deleted_rows),
    Damage("changed schema", changed_schema),
)


# What must hold afterwards


async def survive(folder: Path, base: Base, damage: Damage) -> str:
    """Reads, checks and repairs a damaged store. Returns what came of it; any other exception is a failure."""
    store = SqliteStore(folder / "log.db", base.blobs, busy_timeout_s=0.5)
    agent = Agent("openai-responses", base_url="http://127.0.0.1:1/v1")
    try:
        for name in base.logs:
            with contextlib.suppress(StoreError):
                await Chat(agent, store=store, id=name).load()
        with contextlib.suppress(StoreError):
            await store.check()
        with contextlib.suppress(StoreError):
            await store.append("before", 0, history(1, 1))
        try:
            found = await store.check(repair=True)
        except StoreError as error:
            if not is_refusal(error):
                raise
            return "refused"
        again = left(await store.check(repair=True))
        assert not again, f"the second repair found {again}; the first {found}"
        assert not left(await store.check())
        await usable(store, agent, base, damage)
    finally:
        await store.aclose()
    return "repaired" if left(found) else "intact"


def is_refusal(error: StoreError) -> bool:
    """What a repair leaves alone: a file of another program, or of a newer version."""
    return isinstance(error, NewerSchemaError) or "another program" in str(error)


def left(problems: Sequence[StoreProblem]) -> list[StoreProblem]:
    """The problems of the database; a blob that is gone stays a problem."""
    return [problem for problem in problems if not problem.kind.endswith("-blob")]


async def usable(store: SqliteStore, agent: Agent[str], base: Base, damage: Damage) -> None:
    """Every conversation that is left can be read and continued."""
    for info in await store.conversations(1000):
        rows = await store.read(info.id)
        if damage.keeps_content and info.id in base.logs:
            assert rows == base.logs[info.id][: len(rows)], f"{info.id} is not a prefix of what was stored"
        chat = Chat(agent, store=store, id=info.id)
        # A changed byte inside a text is not noticed by a check, but may contradict another record.
        with contextlib.suppress(BlobError if damage.keeps_content else StoreError):
            await chat.load()
        await store.append(info.id, info.records, history(info.records + 1, info.records + 1))
    await store.append("after", 0, history(1, 1))


def commands_end(folder: Path) -> None:
    """The commands end with an exit code, before the repair and after it."""
    for arguments in (
        ["list"],
        ["show", "talk"],
        ["check"],
        ["files", "talk"],
        ["check", "--repair"],
        ["show", "talk"],
    ):
        sys.argv = ["sidestream", "logs", arguments[0], "--store", str(folder / "log.db"), *arguments[1:]]
        assert run_command() in (0, 1, 2), arguments


# Running it


class Failure(NamedTuple):
    case: str
    reason: str


def cases(bases: Sequence[Base], seed: int, count: int) -> Iterator[tuple[str, Base, Damage, random.Random]]:
    """Every damage to every store in turn, each time with other random numbers, the same for the same seed."""
    for number in range(count):
        base = bases[number // len(DAMAGES) % len(bases)]
        damage = DAMAGES[number % len(DAMAGES)]
        yield f"{seed}:{number} {base.name}, {damage.name}", base, damage, random.Random(f"{seed}:{number}")


def sweep(folder: Path, seed: int, count: int, *, only: int | None = None) -> tuple[Counter[str], list[Failure]]:
    """Tries this many damaged files. Returns how many were intact, repaired or refused, and the failures."""
    # Loaded once, not in every child.
    for module in ("inputs.conversations", "commands.logs", "display.output_folder", "interrupts", "chat.transcript"):
        importlib.import_module(f"sidestream.cli.{module}")
    bases = asyncio.run(make_bases(folder / "bases"))
    gc.freeze()  # A collection in a child would copy the memory of all modules.
    outcomes: Counter[str] = Counter()
    failures: list[Failure] = []
    for number, (case, base, damage, chance) in enumerate(cases(bases, seed, count)):
        if only not in (None, number):
            continue
        files = dict(base.files)
        damage.apply(files, chance)
        place = folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        write_files(place / "one", files)
        write_files(place / "two", files)
        outcome = in_child(place, base, damage)
        outcomes[outcome if outcome in ("intact", "repaired", "refused") else "failed"] += 1
        if outcome not in ("intact", "repaired", "refused"):
            failures.append(Failure(case, outcome))
    return outcomes, failures


def in_child(place: Path, base: Base, damage: Damage) -> str:
    """The outcome, from a process that is killed when its time is up."""
    report = place / "report"
    child = os.fork()
    if child == 0:
        signal.alarm(BOUND_S)
        output = os.open(place / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            outcome = asyncio.run(survive(place / "one", base, damage))
            commands_end(place / "two")
        except BaseException:
            outcome = traceback.format_exc()
        report.write_text(outcome)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return report.read_text() if os.WIFEXITED(status) else f"it did not end: signal {os.WTERMSIG(status)}"


def main() -> int:
    seed, count, *only = map(int, sys.argv[1:])
    # In memory where that is possible: nothing here depends on the disk.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        outcomes, failures = sweep(Path(folder), seed, count, only=only[0] if only else None)
    for failure in failures:
        print(f"{failure.case}\n{failure.reason}")
    print(json.dumps(outcomes))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
