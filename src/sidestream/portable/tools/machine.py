"""Shared parts of local tools that run code: a call's container, the conversation's files, and deliverables."""

import asyncio
import math
from collections.abc import AsyncGenerator, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.files import media_types
from sidestream.files.saving import safe_name
from sidestream.jsontext import JsonObject
from sidestream.limits import CODE_LIMITS, DEFAULT_SANDBOX_LIMITS, MIB, SandboxLimits
from sidestream.messages.container_files import container_files_in, load_files
from sidestream.messages.message import ChatMessage, DataPart, ToolResultPart
from sidestream.parts import Custom, File, ToolEvent
from sidestream.portable.sandbox.choice import sandbox_named
from sidestream.portable.sandbox.containers import GONE, Containers, KeptContainer
from sidestream.portable.sandbox.port import ENDED, CodeFile, ContainerSpec, Ending, SandboxError
from sidestream.providers.shared.continuation import CONTAINER_REPLACED
from sidestream.store.ids import ConversationId
from sidestream.store.wrapped import identity_of
from sidestream.tools.interruption import InterruptionPolicy
from sidestream.tools.server_side import CodeInterpreter, ProgrammaticToolCalling, Shell
from sidestream.tools.tool import ToolContext, ToolError

_MEMORY: dict[str, int] = {"1g": 1024 * MIB, "4g": 4096 * MIB, "16g": 16384 * MIB, "64g": 65536 * MIB}
_MAX_NAMES = 20
"""Maximum names of restored files in a note."""
_ENDING = frozenset({"auto", "bubblewrap", "runsc", "monty"})
"""Sandboxes without a network, whose containers do not outlive an interrupted call."""
RunsCode = CodeInterpreter | Shell | ProgrammaticToolCalling


class Place(Struct, frozen=True):
    """The container that a call runs in."""

    kept: KeptContainer
    notes: tuple[str, ...] = ()
    """Notes about it for the model."""

    @property
    def container_id(self) -> str:
        return self.kept.container.id


class Machine:
    """The containers of one tool. Raises UnsupportedError if a setting is supported by providers only."""

    def __init__(self, config: RunsCode, *, workspace: str | None = None) -> None:
        self._config = config
        self._workspace = workspace
        if config.sandbox != "auto":
            sandbox_named(config.sandbox)  # raises if it is unknown
        self.limits = _limits(config)
        packages = None if config.packages is None else tuple(config.packages)
        allow_root = getattr(config, "allow_root", False)
        spec = ContainerSpec(limits=self.limits, packages=packages, workspace=workspace, allow_root=allow_root)
        self.containers = Containers(config.sandbox, spec, kind=config.key)

    @property
    def on_interruption(self) -> InterruptionPolicy:
        """Policy for an interrupted call.

        Our own sandboxes have no network, and a container ends with the call or the process that is interrupted in it,
        so nothing outside has changed and the call can run again. A container elsewhere may live on.
        """
        is_gone = self._config.sandbox in _ENDING and self._workspace is None
        return "retry" if is_gone else "ask"

    @asynccontextmanager
    async def place(self, context: ToolContext, *, is_private: bool = False) -> AsyncGenerator[Place]:
        """Yield the container of this call, with the conversation's files in it.

        Calls of a conversation share a container, or those of a run if the config says so. With `is_private`, the
        container serves this call only. Raises ToolError if no container can be started.
        """
        files = _files(context.history, getattr(self._config, "file_ids", ()))
        if isinstance(self._config, CodeInterpreter) and self._config.files:
            given = await asyncio.to_thread(_given, self._config.files)
            files = [*(file for file in given if file.name not in {other.name for other in files}), *files]
        group = None if is_private else self._group(context)
        named: str | None = None if is_private else getattr(self._config, "container_id", None)
        had_one = not is_private and self._had_one(context)
        try:
            async with self.containers.use(_owner(context), group, named=named, had_one=had_one) as (kept, is_new):
                notes: list[str] = []
                restored = [file.name for file in files]
                try:
                    await kept.put(files)
                except SandboxError as error:
                    notes, restored = [str(error)], []
                if is_new:
                    message = _lost(restored)
                    data: JsonObject = {"reason": "expired", "message": message, "container_id": kept.container.id}
                    context.emit(Custom(CONTAINER_REPLACED, {**data, "restored": restored}))
                    notes.insert(0, message)
                yield Place(kept, tuple(notes))
        except SandboxError as error:
            raise ToolError(str(error)) from error

    @property
    def _is_reused(self) -> bool:
        return getattr(self._config, "reuse_container", None) is not False

    def _group(self, context: ToolContext) -> tuple[str | None, ...] | None:
        """Return the key of the calls that share a container.

        A history alone does not identify a conversation, since its sender may have written it.
        """
        if self._is_reused and context.conversation is not None:
            return (context.conversation,)
        return (context.conversation, context.run_id) if context.run_id else None

    def _had_one(self, context: ToolContext) -> bool:
        """Return whether earlier calls had a container, perhaps in another process or at a provider.

        The model is then told that it was lost. The result does not identify the container, since results hold whatever
        a tool returned.
        """
        history = [*context.history]
        start = max((at for at, message in enumerate(history) if message.role == "user"), default=0)
        return _mentions_container(history if self._is_reused else history[start:], self._config.key, self._is_reused)

    def explained(self, ending: Ending) -> str | None:
        """Return why the container has ended, for the model, or None if it has not."""
        text = ENDED.get(ending)
        limits = self.limits
        return text and text.format(
            cell_s=limits.cell_s, output_mib=limits.output_bytes // MIB, memory_mib=limits.memory_bytes // MIB
        )


