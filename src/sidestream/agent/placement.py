"""An agent's functions and toolsets, the placement of its server-side tools, and agents as tools of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from sidestream.errors import ConfigurationError, NotHostedError, UnsupportedError
from sidestream.jsontext import JsonObject, as_object
from sidestream.providers.protocol import (
    ChatModel,
    ConfiguresServers,
    FillsContainers,
    HostsAlone,
    HostsTools,
    ModelRequest,
    RetrievesFirst,
)
from sidestream.tools.approvals import REQUIRED_APPROVAL, Policy
from sidestream.tools.arguments import InvalidArgumentsError
from sidestream.tools.configs import defaults_of
from sidestream.tools.grants import pin_of
from sidestream.tools.interruption import InterruptionPolicy
from sidestream.tools.server_side import CodeInterpreter, FileSearch, MCPApproval, RemoteMCP, ServerSideTool
from sidestream.tools.tool import ExternalTool, Tool, ToolContext, ToolOutcome, as_tools
from sidestream.tools.toolset import Toolset

if TYPE_CHECKING:
    from sidestream.messages.message import ChatMessage
    from sidestream.portable.services import Services
    from sidestream.run.run import Run

_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What to do, and all that it takes to know."}},
    "required": ["task"],
    "additionalProperties": False,
}


class OwnTools(Struct, frozen=True):
    """Functions by name, and toolsets."""

    functions: dict[str, Tool] = {}
    toolsets: tuple[Toolset, ...] = ()


def own_tools(items: Iterable[Tool | ExternalTool | Toolset | Callable[..., Any]]) -> OwnTools:
    """Sort tools into functions and toolsets. Raises ConfigurationError if one is invalid or two share a name."""
    functions: list[Tool | Callable[..., Any]] = []
    toolsets: list[Toolset] = []
    for item in items:
        if isinstance(item, ExternalTool):
            functions.append(item.as_tool())
        elif isinstance(item, Tool) or not isinstance(item, Toolset):
            functions.append(cast("Tool | Callable[..., Any]", item))
        elif any(item.label == other.label for other in toolsets):
            raise ConfigurationError(f"two tool servers have the label {item.label!r}; give one another label")
        else:
            toolsets.append(item)
    return OwnTools(as_tools(functions), tuple(toolsets))


Servers = str | PathLike[str] | Iterable[Toolset | RemoteMCP]
"""MCP servers, given as the path of an `mcp.json` or as a list."""


def mcp_servers(given: Servers) -> tuple[list[Toolset], list[RemoteMCP]]:
    """Split MCP servers into those that this process calls and those that a provider calls.

    Raises ConfigurationError for anything else.
    """
    if isinstance(given, str | PathLike):
        from sidestream.mcp import load_mcp_config

        config = load_mcp_config(given)
        return [*config.toolsets], [*config.remote_servers]
    own: list[Toolset] = []
    remote: list[RemoteMCP] = []
    for server in [given] if isinstance(given, Toolset | RemoteMCP) else given:
        if isinstance(server, RemoteMCP):
            remote.append(server)
        elif isinstance(server, Toolset):  # pyright: ignore[reportUnnecessaryIsInstance]
            own.append(server)
        else:
            what = type(server).__name__
            raise ConfigurationError(f"mcp must be the path of an mcp.json, or hold MCPServer or RemoteMCP, not {what}")
    return own, remote


class Placement(Struct, frozen=True):
    """The result of placing server-side tools at the provider or locally."""

    hosted: tuple[ServerSideTool, ...]
    options: Any = None
    """Options without MCP servers, which are among the tools."""
    toolsets: tuple[Toolset, ...] = ()
    policies: Mapping[str, Policy] = {}
    """Policies for the calls of remote MCP servers, by label."""
    warnings: tuple[str, ...] = ()
    answered: frozenset[str] = frozenset()
    """Calls that the provider leaves to the client and that are answered locally."""


class LocalToolsets:
    """The toolsets that run an agent's server-side tools locally, including connections to MCP servers.

    They live as long as the agent.
    """

    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._known: list[tuple[ServerSideTool, Toolset]] = []

    def place(
        self,
        tools: Iterable[ServerSideTool],
        model: ChatModel,
        options: Any,
        policy: Policy | None,
        own: OwnTools,
        messages: Sequence[ChatMessage] = (),
    ) -> Placement:
        """Decide where each tool runs. `policy` is the explicit one of the agent or the call.

        Code whose files the provider cannot put into its container runs locally. `messages` may contain such files.

        Raises UnsupportedError for a tool that can run nowhere, or nowhere with the approval that it needs.
        """
        tools, options = _merged(tools, options)
        if not tools:
            return Placement(tools, options)
        servers = [tool for tool in tools if isinstance(tool, RemoteMCP)]
        _check_labels(servers, own.toolsets)
        hosted: list[ServerSideTool] = []
        local: list[Toolset] = []
        warnings: list[str] = []
        answered: set[str] = set()
        for tool in tools:
            if isinstance(tool, CodeInterpreter) and tool.files:
                from sidestream.messages.container_files import check_files

                check_files(tool.files)
            if isinstance(tool, CodeInterpreter) and (why := _files_refusal(tool, model, messages)):
                local.append(self._toolset(tool))
                warnings.append(f"CodeInterpreter runs on this machine: {why}")
            elif not isinstance(tool, RemoteMCP):
                self._place(tool, model, options, own, Placed(hosted, local, warnings, answered))
            elif tool.execution == "here":
                local.append(self._toolset(tool))
            else:
                required = replace(tool, require_approval=_required_approval(tool, policy), execution="auto")
                refusal = _refusal(required, model, options)
                if refusal is None:
                    hosted.append(required)
                else:
                    local.append(self._fallback(tool, refusal))
                    warnings.append(f"the MCP server {tool.label!r} is called from this machine: {refusal}")
        wants_first = any(isinstance(tool, FileSearch) and tool.retrieve == "first" for tool in tools)
        if wants_first and not (isinstance(model, RetrievesFirst) and model.retrieves_first):
            warnings.append(f'FileSearch(retrieve="first") has no effect: {model.name} decides when it searches')
        self._separate(model, own, Placed(hosted, local, warnings, answered))
        policies: dict[str, Policy] = {server.label: _policy_of(server, policy) for server in servers}
        sets = tuple(dict.fromkeys(local))
        return Placement(tuple(hosted), options, sets, policies, tuple(warnings), frozenset(answered))

    async def aclose(self) -> None:
        """Close connections and stop running tools. Safe to call twice."""
        for _, toolset in self._known:
            await toolset.aclose()

    def _place(self, tool: ServerSideTool, model: ChatModel, options: Any, own: OwnTools, placed: Placed) -> None:
        """Place a tool other than an MCP server.

        If the provider refuses only its settings, the request will raise the error.
        """
        is_answered = tool.client_call is not None and tool.client_call in own.functions
        must_run_here = tool.execution == "here" or tool.is_local
        if must_run_here and tool.execution == "provider":
            raise UnsupportedError(f'{_local_settings(tool)} runs only locally; leave out execution="provider"')
        refusal = None if must_run_here else _refusal(tool, model, options)
        if not must_run_here and not (isinstance(refusal, NotHostedError) and _may_run_here(tool, is_answered)):
            if isinstance(tool, CodeInterpreter) and tool.files:
                from sidestream.messages.container_files import load_files

                tool = replace(tool, files=load_files(tool.files))
            placed.hosted.append(tool)
            # The provider leaves this tool's calls to the client. The user's function answers them, else we do.
            if refusal is None and tool.answers_here and not is_answered:
                placed.local.append(self._toolset(tool))
                placed.answered.add(tool.client_call or tool.key)
        elif not is_answered:  # A user function with the tool's name replaces it.
            placed.local.append(self._toolset(tool))
            if refusal is not None:
                placed.warnings.append(f"{type(tool).__name__} runs on this machine: {refusal}")

    def _separate(self, model: ChatModel, own: OwnTools, placed: Placed) -> None:
        """Move hosted tools here that the model refuses beside functions, which local tools are too.

        Raises UnsupportedError if such a tool cannot run locally as configured.
        """
        if not isinstance(model, HostsAlone) or not (own.functions or own.toolsets or placed.local):
            return
        for tool in [tool for tool in placed.hosted if type(tool) in model.hosted_alone]:
            refusal = f"{model.name} does not accept it together with functions"
            if not _may_run_here(tool, is_answered=False):
                continue  # The request will raise the error.
            try:
                placed.local.append(self._toolset(tool))
            except (ConfigurationError, UnsupportedError) as error:
                raise UnsupportedError(f"{type(tool).__name__}: {refusal}. {error}") from None
            placed.hosted.remove(tool)
            placed.warnings.append(f"{type(tool).__name__} runs on this machine: {refusal}")

    def _fallback(self, server: RemoteMCP, refusal: UnsupportedError) -> Toolset:
        """Return a local toolset for a server that the provider refuses.

        Raises UnsupportedError if the server cannot be called locally either.
        """
        if server.url is None:
            raise refusal  # Only a provider reaches its connectors and tunnels.
        if server.execution == "provider":
            raise UnsupportedError(f'{refusal}, or leave out execution="provider" to call it from this machine')
        try:
            return self._toolset(server)
        except UnsupportedError as error:
            raise UnsupportedError(f"{refusal}. {error}") from None

    def _toolset(self, tool: ServerSideTool) -> Toolset:
        tool = replace(tool, execution="auto")
        for config, toolset in self._known:
            if config == tool:
                return toolset
        if isinstance(tool, RemoteMCP):
            from sidestream.portable.tools.remote_mcp import RemoteTools

            made: Toolset = RemoteTools(tool)
        else:
            from sidestream.portable.here import toolset_for

            made = toolset_for(tool, self._services())
        self._known.append((tool, made))
        return made


class Placed(Struct, frozen=True):
    """The tools placed so far."""

    hosted: list[ServerSideTool]
    local: list[Toolset]
    warnings: list[str]
    answered: set[str]


def _files_refusal(tool: CodeInterpreter, model: ChatModel, messages: Sequence[ChatMessage]) -> str | None:
    """Return why the provider cannot run code on the files that are for its container, or None if it can."""
    if tool.execution != "auto" or tool.is_local or isinstance(model, FillsContainers):
        return None
    from sidestream.messages.container_files import has_container_files

    if not (tool.files or has_container_files(messages)) or _refusal(tool, model, None) is not None:
        return None
    return f"{model.provider} has no container that takes files"


def _may_run_here(tool: ServerSideTool, is_answered: bool) -> bool:
    """Return whether the tool may run locally if the provider does not host it."""
    from sidestream.portable.here import runs_here

    return tool.execution != "provider" and (is_answered or runs_here(tool))


def _local_settings(tool: ServerSideTool) -> str:
    """Format the tool as its user wrote it, with the settings that only local execution has."""
    defaults, names = defaults_of(type(tool)), sorted(tool.here_only | {"via"})
    given = [f"{name}=…" for name in names if getattr(tool, name) != defaults[name]]
    return f"{type(tool).__name__}({', '.join(given)})"


def _merged(tools: Iterable[ServerSideTool], options: Any) -> tuple[tuple[ServerSideTool, ...], Any]:
    """Move MCP servers from the options to the tools, each once, and return the tools and remaining options."""
    found = tuple(tools)
    if options is not None and isinstance(options, ConfiguresServers):
        options, servers = options.split_servers()
        found += servers
    unique = [tool for at, tool in enumerate(found) if not isinstance(tool, RemoteMCP) or tool not in found[:at]]
    return tuple(unique), options


def _check_labels(servers: Iterable[RemoteMCP], toolsets: Iterable[Toolset]) -> None:
    """Raise ConfigurationError if two servers share a label, since approvals and results refer to servers by it."""
    labels = {toolset.label for toolset in toolsets}
    for server in servers:
        if server.label in labels:
            raise ConfigurationError(f"two tool servers have the label {server.label!r}; give one another label")
        labels.add(server.label)


def _required_approval(server: RemoteMCP, policy: Policy | None) -> Literal["always", "never"] | MCPApproval:
    """Return the calls for which the provider must request approval.

    If the policy is a function, these are all, so that it sees every call.
    """
    return server.require_approval or ("never" if policy == "run" else "always")


def _policy_of(server: RemoteMCP, policy: Policy | None) -> Policy:
    """Return the server's own policy, else the explicit one, else `ask`."""
    own = server.require_approval
    if own is None:
        return "ask" if policy is None else policy
    # With lists, a provider requests approval only for what needs it.
    return REQUIRED_APPROVAL[own] if isinstance(own, str) else "ask"


