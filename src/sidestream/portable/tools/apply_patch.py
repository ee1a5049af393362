"""Apply patch in a user's folder: one file at a time, written as a whole or not at all, never outside of it."""

import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Literal

from sidestream.actions.patch import PatchError, apply_diff
from sidestream.errors import UnsupportedError
from sidestream.jsontext import JsonObject
from sidestream.limits import MAX_PATCHED_BYTES
from sidestream.portable.services import Services
from sidestream.portable.tools.functions import Functions
from sidestream.portable.tools.shell import folder_of
from sidestream.tools.approvals import REQUIRED_APPROVAL
from sidestream.tools.server_side import ApplyPatch
from sidestream.tools.tool import Tool, ToolError
from sidestream.tools.toolset import Toolset

Operation = Literal["create_file", "update_file", "delete_file"]


def toolset(config: ApplyPatch, services: Services) -> Toolset:
    """Create the tool `apply_patch`.

    Raises UnsupportedError without a workspace or on an unsupported system, and ConfigurationError if the workspace is
    not a folder.
    """
    if config.workspace is None:
        raise UnsupportedError(
            'ApplyPatch needs a folder to run locally: ApplyPatch(workspace="."). Without one, a function of yours '
            "called apply_patch applies the patches"
        )
    if os.open not in os.supports_dir_fd:
        raise UnsupportedError("ApplyPatch(workspace=…) needs a system on which a folder can be held open, e.g. Linux")
    workspace = Workspace(folder_of(config.workspace))
    approval = REQUIRED_APPROVAL[config.require_approval]
    tool = Tool.from_function(workspace.apply, name=config.key, key=config.key, approval=approval)
    return Functions(config.key, [tool])


class Workspace:
    """A folder whose files can be changed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def apply(self, type: Operation, path: str, diff: str = "") -> JsonObject:
        """Creates, changes or deletes one file of the workspace.

        Args:
            type: What to do.
            path: The file, relative to the workspace.
            diff: For update_file, hunks: an optional line "@@ some line before", then lines that begin with a blank (as
                they are), "-" (to remove) or "+" (to add), with about 3 unchanged lines around each change. For
                create_file, the lines of the file, each after a "+".
        """  # noqa: D401 (sent to models)
        try:
            with self._parent(path, creates=type == "create_file") as (parent, name):
                match type:
                    case "create_file":
                        _write(parent, name, apply_diff("", diff), replaces=False)
                    case "update_file":
                        _write(parent, name, apply_diff(_read(parent, name), diff), replaces=True)
                    case "delete_file":
                        _check_file(parent, name)
                        os.unlink(name, dir_fd=parent)
        except PatchError as error:
            raise ToolError(str(error)) from error
        except UnicodeDecodeError as error:
            raise ToolError(f"{path} is no text file") from error
        except OSError as error:
            raise ToolError(f"{path}: {error.strerror}") from error
        return {"status": "completed", "output": f"{_DONE[type]} {path}"}

    @contextmanager
    def _parent(self, path: str, *, creates: bool) -> Generator[tuple[int, str]]:
        """Open the folder of a file, and yield its descriptor and the file's name.

        Links are resolved first. Then every step is made without following links, so that a link put there meanwhile is
        refused.
        """
        if "\0" in path or not path.strip():
            raise ToolError("a path is required")
        target = os.path.realpath(os.path.join(self._folder, path))
        if target == self._folder or os.path.commonpath([target, self._folder]) != self._folder:
            raise ToolError(f"{path} is outside of the workspace")
        *folders, name = os.path.relpath(target, self._folder).split(os.sep)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        here = os.open(self._folder, flags)
        try:
            for folder in folders:
                is_new = creates and _made(here, folder)
                below = os.open(folder, flags, dir_fd=here)
                if is_new:
                    _hand_over(below, os.stat(here))
                os.close(here)
                here = below
            yield here, name
        finally:
            os.close(here)


def _made(parent: int, name: str) -> bool:
    """Create a folder. Return False if it exists."""
    try:
        os.mkdir(name, 0o777, dir_fd=parent)
    except FileExistsError:
        return False
    return True


def _hand_over(descriptor: int, owner: os.stat_result) -> None:
    """Give what root has created to an owner. Other users keep what they create."""
    if os.geteuid() == 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


_DONE: dict[str, str] = {"create_file": "Created", "update_file": "Updated", "delete_file": "Deleted"}


def _check_file(parent: int, name: str) -> os.stat_result:
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{name} is no regular file")
    return status


def _read(parent: int, name: str) -> str:
    if _check_file(parent, name).st_size > MAX_PATCHED_BYTES:
        raise ToolError(f"{name} is too large to be changed: the limit is {MAX_PATCHED_BYTES} bytes")
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    with open(handle, "rb") as file:
        return file.read(MAX_PATCHED_BYTES).decode()


def _write(parent: int, name: str, text: str, *, replaces: bool) -> None:
    """Write a file atomically, so that readers and crashes see either the old or the new one.

    What root writes belongs to the owner of the old file, or of the folder. No new text runs as another user's program.
    """
    owner = _check_file(parent, name) if replaces else os.stat(parent)
    mode = owner.st_mode & 0o777 if replaces else 0o666
    temporary = f".{secrets.token_hex(8)}.patch"
    handle = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=parent
    )
    try:
        with open(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
            _hand_over(file.fileno(), owner)
            if replaces:
                os.fchmod(file.fileno(), mode)
        if replaces:
            os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        else:
            # Unlike a rename, a link does not replace an existing file.
            os.link(temporary, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
            os.unlink(temporary, dir_fd=parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise
