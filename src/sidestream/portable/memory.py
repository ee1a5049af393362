"""Memory on every model: files that the model keeps between conversations, with the commands of Anthropic's tool."""

from functools import partial
from typing import Literal

from sidestream.portable import memory_files
from sidestream.portable.functions import Functions
from sidestream.portable.memory_store import KeepsMemory, ProcessMemory, StoredMemory, read
from sidestream.portable.services import Services
from sidestream.tools.server_side import Memory
from sidestream.tools.tool import Tool, ToolContext, ToolError
from sidestream.tools.toolset import Toolset

Command = Literal["view", "create", "str_replace", "insert", "delete", "rename"]


def toolset(config: Memory, services: Services) -> Toolset:
    """The tool `memory`."""
    memory = _Memory(config.name or "")
    return Functions(config.key, [Tool.from_function(memory.run, name=config.key, key=config.key)])


class _Memory:
    """The memories of an agent's users."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kept: dict[str, ProcessMemory] = {}
        """Owner → the memory of chats without a store."""

    async def run(
        self,
        context: ToolContext,
        command: Command,
        path: str | None = None,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: int | None = None,
        insert_text: str | None = None,
        view_range: list[int] | None = None,
        old_path: str | None = None,
        new_path: str | None = None,
    ) -> str:
        """Notes that outlive this conversation, as files under /memories. View it before you begin a task.

        Save what you learn about the user and the task; keep the files short, current and well named.

        Args:
            command: What to do.
            path: The file or folder, for all commands but rename.
            file_text: The file's new text, for create.
            old_str: The text to replace, which must occur exactly once, for str_replace.
            new_str: What replaces it.
            insert_line: The line after which to insert; 0 is the beginning.
            insert_text: The text to insert.
            view_range: First and last line, for view; -1 is the end.
            old_path: What to rename.
            new_path: Its new path.
        """
        given = {
            "path": path,
            "file_text": file_text,
            "old_str": old_str,
            "insert_line": insert_line,
            "insert_text": insert_text,
            "old_path": old_path,
            "new_path": new_path,
        }
        missing = [name for name in _NEEDS[command] if given[name] is None]
        if missing:
            raise ToolError(f"{command} needs {', '.join(missing)}")
        memory = self._memory(context)
        match command:
            case "view":
                return await read(memory, lambda files: memory_files.view(files, path or "", _lines(view_range)))
            case "create":
                return await memory.edit(lambda files: memory_files.create(files, path or "", file_text or ""))
            case "str_replace":
                edit = partial(memory_files.str_replace, path=path or "", old=old_str or "", new=new_str or "")
                return await memory.edit(edit)
            case "insert":
                edit = partial(memory_files.insert, path=path or "", line=insert_line or 0, added=insert_text or "")
                return await memory.edit(edit)
            case "delete":
                return await memory.edit(lambda files: memory_files.delete(files, path or ""))
            case "rename":
                return await memory.edit(lambda files: memory_files.rename(files, old_path or "", new_path or ""))

    def _memory(self, context: ToolContext) -> KeepsMemory:
        owner = owner_of(context.conversation)
        if context.store is not None:
            return StoredMemory(context.store, owner, self._name)
        return self._kept.setdefault(owner, ProcessMemory())


def owner_of(conversation: str | None) -> str:
    """Whose conversation it is: a server stores each under `owner/id`. Empty without one."""
    owner, slash, _ = (conversation or "").rpartition("/")
    return owner if slash else ""


_NEEDS: dict[Command, tuple[str, ...]] = {
    "view": ("path",),
    "create": ("path", "file_text"),
    "str_replace": ("path", "old_str"),
    "insert": ("path", "insert_line", "insert_text"),
    "delete": ("path",),
    "rename": ("old_path", "new_path"),
}
"""Command → the arguments that it must have."""


def _lines(view_range: list[int] | None) -> tuple[int, int] | None:
    if view_range is None:
        return None
    if len(view_range) != 2:
        raise ToolError("view_range needs two numbers: the first and the last line")
    return view_range[0], view_range[1]
