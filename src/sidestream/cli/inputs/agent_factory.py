"""Creation of agents from command-line options."""

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, cast

import click
from msgspec import Struct
from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.cli.display.screen import one_line
from sidestream.cli.inputs.default_model import check_model, model_of
from sidestream.cli.inputs.field_values import ModelOptions, read_options, read_tool
from sidestream.cli.inputs.imports import import_agent, import_functions
from sidestream.cli.interrupts import run_async
from sidestream.cli.key_file import stored_key
from sidestream.errors import ConfigurationError
from sidestream.jsontext import without_none
from sidestream.limits import Limits
from sidestream.providers.registry import ModelString
from sidestream.text.redaction import redact
from sidestream.tools.approvals import Verdict
from sidestream.tools.server_side import CodeInterpreter, ServerSideTool, WebFetch
from sidestream.tools.tool import Tool

if TYPE_CHECKING:
    from sidestream.mcp import MCPConfig


class AgentConfig(Struct, frozen=True, kw_only=True):
    """Agent settings given on the command line."""

    model: str
    tools: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    agent: str | None = None
    mcp: str | None = None
    mcp_required: bool = False
    """Whether a server that cannot be used is an error. Otherwise it is left out."""
    approve: Verdict | None = None
    """Approval policy. None means to ask before calls to MCP servers and to run the user's functions."""
    system: str | None = None
    base_url: str | None = None
    key: str | None = None
    """API key, or the name of a stored one. None means the provider's key in the environment."""
    store: str | None = None
    thinking: Any = None
    options: tuple[tuple[str, str], ...] = ()
    max_cost: float | None = None
    output_type: Any = None

    @property
    def policy(self) -> Verdict:
        """The policy for calls that no other policy covers."""
        return self.approve or "ask"

    @property
    def resume_flags(self) -> str:
        """The flags with which a later command resumes with the same settings, with secrets redacted."""
        flags = [word for tool in self.tools for word in ("-T", redact(tool))]
        flags += [word for path in self.functions for word in ("--functions", path)]
        flags += [word for name, value in self.options for word in ("-o", name, redact(value))]
        values = {"--agent": self.agent, "--mcp": self.mcp, "--approve": self.approve, "--system": self.system}
        values |= {"--base-url": self.base_url, "--store": self.store}
        values["--thinking"] = None if self.thinking is None else str(self.thinking)
        flags += ["--mcp-required"] if self.mcp_required else []
        values["--max-cost"] = None if self.max_cost is None else f"{self.max_cost:g}"
        flags += [word for name, value in values.items() if value is not None for word in (name, redact(value))]
        return "".join(f" {shlex.quote(word)}" for word in flags)


