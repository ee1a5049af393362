"""Creates agents from command-line options."""

import shlex
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct
from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.cli.process import run_async
from sidestream.limits import Limits
from sidestream.providers.registry import ModelString
from sidestream.redaction import redact
from sidestream.tools.approvals import Verdict
from sidestream.tools.server_side import tool_named

if TYPE_CHECKING:
    from sidestream.mcp import MCPConfig


class AgentConfig(Struct, frozen=True, kw_only=True):
    """The settings of an agent, as given on the command line."""

    model: str
    tools: tuple[str, ...] = ()
    mcp: str | None = None
    approve: Verdict = "ask"
    system: str | None = None
    base_url: str | None = None
    store: str | None = None
    thinking: Any = None
    max_cost: float | None = None
    output_type: Any = None

    @property
    def resume_flags(self) -> str:
        """The flags that a later command needs to resume with the same settings, with secrets redacted."""
        flags = [word for tool in self.tools for word in ("-T", tool)]
        values = {"--mcp": self.mcp, "--system": self.system, "--base-url": self.base_url, "--store": self.store}
        values["--thinking"] = None if self.thinking is None else str(self.thinking)
        values["--max-cost"] = None if self.max_cost is None else f"{self.max_cost:g}"
        flags += [word for name, value in values.items() if value is not None for word in (name, redact(value))]
        return "".join(f" {shlex.quote(word)}" for word in flags)


class AgentFactory:
    """Creates agents that share their MCP servers, and stops the servers on close."""

    def __init__(self, config: AgentConfig, servers: "MCPConfig | None" = None) -> None:
        self.config = config
        self._servers = servers
        self._agents: list[Agent[Any]] = []

    @classmethod
    async def load(cls, config: AgentConfig) -> Self:
        """Reads the servers that the configuration names, with the sign-ins that are stored for them."""
        if config.mcp is None:
            return cls(config)
        from sidestream.mcp import load_mcp_config, use_sign_ins

        return cls(config, await use_sign_ins(load_mcp_config(None if config.mcp == "-" else config.mcp)))

    @property
    def server_labels(self) -> list[str]:
        """The labels of the MCP servers."""
        return self._servers.labels if self._servers is not None else []

    @property
    def servers_with_approval(self) -> frozenset[str]:
        """The labels of the MCP servers that have an approval of their own."""
        return self._servers.labels_with_approval if self._servers is not None else frozenset()

    def use_model(self, model: str) -> None:
        """Makes this the configured model."""
        self.config = replace(self.config, model=model)

    def create(self, model: str | None = None) -> Agent[Any]:
        """Creates an agent with this model, or with the configured one. Raises ConfigurationError."""
        config = self.config
        model = model or config.model
        # A base URL is valid only for the provider it was given for.
        is_same_provider = ModelString.parse(model).provider == ModelString.parse(config.model).provider
        agent: Agent[Any] = Agent(
            model,
            output_type=config.output_type,
            tools=self._servers.toolsets if self._servers is not None else (),
            server_side_tools=(
                *map(tool_named, config.tools),
                *(self._servers.remote_servers if self._servers is not None else ()),
            ),
            system=config.system,
            thinking=config.thinking,
            base_url=config.base_url if is_same_provider else None,
            approval=config.approve,
            limits=Limits(max_cost=config.max_cost),
        )
        self._agents.append(agent)
        return agent

    async def aclose(self) -> None:
        """Stops all servers. Idempotent."""
        for agent in self._agents:
            await agent.aclose()


def loaded_factory(config: AgentConfig) -> AgentFactory:
    """The factory, where no event loop is running."""
    # Most programs have no servers, and need no event loop to read them.
    return AgentFactory(config) if config.mcp is None else run_async(AgentFactory.load(config))