def _refusal(tool: ServerSideTool, model: ChatModel, options: Any) -> UnsupportedError | None:
    """Return why the provider does not host the tool, or None if it does or only refuses the tool's settings."""
    if isinstance(model, HostsTools) and not isinstance(tool, RemoteMCP) and type(tool) in model.hosted_tools:
        return None
    from sidestream.messages.message import ChatMessage

    probe = ModelRequest(messages=(ChatMessage.user("?"),), server_side_tools=(tool,), options=options)
    try:
        model.encode(probe)
    except UnsupportedError as error:
        return error
    return None


def agent_tool(
    start: Callable[[ToolContext, str], Run[Any]],
    name: str,
    description: str,
    *,
    approval: Policy | None,
    timeout_s: float | None,
    on_interruption: InterruptionPolicy,
    tools: Iterable[Tool | ServerSideTool | Toolset],
) -> Tool:
    """Create a tool whose calls are runs of an agent.

    `start` starts the run of a call, or resumes a suspended one. `tools` are the agent's own; a remembered approval is
    for an agent with these.
    """
    can = [tool.label if isinstance(tool, Toolset) else tool.pin for tool in tools]

    async def call(context: ToolContext, task: str) -> ToolOutcome:
        return await _outcome(start(context, task), context)

    return Tool(
        name=name,
        description=description,
        parameters=_SCHEMA,
        strict=True,
        approval=approval,
        timeout_s=timeout_s,
        on_interruption=on_interruption,
        pin=pin_of(name, description, can),
        function=call,
        bind=lambda arguments, context: {"context": context, "task": _task(arguments)},
    )


