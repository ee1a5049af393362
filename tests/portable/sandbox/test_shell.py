"""A shell, and patches, on a model whose provider hosts neither."""

import os
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, ApplyPatch, ConfigurationError, Shell, StreamPart, ToolResult
from sidestream.parts import ToolEvent
from sidestream.testing import ChatScript, FakeProvider, ResponsesScript, check_stream
from support.sandboxes import USER, given_to_user, needs


def agent_of(fake: FakeProvider, tool: Any, **settings: Any) -> Agent:
    return Agent("openai", base_url=fake.base_url, api_key="k", server_side_tools=[tool], **settings)


def scripts(name: str, *inputs: dict[str, Any]) -> list[Any]:
    calls = [ChatScript().tool_call(name, given).reply() for given in inputs]
    return [*calls, ChatScript().text("done").reply()]


def results(parts: list[StreamPart]) -> list[Any]:
    return [part.result for part in parts if isinstance(part, ToolResult)]


async def parts_of(agent: Agent) -> list[StreamPart]:
    async with agent.stream("go") as run:
        return [part async for part in run]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def owners_in(folder: Path) -> set[int]:
    return {path.stat().st_uid for path in folder.rglob("*")}


@requirement("R123")
async def test_shell_commands_have_hosted_events_and_result() -> None:
    needs("bubblewrap")
    given = {"commands": ["echo hi; echo no >&2", "echo 1 > n.txt; cat /etc/shadow"]}
    async with FakeProvider(scripts("shell", given)) as fake, agent_of(fake, Shell()) as agent:
        parts = await parts_of(agent)
    check_stream(parts)
    (result,) = results(parts)
    first, second = result["output"]
    assert first == {"stdout": "hi\n", "stderr": "no\n", "outcome": {"type": "exit", "exit_code": 0}}
    assert (second["stdout"], second["outcome"]["exit_code"]) == ("", 1)
    events = [part.event for part in parts if isinstance(part, ToolEvent) and part.tool == "shell"]
    deltas = [event for event in events if event["type"] == "response.shell_call_output_content.delta"]
    assert {"stdout": "hi\n"} in [event["delta"] for event in deltas]
    done = [event for event in events if event["type"] == "response.shell_call_output_content.done"]
    assert [event["command_index"] for event in done] == [0, 1]
    assert [part.name for part in parts if part.type == "file"] == ["n.txt"]


@requirement("R123")
async def test_timed_out_command_is_error_and_keeps_its_files() -> None:
    needs("bubblewrap")
    calls = [{"commands": ["echo 1 > a; sleep 60"], "timeout_ms": 300}, {"commands": ["cat a"]}]
    async with FakeProvider(scripts("shell", *calls)) as fake, agent_of(fake, Shell()) as agent:
        slow, after = results(await parts_of(agent))
    assert slow["output"][0]["outcome"] == {"type": "timeout"}
    assert after["output"][0]["stdout"] == "1\n"


@requirement("R123")
async def test_approved_command_changes_only_its_workspace(tmp_path: Path) -> None:
    needs("bubblewrap")
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.txt").write_text("old\n")
    (tmp_path / "secret").write_text("x")
    given_to_user(work)
    command = f"cat a.txt; echo new > a.txt; cat {tmp_path}/secret ../secret"
    tool = Shell(workspace=str(work))
    async with FakeProvider(scripts("shell", {"commands": [command]})) as fake, agent_of(fake, tool) as agent:
        waiting = await agent.send("go")
        assert (work / "a.txt").read_text() == "old\n"
        assert [approval.tool for approval in waiting.approvals] == ["shell"]
        done = await agent.resume(waiting.run_state, [approval.approve() for approval in waiting.approvals])
    entry = done.tool_results[0].result["output"][0]
    assert (entry["stdout"], entry["outcome"]["exit_code"]) == ("old\n", 1)
    assert (work / "a.txt").read_text() == "new\n"
    assert done.files == []


@requirement("R123")
async def test_workspace_must_be_folder(tmp_path: Path) -> None:
    async with FakeProvider([]) as fake:
        with pytest.raises(ConfigurationError, match="not a folder"):
            await agent_of(fake, Shell(workspace=str(tmp_path / "none"))).send("x")