def _lost(restored: list[str]) -> str:
    """Return what a replaced container lost, and which files the new one has again."""
    if not restored:
        return f"{GONE}, without the variables and files of the old one."
    more = f" and {len(restored) - _MAX_NAMES} more" if len(restored) > _MAX_NAMES else ""
    names = ", ".join(restored[:_MAX_NAMES])
    return f"{GONE}, without the variables of the old one. Files of the conversation are restored: {names}{more}."


def _limits(config: RunsCode) -> SandboxLimits:
    network = getattr(config, "network", None)
    if network is not None and network.allowed_domains:
        raise UnsupportedError(
            f"{type(config).__name__}(network=…): a local sandbox has no network; omit it, or use a provider's"
        )
    memory = getattr(config, "memory_limit", None)
    limits = CODE_LIMITS if isinstance(config, CodeInterpreter) else DEFAULT_SANDBOX_LIMITS
    if memory:
        limits = replace(limits, memory_bytes=_MEMORY[memory])
    return _given_limits(config, limits) if isinstance(config, CodeInterpreter) else limits


def _given_limits(config: CodeInterpreter, limits: SandboxLimits) -> SandboxLimits:
    """Return the limits with those that the config sets."""
    changes: dict[str, Any] = {}
    if config.timeout_s is not None:
        # One process may compute for several calls.
        changes |= {"cell_s": config.timeout_s, "cpu_s": max(limits.cpu_s, math.ceil(config.timeout_s) * 12)}
    if config.memory_mb is not None:
        changes["memory_bytes"] = config.memory_mb * MIB
    if config.disk_mb is not None:
        changes["disk_bytes"] = config.disk_mb * MIB
    if config.max_file_mb is not None:
        size = config.max_file_mb * MIB
        changes |= {"file_bytes": size, "delivered_bytes": max(limits.delivered_bytes, size)}
    if config.max_output_kb is not None:
        size = config.max_output_kb * 1024
        changes |= {"log_bytes": size, "output_bytes": max(limits.output_bytes, size)}
    return replace(limits, **changes)


def _owner(context: ToolContext) -> Hashable:
    """Return who may name a container by its id.

    That is a server's tenant, who has the conversations `owner/…`, or one conversation.
    """
    conversation = context.conversation
    if conversation is None:
        return None
    owner = ConversationId.parse(conversation).owner
    return identity_of(context.store), conversation if owner is None else f"{owner}/"


def _mentions_container(history: Iterable[ChatMessage], tool: str, with_sessions: bool) -> bool:
    """Return whether a result of the tool, or a provider's session, names a container."""
    for message in history:
        named = [part.result for part in message.parts if isinstance(part, ToolResultPart) and part.name == tool]
        sessions = [value for name, value in message.metadata.items() if with_sessions and name.endswith("_session")]
        if any(jsontext.text_in(jsontext.as_object(value), "container_id") for value in (*named, *sessions)):
            return True
    return False


def _given(files: Sequence[str | DataPart]) -> list[CodeFile]:
    """Return the files of the tool's settings. Raises ToolError if one cannot be read."""
    try:
        parts = load_files(files)
    except ConfigurationError as error:
        raise ToolError(str(error)) from error
    return [CodeFile(safe_name(part.name or "file", part.mime_type), part.data) for part in parts]


def _files(history: Iterable[ChatMessage], wanted: Sequence[str]) -> list[CodeFile]:
    """Return the conversation's files, or the wanted ones. A later file replaces one of the same name.

    Raises ToolError if a wanted file is missing.
    """
    found: dict[str, CodeFile] = {}
    for message in history:
        for part in message.parts:
            for file in (part,) if isinstance(part, DataPart) else container_files_in(part):
                name = safe_name(file.name or f"file_{len(found) + 1}", file.mime_type)
                found[name] = CodeFile(name, file.data)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ToolError(
            f"no file of the conversation is called {', '.join(missing)}; it has {', '.join(found) or 'none'}"
        )
    return [file for name, file in found.items() if not wanted or name in wanted]


def deliver(context: ToolContext, place: Place, files: Iterable[CodeFile]) -> None:
    """Emit files that code has made."""
    for file in files:
        place.kept.has(file)
        mime_type = media_types.sniff(file.data, file.name)
        origin: JsonObject = {"container_id": place.container_id, "path": file.path}
        context.emit(File("", mime_type, file.name, file.data, provider_metadata={"sidestream": origin}))


def emit_event(context: ToolContext, kind: str, stage: str, **fields: object) -> None:
    """Emit an event in the format of the Responses API."""
    context.emit(ToolEvent("", "delta", {"type": f"response.{kind}.{stage}", **fields}, provider_stage=stage))
