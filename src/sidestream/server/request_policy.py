"""What requests may add to an agent: server-side tools, client functions, instructions and settings."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.durable.log.jobs import Job, tool_key
from sidestream.jsontext import JsonObject
from sidestream.messages.message import ChatMessage
from sidestream.server.errors import RequestError
from sidestream.server.settings import OUTPUT, REQUEST_SETTINGS, Allowed, ServerSettings
from sidestream.tools.server_side import TOOLS, RemoteMCP, WebFetch

_PARAMS: Mapping[str, Mapping[str, str]] = {
    "responses": {"functions": "tools", "thinking": "reasoning.effort", OUTPUT: "text.format", "messages": "input"},
    "compact": {"messages": "input"},
    "completions": {
        "functions": "tools",
        "tools": "web_search_options",
        "thinking": "reasoning_effort",
        OUTPUT: "response_format",
    },
    "messages": {
        "functions": "tools",
        "stop": "stop_sequences",
        OUTPUT: "output_config.format",
        "messages": "system",
    },
    "agui": {"functions": "tools", "tools": "forwardedProps.tools", "thinking": "forwardedProps.thinking"},
}
"""Request parameters by API, where their names differ from those of the job's fields."""
_BOUNDS = frozenset({"max_tokens"})
"""Settings that any request may lower, because some APIs require them."""
_INTERNAL = frozenset({"unsupported"})
"""Settings that the server adds itself."""


class Allowance(Struct, frozen=True, kw_only=True):
    """What requests may add to one agent or model. True means anything, and a tuple the names in it."""

    tools: Allowed
    functions: Allowed
    instructions: bool
    settings: Allowed

    def shown(self, agent: Agent[Any] | None) -> JsonObject:
        """Return what a request may name, with an agent's own tools, as the web UI gets it."""
        own = own_tools(agent) if agent is not None else frozenset[str]()
        return {
            "tools": [key for key in TOOLS if key in own or _is_in(key, self.tools)],
            "functions": self.functions if isinstance(self.functions, bool) else list(self.functions),
            "instructions": self.instructions,
            "checks": self.may_check(agent),
            "settings": [name for name in REQUEST_SETTINGS if _is_in(name, self.settings)],
        }

    def may_check(self, agent: Agent[Any] | None) -> bool:
        """Return whether users may have the server read cited pages: if a request or the agent may read pages here."""
        has_check = agent is not None and (agent.evidence is not None or WebFetch.key in own_tools(agent))
        return has_check or _is_in(WebFetch.key, self.tools)


def allowance_of(settings: ServerSettings, name: str) -> Allowance:
    """Return what requests may add to an agent or model. By default that is nothing for an agent of the server's."""
    default = name not in settings.agents
    tools = _or(settings.allows_tools, default)
    if settings.mcp_hosts and not isinstance(tools, bool):
        tools = (*tools, RemoteMCP.key)
    elif settings.mcp_hosts and not tools:
        tools = (RemoteMCP.key,)  # Naming the hosts allows the servers there.
    return Allowance(
        tools=tools,
        functions=_or(settings.allows_functions, default),
        instructions=default if settings.allows_instructions is None else settings.allows_instructions,
        settings=_or(settings.allows_settings, default),
    )


def own_tools(agent: Agent[Any]) -> frozenset[str]:
    """Return the keys of an agent's server-side tools that a request can name without settings."""
    return frozenset(tool.key for tool in agent.server_side_tools)


class RequestPolicy:
    """Checks each request against what its agent allows, for all APIs."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings

    def admit(self, agent: Agent[Any], job: Job, messages: Iterable[ChatMessage] = ()) -> Job:
        """Return the job with the limits of the agent. `messages` are those before the prompt.

        Raises RequestError(403), with the parameter, if the request adds what the agent does not allow.
        """
        allows = allowance_of(self._settings, job.agent)
        own = own_tools(agent)
        for given in job.tools or ():
            key = tool_key(given)
            is_own = key in own and (isinstance(given, str) or len(given) == 1)
            if not is_own and not _is_in(key, allows.tools):
                what = f"settings for its tool {key!r:.80}" if key in own else f"the tool {key!r:.80}"
                raise _refused(job, what, "tools", "allows_tools")
        for function in job.functions:
            if not _is_in(str(function["name"]), allows.functions):
                raise _refused(job, f"the function {function['name']!r:.80}", "functions", "allows_functions")
        if job.system and not allows.instructions:
            raise _refused(job, "instructions", "instructions", "allows_instructions")
        self.check_history(job, messages)
        given = {*job.settings, *(() if job.output is None else (OUTPUT,))} - _INTERNAL - _BOUNDS
        if job.functions:
            given -= {"tool_choice"}  # Choosing among the request's functions is part of sending them.
        for name in sorted(given):
            if not _is_in(name, allows.settings):
                raise _refused(job, f"the setting {name!r}", name, "allows_settings")
        return _bounded(job, agent, allows.settings)

    def results(self, name: str) -> Allowed:
        """Return the tools whose results forks may change: True, or those that requests may bring as functions."""
        return allowance_of(self._settings, name).functions

    def check_results(self, job: Job, tools: Iterable[str], param: str) -> None:
        """Raise RequestError(403), with this parameter, if a fork must not change the result of one of these tools."""
        own = {str(function["name"]) for function in job.functions}
        for name in tools:
            if name not in own and not _is_in(name, self.results(job.agent)):
                raise _refused(job, f"another result of {name!r:.80}", param, "allows_functions")

    def check_history(self, job: Job, messages: Iterable[ChatMessage]) -> None:
        """Raise RequestError(403) if the history has instructions that the agent does not allow."""
        if not allowance_of(self._settings, job.agent).instructions and any(m.role == "system" for m in messages):
            raise _refused(job, "instructions", "messages", "allows_instructions")


def _bounded(job: Job, agent: Agent[Any], allowed: Allowed) -> Job:
    """Return the job with settings that only lower what the agent sets."""
    settings, limits = dict(job.settings), dict(job.limits)
    for name in _BOUNDS & settings.keys():
        bound = getattr(agent.settings, name)
        if bound is not None and not _is_in(name, allowed):
            settings[name] = min(settings[name], bound)
    if allowed is not True:
        limits = {name: min(value, getattr(agent.limits, name)) for name, value in limits.items()}
    if settings == job.settings and limits == job.limits:
        return job
    return replace(job, settings=settings, limits=limits)


def _or(given: Allowed | None, default: bool) -> Allowed:
    return default if given is None else given


def _is_in(name: str, allowed: Allowed) -> bool:
    return allowed if isinstance(allowed, bool) else name in allowed


def _refused(job: Job, what: str, field: str, option: str) -> RequestError:
    message = f"{job.agent!r:.80} does not accept {what} from requests; the server's operator can set {option}"
    param = _PARAMS.get(job.api, {}).get(field, field)
    return RequestError(403, message, type="permission_error", param=param, code="not_allowed")