async def patched(workspace: Path, *inputs: dict[str, Any]) -> list[Any]:
    tool = ApplyPatch(workspace=str(workspace), require_approval="never")
    async with FakeProvider(scripts("apply_patch", *inputs)) as fake:
        return results(await parts_of(agent_of(fake, tool)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for others")
async def test_patches_of_root_keep_owner_and_drop_set_id_bits(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    given_to_user(tmp_path)
    (tmp_path / "a.py").chmod(0o6755)
    create = {"type": "create_file", "path": "new/b.py", "diff": "+z = 1\n"}
    done = await patched(tmp_path, UPDATE, create)
    assert [result["status"] for result in done] == ["completed", "completed"], done
    status = (tmp_path / "a.py").stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o755, USER, USER)
    assert owners_in(tmp_path) == {USER}


UPDATE = {"type": "update_file", "path": "a.py", "diff": "@@\n x = 1\n-y = 2\n+y = 3\n"}


async def test_patches_create_change_and_delete_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    (tmp_path / "a.py").chmod(0o750)
    create = {"type": "create_file", "path": "new/b.py", "diff": "+z = 1\n"}
    delete = {"type": "delete_file", "path": "a.py"}
    done = await patched(tmp_path, UPDATE, create)
    assert [result["status"] for result in done] == ["completed", "completed"], done
    assert (tmp_path / "a.py").read_text() == "x = 1\ny = 3\n"
    assert (tmp_path / "a.py").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "new" / "b.py").read_text() == "z = 1\n"
    await patched(tmp_path, delete)
    assert names_in(tmp_path) == ["new"]


@pytest.mark.parametrize("path", ["../x.py", "/etc/x.py", "out/x.py", "link.py", ".", "", "a\0b"])
async def test_patches_cannot_reach_outside_workspace(tmp_path: Path, path: str) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.mkdir()
    (outside / "t.py").write_text("x = 1\ny = 2\n")
    (work / "out").symlink_to(outside)
    (work / "link.py").symlink_to(outside / "t.py")
    (result,) = await patched(work, {"type": "create_file", "path": path, "diff": "+1"})
    assert "error" in result
    (result,) = await patched(work, {**UPDATE, "path": path})
    assert "error" in result
    assert names_in(outside) == ["t.py"]
    assert (outside / "t.py").read_text() == "x = 1\ny = 2\n"
    assert not (tmp_path / "x.py").exists()


async def test_link_inside_workspace_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    (tmp_path / "b.py").symlink_to("a.py")
    await patched(tmp_path, {**UPDATE, "path": "b.py"})
    assert (tmp_path / "a.py").read_text() == "x = 1\ny = 3\n"
    assert (tmp_path / "b.py").is_symlink()


async def test_unmatched_patch_changes_no_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("other\n")
    create = {"type": "create_file", "path": "a.py", "diff": "+new"}
    for given in (UPDATE, create, {"type": "update_file", "path": "none.py", "diff": "@@\n x\n"}):
        (result,) = await patched(tmp_path, given)
        assert "error" in result
    assert names_in(tmp_path) == ["a.py"]
    assert (tmp_path / "a.py").read_text() == "other\n"


async def test_patches_of_built_in_tool_are_applied(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    item = {"type": "apply_patch_call", "call_id": "call_1", "status": "completed", "operation": UPDATE}
    script = [ResponsesScript().item(item).reply(), ResponsesScript().text("done").reply()]
    async with FakeProvider(script) as fake:
        agent = Agent(
            "openai-responses",
            base_url=fake.base_url,
            api_key="k",
            server_side_tools=[ApplyPatch(workspace=str(tmp_path))],
        )
        waiting = await agent.send("go")
        await agent.resume(waiting.run_state, [approval.approve() for approval in waiting.approvals])
        answer = fake.requests[1].json["input"][-1]
    assert (answer["type"], answer["status"], answer["output"]) == (
        "apply_patch_call_output",
        "completed",
        "Updated a.py",
    )
    assert (tmp_path / "a.py").read_text() == "x = 1\ny = 3\n"
