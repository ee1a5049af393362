"""Jobs: the settings a run was started with, kept in the log so that another process can resume it."""

import os
import platform
import re
from collections.abc import Container
from typing import Any, cast

import msgspec
from msgspec import Struct

from sidestream.agent.agent import Agent
from sidestream.agent.settings import CallSettings
from sidestream.durable.engines.protocol import MODELS
from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.providers.model_settings import ModelSettings
from sidestream.providers.protocol import KeepsAnswers
from sidestream.providers.registry import ModelString, find_provider
from sidestream.run.system import extended
from sidestream.tools.configs import merged_configs
from sidestream.tools.server_side import ALIASES, INDEX, TOOLS, FileSearch, RemoteMCP, ServerSideTool, tool_named
from sidestream.tools.tool import ExternalTool
from sidestream.transport.waits import RequestWait

STATELESS_APIS = frozenset({"completions", "messages"})
"""Names of APIs whose requests have the whole history."""
MAX_ATTEMPTS = 5
"""Attempts before a run counts as failed, so that a run that kills its process is not retried indefinitely."""


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings that a run needs besides its conversation. Must not hold secrets, since it is stored."""

    agent: str
    """Name of an agent, or a model string."""
    api: str = "chat"
    """API through which the run was requested."""
    system: str | None = None
    """Instructions after the agent's own."""
    settings: JsonObject = {}
    """Portable settings: `temperature`, `thinking` and so on."""
    tools: tuple[str | JsonObject, ...] | None = None
    """Server-side tools that replace the agent's: names, or objects with `name` and the tool's own fields."""
    adds_tools: bool = False
    """Whether `tools` extend the agent's tools, replacing only those of the same kind."""
    functions: tuple[JsonObject, ...] = ()
    """Functions that the client runs, in addition to the agent's tools, as fields of `ExternalTool`."""
    allowed: tuple[str, ...] | None = None
    """Tools that the model may use: function names, server-side tool keys, MCP server labels. None means all."""
    output: JsonObject | None = None
    """JSON schema of the answer."""
    is_stored: bool = True
    """Whether the provider may store the answers."""
    has_reasoning: bool = False
    """Whether the client gets reasoning that it can send back."""
    limits: JsonObject = {}
    """Limits that override the agent's."""
    details: JsonObject = {}
    """Values that the API stores for itself."""
    attempt: int = 1
    """Attempts at the same position. 0 means that no worker has executed it yet. See `next_attempt`."""
    has_expired: bool = False
    """Whether it was resumed because its approvals timed out."""
    at: float | None = None
    """Time at which to execute it, in seconds since 1970. None means at once."""
    is_resumable: bool = True
    """Whether another process can resume it. False if it held a value that is not stored, such as a token."""

    @property
    def is_stateless(self) -> bool:
        """Whether the next request of its client has the whole history, so that nothing continues this run."""
        return self.api in STATELESS_APIS

    def as_details(self) -> JsonObject:
        """Convert the job to the form stored in the log."""
        return {"job": msgspec.to_builtins(self)}

    def is_continued_by(self, later: "Job | None") -> bool:
        """Return whether `later` is the same request, executed for the first time or after an interruption."""
        return later is not None and (later.attempt > 1 or (later.attempt == 1 and self.attempt == 0))

    def queue_wait(self, since: float) -> RequestWait | None:
        """Return the wait of a run that no worker has executed yet, since the time of its first record."""
        if self.attempt:
            return None
        message = "Waiting for a free worker." if self.at is None else "The message is scheduled for later."
        return RequestWait(reason="queue", since=since, until=self.at, message=message)

    def call_settings(self, agent: Agent[Any]) -> CallSettings:
        """Return the call settings for the agent. Raises ConfigurationError if the job's settings are invalid."""
        call: dict[str, Any] = dict(self.settings)
        if unknown := call.keys() - set(ModelSettings.__struct_fields__):
            raise ConfigurationError(f"unknown settings: {', '.join(sorted(unknown))}")
        if self.system is not None:
            call["system"] = extended(agent.system, self.system)
        if self.tools is not None or self.allowed is not None:
            call["server_side_tools"] = self.hosted_tools(agent)
            if self.adds_tools and self.allowed is None and agent.options is not None:
                call["options"] = agent.options  # Keep the tools that the agent's options switch on.
        if (not self.is_stored or self.has_reasoning) and isinstance(agent.model, KeepsAnswers):
            wanted = agent.model.storage_options(
                agent.options, is_stored=self.is_stored, has_reasoning=self.has_reasoning
            )
            if wanted is not None:
                call["options"] = merged_configs(call.get("options"), wanted)
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

    def hosted_tools(self, agent: Agent[Any]) -> list[ServerSideTool]:
        """Return the server-side tools of the run."""
        return [tool for tool in self._hosted(agent) if self._allows(tool.key, tool)]

    def _hosted(self, agent: Agent[Any]) -> list[ServerSideTool]:
        if self.tools is None:
            return [*agent.server_side_tools]
        given = [tool for named in self.tools for tool in _tools(named, agent)]
        if not self.adds_tools:
            return given
        kinds = {type(tool) for tool in given if not isinstance(tool, RemoteMCP)}
        return [*(tool for tool in agent.server_side_tools if type(tool) not in kinds), *given]

    def _allows(self, name: str, tool: ServerSideTool | None = None) -> bool:
        if self.allowed is None:
            return True
        return (tool.label if isinstance(tool, RemoteMCP) else name) in self.allowed


