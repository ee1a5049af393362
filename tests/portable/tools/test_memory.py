"""Memory: files that the model keeps, with safe paths and bounded size."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, Memory, Store, ToolError, open_store
from sidestream.portable.tools import memory as memory_files
from sidestream.portable.tools.memory import Files, StoredMemory, memory_id
from sidestream.testing import ScriptedModel, tool_call

NOTE: Files = {"/memories/a/note.md": "one\ntwo\n", "/memories/b.md": "x"}


@requirement("R128")
async def test_memory_keeps_files_between_conversations():
    agent = Agent(
        ScriptedModel(
            [
                tool_call("memory", command="create", path="/memories/home.md", file_text="Oslo\n"),
                "Noted",
                tool_call("memory", command="view", path="/memories/home.md"),
                "Oslo",
            ]
        ),
        server_side_tools=[Memory(execution="here")],
    )
    first, second = await agent.send("I live in Oslo"), await agent.send("Where do I live?")
    assert [entry.result for entry in first.tool_results] == ["File created: /memories/home.md"]
    assert [entry.result for entry in second.tool_results] == ["/memories/home.md:\n     1\tOslo"]


@pytest.mark.parametrize(
    "path",
    [
        "/memories/../etc/passwd",
        "/etc/passwd",
        "memories/x",
        "/memories/./x",
        "/memories//x",
        "/memories/a\\b",
        "",
        "/",
    ],
)
def test_path_outside_memory_is_refused(path: str):
    with pytest.raises(ToolError):
        memory_files.safe_path(path)


def test_view_lists_folder_files_and_file_lines():
    assert memory_files.view(NOTE, "/memories").splitlines()[1:] == [
        "8 bytes\t/memories/a/note.md",
        "1 bytes\t/memories/b.md",
    ]
    assert memory_files.view(NOTE, "/memories/a/") == "Files in /memories/a:\n8 bytes\t/memories/a/note.md"
    assert memory_files.view(NOTE, "/memories/a/note.md", (2, -1)) == "/memories/a/note.md:\n     2\ttwo"
    with pytest.raises(ToolError):
        memory_files.view(NOTE, "/memories/a/note.md", (3, 9))


def test_text_is_replaced_only_if_unique():
    files, _ = memory_files.str_replace(NOTE, "/memories/a/note.md", "two", "2")
    assert files["/memories/a/note.md"] == "one\n2\n"
    for old in ("o", "three", ""):
        with pytest.raises(ToolError, match="times"):
            memory_files.str_replace(NOTE, "/memories/a/note.md", old, "")


@pytest.mark.parametrize(("line", "text"), [(0, "new\none\ntwo\n"), (1, "one\nnew\ntwo\n"), (2, "one\ntwo\nnew")])
def test_lines_are_inserted_after_given_line(line: int, text: str):
    files, _ = memory_files.insert(NOTE, "/memories/a/note.md", line, "new")
    assert files["/memories/a/note.md"] == text


def test_folders_are_deleted_and_renamed_with_contents():
    files, _ = memory_files.rename(NOTE, "/memories/a", "/memories/c/d")
    assert files == {"/memories/c/d/note.md": "one\ntwo\n", "/memories/b.md": "x"}
    assert memory_files.delete(files, "/memories/c")[0] == {"/memories/b.md": "x"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/memories/a", "/memories/b.md"),
        ("/memories/a", "/memories/b.md/x"),
        ("/memories/a", "/memories/a/b"),
        ("/memories", "/memories/x"),
        ("/memories/none", "/memories/x"),
    ],
)
def test_rename_does_not_overwrite(old: str, new: str):
    with pytest.raises(ToolError):
        memory_files.rename(NOTE, old, new)


def test_files_and_folders_are_not_confused():
    for path in ("/memories/b.md/x", "/memories/a", "/memories"):
        with pytest.raises(ToolError):
            memory_files.create(NOTE, path, "")
    with pytest.raises(ToolError):
        memory_files.delete(NOTE, "/memories")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory_files, "MAX_MEMORY_FILES", 2)
    monkeypatch.setattr(memory_files, "MAX_MEMORY_BYTES", 12)
    with pytest.raises(ToolError, match="full"):
        memory_files.create(NOTE, "/memories/c", "")
    with pytest.raises(ToolError, match="full"):
        memory_files.create(NOTE, "/memories/b.md", "xxxxx")


async def test_command_without_arguments_is_error_result():
    model = ScriptedModel([tool_call("memory", command="create", path="/memories/x"), "ok"])
    result = await Agent(model, server_side_tools=[Memory(execution="here")]).send("hi")
    assert result.tool_results[0].is_error


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Store]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    is_sqlite = request.param == "sqlite"
    opened = open_store(tmp_path / "talks.db" if is_sqlite else request.getfixturevalue("postgres_url"))
    yield opened
    await opened.aclose()


@requirement("R128")
async def test_memory_is_stored_per_tenant_and_name(store: Store):

    async def said(conversation: str, name: str | None, **arguments: Any) -> Any:
        model = ScriptedModel([tool_call("memory", **arguments), "ok"])
        agent = Agent(model, server_side_tools=[Memory(execution="here", name=name)])
        result = await Chat(agent, store=store, id=conversation).send("hi")
        return result.tool_results[0].result

    note: dict[str, Any] = {"command": "create", "path": "/memories/a.md", "file_text": "x" * 20_000}
    assert await said("ann/1", None, **note) == "File created: /memories/a.md"
    view = {"command": "view", "path": "/memories"}
    assert "20000 bytes" in await said("ann/2", None, **view)
    for conversation, name in (("bob/1", None), ("ann/3", "support"), ("alone", None)):
        assert await said(conversation, name, **view) == "Files in /memories:\n(none yet)"
    assert await said("ann/4", None, command="delete", path="/memories/a.md") == "Deleted: /memories/a.md"
    assert await said("ann/5", None, **view) == "Files in /memories:\n(none yet)"
    listed = {info.id for info in await store.conversations()}
    assert listed == {"ann/1", "ann/2", "ann/3", "ann/4", "ann/5", "bob/1", "alone"}
    assert await store.delete(memory_id("ann", ""))


@requirement("R128")
async def test_concurrent_processes_lose_no_memory_changes(store: Store):
    memories = [StoredMemory(store, "ann", "") for _ in range(4)]
    await asyncio.gather(
        *(
            memory.edit(partial(memory_files.create, path=f"/memories/{number}", text="x"))
            for number, memory in enumerate(memories)
        )
    )
    kept, _ = await memories[0].edit(lambda files: (files, ""))
    assert sorted(kept.files) == ["/memories/0", "/memories/1", "/memories/2", "/memories/3"]


def test_tenant_with_long_name_has_memory():
    assert len(memory_id("x" * 300, "")) < 100
    assert memory_id("x" * 300, "") != memory_id("x" * 301, "")
