"""A folder of the user's in a container: who works on it, and what is refused."""

import os
import shutil
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from requirements import requirement
from sidestream import Agent, ConfigurationError, Shell
from sidestream.portable.sandbox import bubblewrap, choice
from sidestream.portable.sandbox.port import CommandOutcome, Container, ContainerSpec, SandboxError
from sidestream.portable.sandbox.workspace import RootWorkspaceWarning, check_mounts, container_user, sockets_in
from sidestream.testing import ScriptedModel, tool_call
from support.sandboxes import USER, given_to_user, needs

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand a folder to others")
KERNEL_FILES = ["sys/kernel/core_pattern", "sys/kernel/hostname", "sys/vm/overcommit_memory", "irq", "bus", "fs"]


@asynccontextmanager
async def started(folder: Path, *, allow_root: bool = False) -> AsyncGenerator[Container]:
    needs("bubblewrap")
    spec = ContainerSpec(packages=(), workspace=str(folder), allow_root=allow_root)
    container = await choice.start("bubblewrap", spec)
    try:
        yield container
    finally:
        await container.kill()


async def command(container: Container, text: str) -> CommandOutcome:
    return await container.command(text, lambda out, err: None)


def owner(path: Path) -> tuple[int, int]:
    return path.stat().st_uid, path.stat().st_gid


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: path.lstat().st_mode for path in folder.iterdir()}


def private(folder: Path) -> Path:
    """A folder that its owner alone can enter."""
    folder.mkdir(0o700)
    return given_to_user(folder)


@requirement("F47")
async def test_files_belong_to_owner_of_workspace(tmp_path: Path) -> None:
    given_to_user(tmp_path)
    async with started(tmp_path) as container:
        made = await command(container, "mkdir sub && echo 1 > sub/new.txt && chmod 755 sub/new.txt && id -u")
    assert (made.exit_code, made.stdout) == (0, "65534\n"), made
    assert owner(tmp_path / "sub") == owner(tmp_path / "sub/new.txt") == owner(tmp_path)
    assert owner(tmp_path)[0] not in (0, 65534)


@requirement("F47")
async def test_set_id_modes_and_devices_are_refused_in_workspace(tmp_path: Path) -> None:
    given_to_user(tmp_path)
    async with started(tmp_path) as container:
        for text in ("cp /bin/sh s && chmod u+s s", "cp /bin/sh g && chmod g+s g", "mknod d b 254 0", "mknod c c 1 3"):
            assert (await command(container, text)).exit_code != 0, text
        assert (await command(container, "mkfifo pipe && chmod 640 s && chmod +t .")).exit_code == 0
    modes = modes_in(tmp_path)
    assert sorted(modes) == ["g", "pipe", "s"]
    assert all(mode & 0o6000 == 0 for mode in modes.values())


@requirement("F47")
async def test_set_uid_program_in_workspace_runs_without_its_owner(tmp_path: Path) -> None:
    given_to_user(tmp_path)
    shutil.copy("/usr/bin/id", tmp_path / "id")
    (tmp_path / "id").chmod(0o6755)
    async with started(tmp_path) as container:
        outcome = await command(container, "./id -u; ./id -ru")
        flags = await container.run("import os\nprint(os.statvfs('.').f_flag & 7)", lambda text: None)
    assert outcome.stdout == "65534\n65534\n"
    assert flags.logs == "6\n"  # ST_NOSUID and ST_NODEV, and not ST_RDONLY


@needs_root
@requirement("F47")
async def test_workspace_of_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="allow_root=True"):
        async with Agent(ScriptedModel(["ok"]), server_side_tools=[Shell(workspace=str(tmp_path))]) as agent:
            await agent.send("go")
    needs("bubblewrap")
    for sandbox in ("bubblewrap", "auto", "none"):
        with pytest.raises(SandboxError, match="must not run as root"):
            await choice.start(sandbox, ContainerSpec(packages=(), workspace=str(tmp_path)))


@needs_root
@requirement("F47")
async def test_allow_root_warns_and_keeps_every_mask(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    needs("bubblewrap")
    opens = f"import os\nfor name in {KERNEL_FILES!r}:\n" + (
        "    try: print(name, os.listdir(f'/proc/{name}') if os.path.isdir(f'/proc/{name}') else"
        " os.open(f'/proc/{name}', os.O_WRONLY))\n"
        "    except OSError as error: print(name, error.errno)\n"
    )
    spec = ContainerSpec(packages=(), workspace=str(tmp_path), allow_root=True)
    with pytest.warns(RootWorkspaceWarning, match="as root"):
        container = await choice.start("bubblewrap", spec)
    await command(container, "echo 1 > new.txt; chmod u+s new.txt")
    kernel = await container.run(opens, lambda text: None)
    rights = await command(container, "grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status")
    await container.kill()
    assert "as root" in caplog.text
    status = (tmp_path / "new.txt").stat()
    assert (status.st_uid, status.st_mode & 0o7000) == (0, 0)
    assert kernel.logs.splitlines() == [f"{name} 30" for name in KERNEL_FILES[:3]] + [
        f"{n} []" for n in KERNEL_FILES[3:]
    ]
    words = dict(line.split(":\t") for line in rights.stdout.splitlines())
    assert {name: int(value, 16) for name, value in words.items()} == {
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0),
        **{"NoNewPrivs": 1, "Seccomp": 2},
    }


