"""The agent that a command's options describe, and the same one with another model."""

import shlex
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.providers.registry import ModelString
from sidestream.redaction import redact
from sidestream.tools.approvals import Policy, Question, Verdict
from sidestream.tools.server_side import tool_named
from sidestream.tools.toolset import Toolset


class AgentConfig(Struct, frozen=True, kw_only=True):
    """What an agent is to be made of, in the words of the command line."""

    model: str
    tools: tuple[str, ...] = ()
    mcp: str | None = None
    approve: str = "ask"
    system: str | None = None
    base_url: str | None = None
    store: str | None = None
    output_type: Any = None

    @property
    def words(self) -> str:
        """The options that a later command needs to go on in the same way."""
        words = [word for tool in self.tools for word in ("-T", tool)]
        pairs = {"--mcp": self.mcp, "--system": self.system, "--base-url": self.base_url, "--store": self.store}
        words += [word for name, value in pairs.items() if value is not None for word in (name, redact(value))]
        return "".join(f" {shlex.quote(word)}" for word in words)


class AgentFactory:
    """Makes agents that share their tool servers, and stops those in the end."""

    def __init__(self, plan: AgentConfig) -> None:
        self.plan = plan
        self._servers = _servers(plan.mcp)
        self._made: list[Agent[Any]] = []

    @property
    def labels(self) -> list[str]:
        """The names of the tool servers."""
        return [server.label for server in self._servers]

    def use_model(self, model: str) -> None:
        """Takes this model for the plan's."""
        self.plan = replace(self.plan, model=model)

    def agent(self, model: str | None = None) -> Agent[Any]:
        """The agent with this model, or with the plan's. Raises ConfigurationError."""
        plan = self.plan
        wanted = model or plan.model
        # An address belongs to the provider for which it was given.
        is_same = ModelString.parse(wanted).provider == ModelString.parse(plan.model).provider
        agent: Agent[Any] = Agent(
            wanted,
            output_type=plan.output_type,
            tools=self._servers,
            server_side_tools=map(tool_named, plan.tools),
            system=plan.system,
            base_url=plan.base_url if is_same else None,
            approval=POLICIES[plan.approve],
        )
        self._made.append(agent)
        return agent

    async def aclose(self) -> None:
        """Stops all servers. Safe to call twice."""
        for agent in self._made:
            await agent.aclose()


def _run(question: Question) -> Verdict:
    return "run"


def _deny(question: Question) -> Verdict:
    return "deny"


POLICIES: dict[str, Policy] = {"ask": "always", "always": _run, "never": _deny}
"""What `--approve` says → the agent's policy."""


def _servers(file: str | None) -> list[Toolset]:
    if file is None:
        return []
    from sidestream.mcp import mcp_servers

    return list(mcp_servers(None if file == "-" else file))