def worker_name() -> str:
    """Return the name of this process in logs and lists."""
    return f"{platform.node()}:{os.getpid()}"


def driven_details(job: Job) -> JsonObject:
    """Convert the job of a run that this process executes to the form stored in the log."""
    return {**job.as_details(), "worker": worker_name()}


def job_in(details: JsonObject) -> Job | None:
    """Return the job in the details of a run's first record.

    None means that the run has no job, or one written by a newer version.
    """
    try:
        return msgspec.convert(details["job"], Job)
    except (KeyError, msgspec.ValidationError):
        return None


def tool_key(given: str | JsonObject) -> str:
    """Return the key of the server-side tool that a job names, which may be unknown."""
    name = given if isinstance(given, str) else str(given.get("name", ""))
    name = name.strip().lower().replace("-", "_")
    return ALIASES.get(name, name)


def _tools(given: str | JsonObject, agent: Agent[Any]) -> list[ServerSideTool]:
    """Return the tools of this name: the agent's own, with their settings, unless the job has others."""
    if isinstance(given, str) or len(given) == 1:
        key = tool_key(given)
        if own := [tool for tool in agent.server_side_tools if tool.key == key]:
            return own
    return [_tool(given)]


def _tool(given: str | JsonObject) -> ServerSideTool:
    if isinstance(given, str):
        return tool_named(given)
    fields = dict(given)
    kind = TOOLS.get(str(fields.pop("name", "")))
    if kind is None:
        raise ConfigurationError(f"unknown server-side tool {given.get('name')!r}")
    try:
        tool = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{given['name']}: {error}") from None
    # A request must not choose server folders, or whether its code is isolated. Whether it may search this machine's
    # index was checked when the job was created.
    is_index = isinstance(tool, FileSearch) and list(tool.stores) == [INDEX] and tool.embeddings is None
    names_files = getattr(tool, "workspace", None) is not None or bool(getattr(tool, "files", ()))
    if (tool.is_local and not is_index) or names_files:
        raise ConfigurationError(f"{given['name']}: a request cannot use these settings; set them on a server's agent")
    return tool


def queue_of(agent: str, known: Container[str] = ()) -> str:
    """Return the queue for runs of an agent or model string. Agents in `known` may be named like a model."""
    return MODELS if agent not in known and _is_model_string(agent) else agent


def _is_model_string(name: str) -> bool:
    """Return whether an agent's name starts with the name of a provider."""
    try:
        find_provider(ModelString.parse(name).provider)
    except ConfigurationError:
        return False
    return True


_TOKEN = re.compile(r"([0-9a-f]{12})-([0-9a-f]{8})")


def token_at(time_s: float, count: int = 0) -> str:
    """Return a token for this time, in seconds since 1970.

    `count` orders tokens of the same millisecond. The time comes first, and always from the engine's clock, so that a
    store can switch engines.
    """
    return f"{max(int(time_s * 1000), 0):012x}-{count:08x}"


def token_after(previous: str, time_s: float) -> str:
    """Return a token for this time that is greater than the previous one, even if the clock went backwards."""
    token = token_at(time_s)
    if token > previous:
        return token
    found = _TOKEN.fullmatch(previous)
    if found is None:
        return token_at(int(previous.replace("-", "")[:12], 16) / 1000 + 0.001)
    return f"{found[1]}-{int(found[2], 16) + 1:08x}"
