"""Memory on every model: files that the model keeps between conversations, with the commands of Anthropic's tool."""

from functools import partial
from typing import Literal

from msgspec.structs import replace

from sidestream.portable.services import Services
from sidestream.portable.tools import memory_files
from sidestream.portable.tools.functions import Functions
from sidestream.portable.tools.memory_store import Edit, KeepsMemory, Kept, ProcessMemory, StoredMemory
from sidestream.tools.server_side import Memory
from sidestream.tools.tool import Tool, ToolContext, ToolError, ToolOutcome
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
    ) -> ToolOutcome:
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
        edit: Edit
        match command:
            case "view":
                lines = _lines(view_range)
                edit = lambda files: (files, memory_files.view(files, path or "", lines))  # noqa: E731
            case "create":
                edit = partial(memory_files.create, path=path or "", text=file_text or "")
            case "str_replace":
                edit = partial(memory_files.str_replace, path=path or "", old=old_str or "", new=new_str or "")
            case "insert":
                edit = partial(memory_files.insert, path=path or "", line=insert_line or 0, added=insert_text or "")
            case "delete":
                edit = partial(memory_files.delete, path=path or "")
            case "rename":
                edit = partial(memory_files.rename, old=old_path or "", new=new_path or "")
        memory = self._memory(context)
        try:
            kept, said = await memory.edit(edit, is_untrusted=bool(context.sources))
        except ToolError as error:
            # Its message may list the files.
            kept, _ = await memory.edit(lambda files: (files, ""))
            failed = ToolOutcome.failure(type(error).__name__, str(error))
            return replace(failed, source=_source(kept, memory_files.ROOT))
        return ToolOutcome(said, source=_source(kept, path or "") if command == "view" else None)

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


def _source(kept: Kept, path: str) -> str | None:
    """The untrusted file that a path shows, if any."""
    shown = (name for name in sorted(kept.untrusted) if f"{name}/".startswith(f"{path.rstrip('/')}/"))
    return next((f"the memory {name}" for name in shown), None)


def _lines(view_range: list[int] | None) -> tuple[int, int] | None:
    if view_range is None:
        return None
    if len(view_range) != 2:
        raise ToolError("view_range needs two numbers: the first and the last line")
    return view_range[0], view_range[1]