async def _outcome(run: Run[Any], context: ToolContext) -> ToolOutcome:
    from sidestream.parts import Finish
    from sidestream.turn.state import AwaitDecision, suspended_run

    reason = "error"
    async with run:
        async for part in run:
            context.forward(part)
            reason = part.reason if isinstance(part, Finish) else reason
    if run.error is not None:
        return ToolOutcome.failure(type(run.error).__name__, run.error.message)
    if isinstance(run.turn.command, AwaitDecision):
        return ToolOutcome(None, suspended=suspended_run(run.state))
    if reason != "stop":
        return ToolOutcome.failure("Unfinished", f"The agent stopped before its answer was complete: {reason}.")
    answer = next((m.text for m in reversed(run.turn.state.messages) if m.role == "model"), "")
    return ToolOutcome(to_builtins(run.output, enc_hook=str) if run.is_typed else answer)


def task_message(task: str, context: ToolContext) -> ChatMessage:
    """Create the first message of a subagent's run from its task.

    A model wrote the task, so only those of its URLs count that the calling run knows.
    """
    from sidestream.messages.provenance import Provenance, written
    from sidestream.portable.fetch.policy import KnownAddresses
    from sidestream.text.urls import urls_in

    known = KnownAddresses(context.history)
    urls = tuple(url for url in urls_in(task) if known.verdict(url, 0) == "known")
    return written(task, Provenance(context.sources, urls))


def _task(arguments: object) -> str:
    task = as_object(arguments).get("task")
    if not isinstance(task, str):
        raise InvalidArgumentsError("task must be a string")
    return task
