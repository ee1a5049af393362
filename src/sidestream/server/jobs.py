"""What a run was started with: kept in the log, so that another process can resume it."""

from typing import Any, cast

import msgspec
from msgspec import Struct

from sidestream.agent.agent import Agent
from sidestream.agent.settings import CallSettings
from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.providers.model_settings import ModelSettings
from sidestream.tools.external import ExternalTool
from sidestream.tools.server_side import TOOLS, ServerSideTool, tool_named

MAX_ATTEMPTS = 3
"""How often a run is begun before it counts as failed: one that kills its process must not do so for ever."""


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run needs besides its conversation. No secrets: it is stored."""

    agent: str
    """An agent's name, or a model string."""
    api: str = "chat"
    """Which API it came by."""
    system: str | None = None
    """In place of the agent's own."""
    settings: JsonObject = {}
    """Portable settings: `temperature`, `thinking` and so on."""
    tools: tuple[str | JsonObject, ...] | None = None
    """Server-side tools in place of the agent's: a name, or an object with `name` and the tool's own fields."""
    functions: tuple[JsonObject, ...] = ()
    """Functions that the client runs, beside the agent's own tools: the fields of an `ExternalTool`."""
    limits: JsonObject = {}
    """Limits that differ from the agent's."""
    details: JsonObject = {}
    """What the API wants to remember."""
    attempt: int = 1
    is_resumable: bool = True
    """False if it held something that is not stored, such as a token: after a restart it counts as failed."""

    def as_details(self) -> JsonObject:
        """As the log keeps it."""
        return {"job": msgspec.to_builtins(self)}

    def call_settings(self, agent: Agent[Any]) -> CallSettings:
        """The settings of the call. Raises ConfigurationError for invalid ones."""
        call: dict[str, Any] = dict(self.settings)
        if unknown := call.keys() - set(ModelSettings.__struct_fields__):
            raise ConfigurationError(f"unknown settings: {', '.join(sorted(unknown))}")
        if self.system is not None:
            call["system"] = self.system
        if self.tools is not None:
            call["server_side_tools"] = [_tool(name) for name in self.tools]
        if self.functions:
            functions = [msgspec.convert(fields, ExternalTool) for fields in self.functions]
            call["tools"] = [*agent.tools.values(), *agent.toolsets, *functions]
        if self.limits:
            call["limits"] = msgspec.structs.replace(agent.limits, **self.limits)
        return cast(CallSettings, call)


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
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{given['name']}: {error}") from None