class AgentFactory:
    """Creates agents that share MCP servers, and stops the servers on close."""

    def __init__(self, config: AgentConfig, servers: "MCPConfig | None" = None) -> None:
        self.config = config
        self._servers = servers
        self._agents: list[Agent[Any]] = []
        self._given = _imported_agent(config) if config.agent is not None else None
        self._hosted, self._functions = _tools_of(config)

    @classmethod
    async def load(cls, config: AgentConfig) -> Self:
        """Create a factory with the configured MCP servers and their stored sign-ins."""
        if config.mcp is None:
            return cls(config)
        from sidestream.mcp import load_mcp_config, use_sign_ins

        file = None if config.mcp == "-" else config.mcp
        servers = load_mcp_config(file, on_invalid=None if config.mcp_required else _report_left_out)
        servers = await use_sign_ins(servers)
        for server in servers.toolsets:
            server.is_optional = not config.mcp_required
        return cls(config, servers)

    @property
    def server_labels(self) -> list[str]:
        """The labels of the MCP servers."""
        return self._servers.labels if self._servers is not None else []

    @property
    def tool_names(self) -> list[str]:
        """The names of server-side tools and functions, and one entry per MCP server."""
        functions = [tool.name if isinstance(tool, Tool) else tool.__name__ for tool in self._functions]
        if self._given is not None:
            functions += self._given.tools
        return [
            *(tool.key for tool in self._hosted),
            *functions,
            *(f"tools of {label}" for label in self.server_labels),
        ]

    @property
    def runs_code(self) -> bool:
        """Whether a tool runs code in a container, which takes attachments."""
        tools = self._hosted if self._given is None else self._given.server_side_tools
        return any(isinstance(tool, CodeInterpreter) for tool in tools)

    @property
    def allow_hosts(self) -> tuple[str, ...]:
        """The hosts that the web fetch tool may reach at private addresses."""
        tools = self._hosted if self._given is None else self._given.server_side_tools
        return tuple(host for tool in tools if isinstance(tool, WebFetch) for host in tool.allow_hosts)

    @property
    def servers_with_approval(self) -> frozenset[str]:
        """The labels of the MCP servers that have their own approval policy."""
        return self._servers.labels_with_approval if self._servers is not None else frozenset()

    def use_model(self, model: str) -> None:
        """Set the configured model."""
        self.config = replace(self.config, model=model)

    def use_system(self, system: str | None) -> None:
        """Set the system prompt of agents created from now on."""
        self.config = replace(self.config, system=system)

    def add_tool(self, text: str) -> None:
        """Add a tool to agents created from now on. Raises ConfigurationError if the tool is invalid."""
        changed = replace(self.config, tools=(*self.config.tools, text))
        self._hosted, self._functions = _tools_of(changed)
        self.config = changed

    @property
    def call(self) -> dict[str, Any]:
        """The settings of each call that override those of an agent given with `--agent`."""
        if self._given is None:
            return {}
        config = self.config
        options = read_options(self._given.model, config.options)
        given: dict[str, Any] = {
            "system": config.system,
            "thinking": config.thinking,
            "approval": config.approve,
            "options": options.options,
            "limits": _limits(config, options) if options.limits or config.max_cost is not None else None,
            "output_type": config.output_type,
        }
        return without_none(given) | options.settings

    def create(self, model: str | None = None) -> Agent[Any]:
        """Create an agent with this model, or the configured one. Raises ConfigurationError if a setting is invalid."""
        config = self.config
        if self._given is not None:
            if model is not None:
                raise ConfigurationError("the agent has its own model: leave out --agent to choose one")
            self._given.check()
            self._agents.append(self._given)
            return self._given
        model = model_of(model or config.model)  # The model of a template or of /model may be an alias.
        check_model(model)
        # A base URL, a key and provider options are valid only for the provider they were given for.
        is_same = ModelString.parse(model).provider == ModelString.parse(config.model).provider
        base_url = config.base_url if is_same else None
        api_key = stored_key(config.key) if is_same and config.key is not None else None
        chosen = Agent(model, base_url=base_url, api_key=api_key).model if config.options else None
        options = read_options(chosen, config.options, skips_unknown=not is_same) if chosen else ModelOptions()
        servers = self._servers
        agent: Agent[Any] = Agent(
            model,
            output_type=config.output_type,
            tools=(*self._functions, *(servers.toolsets if servers is not None else ())),
            server_side_tools=(*self._hosted, *(servers.remote_servers if servers is not None else ())),
            system=config.system,
            base_url=base_url,
            api_key=api_key,
            approval=config.policy,
            options=options.options,
            limits=_limits(config, options),
            **{"thinking": config.thinking, **options.settings},
        )
        agent.check()
        self._agents.append(agent)
        return agent

    async def aclose(self) -> None:
        """Stop all servers. Idempotent."""
        for agent in self._agents:
            await agent.aclose()


def _report_left_out(error: ConfigurationError) -> None:
    text = redact(one_line(str(error), 1000))
    click.echo(f"warning: {text} (the server is left out; --mcp-required makes this an error)", err=True)


def loaded_factory(config: AgentConfig) -> AgentFactory:
    """Load a factory outside an event loop."""
    # Without servers, no event loop is needed.
    return AgentFactory(config) if config.mcp is None else run_async(AgentFactory.load(config))


def _limits(config: AgentConfig, options: ModelOptions) -> Limits:
    return Limits(max_cost=config.max_cost, **options.limits)


def _tools_of(config: AgentConfig) -> tuple[list[ServerSideTool], list[Tool | Callable[..., Any]]]:
    """Return the server-side tools and the functions that the options name."""
    hosted: list[ServerSideTool] = []
    functions: list[Tool | Callable[..., Any]] = []
    for tool in map(read_tool, config.tools):
        if isinstance(tool, ServerSideTool):
            hosted.append(tool)
        else:
            functions.append(tool)
    for path in config.functions:
        functions += import_functions(path)
    return hosted, [_own(function, config.approve) for function in functions]


def _own(function: Tool | Callable[..., Any], approve: Verdict | None) -> Tool:
    """Convert a user's function to a tool that runs without approval, unless an option says otherwise."""
    policy = approve or "run"
    if not isinstance(function, Tool):
        return Tool.from_function(function, approval=policy)
    tool = cast(Tool, function)
    return tool if tool.approval is not None else replace(tool, approval=policy)


def _imported_agent(config: AgentConfig) -> Agent[Any]:
    taken: dict[str, Any] = {"-T": config.tools, "--functions": config.functions, "--mcp": config.mcp}
    taken |= {"--base-url": config.base_url, "--key": config.key}
    wrong = [flag for flag, value in taken.items() if value]
    if wrong:
        raise ConfigurationError(f"--agent brings its own model and tools: leave out {', '.join(wrong)}")
    assert config.agent is not None
    return import_agent(config.agent)
