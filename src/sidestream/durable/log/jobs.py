"""What a run was started with: kept in the log, so that another process can resume it."""

import os
import platform
from typing import Any, cast

import msgspec
from msgspec import Struct

from sidestream.agent.agent import Agent
from sidestream.agent.settings import CallSettings
from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.providers.model_settings import ModelSettings
from sidestream.run.system import extended
from sidestream.tools.server_side import INDEX, TOOLS, FileSearch, RemoteMCP, ServerSideTool, tool_named
from sidestream.tools.tool import ExternalTool

MAX_ATTEMPTS = 5
"""How often a run is begun before it counts as failed: one that kills its process must not do so for ever."""


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run needs besides its conversation. No secrets: it is stored."""

    agent: str
    """An agent's name, or a model string."""
    api: str = "chat"
    """Which API it came by."""
    system: str | None = None
    """Instructions after the agent's own."""
    settings: JsonObject = {}
    """Portable settings: `temperature`, `thinking` and so on."""
    tools: tuple[str | JsonObject, ...] | None = None
    """Server-side tools in place of the agent's: a name, or an object with `name` and the tool's own fields."""
    adds_tools: bool = False
    """True: `tools` come beside the agent's, in place of those of the same kind."""
    functions: tuple[JsonObject, ...] = ()
    """Functions that the client runs, beside the agent's own tools: the fields of an `ExternalTool`."""
    allowed: tuple[str, ...] | None = None
    """The only tools that the model may use: names of functions, keys of server-side tools, labels of MCP servers."""
    output: JsonObject | None = None
    """The JSON schema that the answer must have."""
    limits: JsonObject = {}
    """Limits that differ from the agent's."""
    details: JsonObject = {}
    """What the API wants to remember."""
    attempt: int = 1
    """How often it was tried at the same place. 0: it was begun, and has yet to be driven. See `next_attempt`."""
    has_expired: bool = False
    """True if it was resumed because nobody decided in time."""
    at: float | None = None
    """When it is to be driven, in seconds since 1970; None: at once."""
    is_resumable: bool = True
    """False if it held something that is not stored, such as a token: after a restart it counts as failed."""

    def as_details(self) -> JsonObject:
        """As the log keeps it."""
        return {"job": msgspec.to_builtins(self)}

    def is_continued_by(self, later: "Job | None") -> bool:
        """True if the later one is the same request, driven for the first time, or again after an interruption."""
        return later is not None and (later.attempt > 1 or (later.attempt == 1 and self.attempt == 0))

    def call_settings(self, agent: Agent[Any]) -> CallSettings:
        """The settings of the call. Raises ConfigurationError for invalid ones."""
        call: dict[str, Any] = dict(self.settings)
        if unknown := call.keys() - set(ModelSettings.__struct_fields__):
            raise ConfigurationError(f"unknown settings: {', '.join(sorted(unknown))}")
        if self.system is not None:
            call["system"] = extended(agent.system, self.system)
        if self.tools is not None or self.allowed is not None:
            call["server_side_tools"] = [tool for tool in self._hosted(agent) if self._allows(tool.key, tool)]
            if self.adds_tools and self.allowed is None and agent.options is not None:
                call["options"] = agent.options  # Those that the agent's options switch on stay, too.
        if self.functions or self.allowed is not None:
            functions = [msgspec.convert(fields, ExternalTool) for fields in self.functions]
            call["tools"] = [
                *(tool for name, tool in agent.tools.items() if self._allows(name)),
                *(toolset for toolset in agent.toolsets if self._allows(toolset.label)),
                *(function for function in functions if self._allows(function.name)),
            ]
        if self.limits:
            call["limits"] = msgspec.structs.replace(agent.limits, **self.limits)
        return cast(CallSettings, call)

    def _hosted(self, agent: Agent[Any]) -> list[ServerSideTool]:
        if self.tools is None:
            return [*agent.server_side_tools]
        given = [_tool(name) for name in self.tools]
        if not self.adds_tools:
            return given
        kinds = {type(tool) for tool in given if not isinstance(tool, RemoteMCP)}
        return [*(tool for tool in agent.server_side_tools if type(tool) not in kinds), *given]

    def _allows(self, name: str, tool: ServerSideTool | None = None) -> bool:
        if self.allowed is None:
            return True
        return (tool.label if isinstance(tool, RemoteMCP) else name) in self.allowed


def worker_name() -> str:
    """How this process is called in logs and lists."""
    return f"{platform.node()}:{os.getpid()}"


def driven_details(job: Job) -> JsonObject:
    """As the log keeps the job of a run that this process drives."""
    return {**job.as_details(), "worker": worker_name()}


def job_in(details: JsonObject) -> Job | None:
    """The job that the first record of a run holds; None if the run was not a server's, or of a newer one."""
    try:
        return msgspec.convert(details["job"], Job)
    except (KeyError, msgspec.ValidationError):
        return None


def _tool(given: str | JsonObject) -> ServerSideTool:
    if isinstance(given, str):
        return tool_named(given)
    fields = dict(given)
    kind = TOOLS.get(str(fields.pop("name", "")))
    if kind is None:
        raise ConfigurationError(f"no server-side tool is called {given.get('name')!r}")
    try:
        tool = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{given['name']}: {error}") from None
    # A request must not choose folders of the server, or whether its code is isolated. Whether it may search the index
    # of this machine was decided when the job was made.
    is_index = isinstance(tool, FileSearch) and list(tool.stores) == [INDEX] and tool.embeddings is None
    if (tool.is_local and not is_index) or getattr(tool, "workspace", None) is not None:
        raise ConfigurationError(f"{given['name']}: these settings are for the agents of the server, not for a request")
    return tool