@needs_root
@requirement("F47")
@pytest.mark.filterwarnings("error::sidestream.portable.sandbox.workspace.RootWorkspaceWarning")
async def test_allow_root_does_not_make_root_of_another_owner(tmp_path: Path) -> None:
    given_to_user(tmp_path)
    async with started(tmp_path, allow_root=True) as container:
        await command(container, "echo 1 > new.txt")
    assert (tmp_path / "new.txt").stat().st_uid == USER


@needs_root
def test_group_of_root_is_not_given_to_commands(tmp_path: Path) -> None:
    os.chown(tmp_path, USER, 0)
    user = container_user(str(tmp_path))
    assert user is not None
    assert (user.uid, user.gid != 0) == (USER, True)


@needs_root
@requirement("F47")
async def test_workspace_in_private_folder_of_root_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(0o700)
    work = private(folder / "work")
    async with started(work) as container:
        first = await command(container, "echo 1 > a.txt; ls")
    work.rename(folder / "old")
    private(work)
    async with started(work) as container:
        second = await command(container, "echo 2 > b.txt; ls")
    assert (first.stdout, second.stdout) == ("a.txt\n", "b.txt\n")


def test_allow_root_needs_workspace() -> None:
    with pytest.raises(ConfigurationError, match="allow_root"):
        Shell(allow_root=True)


@requirement("F47")
@pytest.mark.parametrize("folder", ["/", "/proc", "/proc/sys/kernel", "/sys", "/dev"])
def test_workspace_with_kernel_file_system_is_refused(folder: str) -> None:
    if folder == "/dev" and not os.path.ismount("/dev"):
        pytest.skip("/dev is a plain folder here")
    with pytest.raises(SandboxError, match="file system"):
        check_mounts(folder)


def test_plain_folder_has_no_kernel_file_system(tmp_path: Path) -> None:
    check_mounts(str(tmp_path))


def test_sockets_in_workspace_are_found_by_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with socket.socket(socket.AF_UNIX) as inside, socket.socket(socket.AF_UNIX) as outside:
        inside.bind(str(tmp_path / "sub" / "a socket"))
        outside.bind(f"{tmp_path}.sock")
        assert sockets_in(str(tmp_path)) == ["sub/a socket"]
        (tmp_path / "sub" / "a socket").unlink()
        assert sockets_in(str(tmp_path)) == []
    os.unlink(f"{tmp_path}.sock")


@requirement("F47")
async def test_shell_of_root_runs_as_owner_of_workspace(tmp_path: Path) -> None:
    needs("bubblewrap")
    given_to_user(tmp_path)
    tool = Shell(workspace=str(tmp_path), require_approval="never")
    model = ScriptedModel([tool_call("shell", commands=["echo x > made; : >> /proc/sys/kernel/core_pattern"]), "ok"])
    async with Agent(model, server_side_tools=[tool]) as agent:
        (result,) = (await agent.send("go")).tool_results
    assert result.result["output"][0]["outcome"]["exit_code"] != 0, result
    assert (tmp_path / "made").stat().st_uid == owner(tmp_path)[0] != 0


@pytest.fixture
def _without_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a security module takes them from programs of bubblewrap."""
    words = list(bubblewrap._ISOLATION)
    while "--cap-add" in words:
        del words[words.index("--cap-add") : words.index("--cap-add") + 2]
    monkeypatch.setattr(bubblewrap, "_ISOLATION", tuple(words))


@pytest.mark.usefixtures("_without_capabilities")
async def test_container_is_closed_without_capabilities(tmp_path: Path) -> None:
    given_to_user(tmp_path)
    async with started(tmp_path) as container:
        status = await command(container, "grep -E '^(CapBnd|Seccomp:)' /proc/1/status")
        writable = await command(container, "test -w /proc/sys/kernel/core_pattern")
    assert status.stdout == "CapBnd:\t0000000000000000\nSeccomp:\t2\n"
    assert writable.exit_code == 1


@needs_root
@requirement("F47")
@pytest.mark.usefixtures("_without_capabilities")
@pytest.mark.filterwarnings("ignore::sidestream.portable.sandbox.workspace.RootWorkspaceWarning")
async def test_allow_root_is_refused_without_masks(tmp_path: Path) -> None:
    needs("bubblewrap")
    with pytest.raises(SandboxError, match="could not be closed: unshare"):
        await choice.start("bubblewrap", ContainerSpec(packages=(), workspace=str(tmp_path), allow_root=True))


@needs_root
async def test_missing_workspace_is_sandbox_error(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="cannot be used"):
        await choice.start("bubblewrap", ContainerSpec(packages=(), workspace=str(tmp_path / "none")))


async def test_mounts_of_container_are_not_listed(tmp_path: Path) -> None:
    given_to_user(tmp_path)
    async with started(tmp_path) as container:
        outcome = await command(container, "cat /proc/self/mountinfo /proc/1/mounts /proc/mounts /proc/self/mountstats")
    assert (outcome.exit_code, outcome.stdout) == (0, "")
