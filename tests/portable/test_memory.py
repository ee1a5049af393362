"""Memory: files that the model keeps, with safe paths and bounded size."""

import pytest

from requirements import requirement
from sidestream import Agent, Memory, ToolError
from sidestream.portable import memory_files
from sidestream.portable.memory_files import Files
from sidestream.testing import ScriptedModel, tool_call

NOTE: Files = {"/memories/a/note.md": "one\ntwo\n", "/memories/b.md": "x"}


@requirement("R128")
async def test_a_model_keeps_files_between_two_conversations():
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
def test_a_path_outside_of_the_memory_is_refused(path: str):
    with pytest.raises(ToolError):
        memory_files.safe_path(path)


def test_a_folder_lists_its_files_and_a_file_its_lines():
    assert memory_files.view(NOTE, "/memories").splitlines()[1:] == [
        "8 bytes\t/memories/a/note.md",
        "1 bytes\t/memories/b.md",
    ]
    assert memory_files.view(NOTE, "/memories/a/") == "Files in /memories/a:\n8 bytes\t/memories/a/note.md"
    assert memory_files.view(NOTE, "/memories/a/note.md", (2, -1)) == "/memories/a/note.md:\n     2\ttwo"
    with pytest.raises(ToolError):
        memory_files.view(NOTE, "/memories/a/note.md", (3, 9))


def test_text_is_replaced_only_where_it_occurs_once():
    files, _ = memory_files.str_replace(NOTE, "/memories/a/note.md", "two", "2")
    assert files["/memories/a/note.md"] == "one\n2\n"
    for old in ("o", "three", ""):
        with pytest.raises(ToolError, match="times"):
            memory_files.str_replace(NOTE, "/memories/a/note.md", old, "")


@pytest.mark.parametrize(("line", "text"), [(0, "new\none\ntwo\n"), (1, "one\nnew\ntwo\n"), (2, "one\ntwo\nnew")])
def test_lines_are_inserted_after_a_line(line: int, text: str):
    files, _ = memory_files.insert(NOTE, "/memories/a/note.md", line, "new")
    assert files["/memories/a/note.md"] == text


def test_folders_are_deleted_and_renamed_with_what_they_hold():
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
def test_nothing_is_overwritten_by_a_rename(old: str, new: str):
    with pytest.raises(ToolError):
        memory_files.rename(NOTE, old, new)


def test_a_file_is_no_folder_and_a_folder_no_file():
    for path in ("/memories/b.md/x", "/memories/a", "/memories"):
        with pytest.raises(ToolError):
            memory_files.create(NOTE, path, "")
    with pytest.raises(ToolError):
        memory_files.delete(NOTE, "/memories")


def test_a_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory_files, "MAX_MEMORY_FILES", 2)
    monkeypatch.setattr(memory_files, "MAX_MEMORY_BYTES", 12)
    with pytest.raises(ToolError, match="full"):
        memory_files.create(NOTE, "/memories/c", "")
    with pytest.raises(ToolError, match="full"):
        memory_files.create(NOTE, "/memories/b.md", "xxxxx")


async def test_a_command_without_its_arguments_is_an_error_result():
    model = ScriptedModel([tool_call("memory", command="create", path="/memories/x"), "ok"])
    result = await Agent(model, server_side_tools=[Memory(execution="here")]).send("hi")
    assert result.tool_results[0].is_error
