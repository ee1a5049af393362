"""Local placement of server-side tools, and the module of each."""

from collections.abc import Sequence
from importlib import import_module

from msgspec.structs import replace

from sidestream.errors import UnsupportedError
from sidestream.portable.services import Services
from sidestream.portable.stages import stages_of
from sidestream.providers.registry import hosts_of
from sidestream.results.passages import HOW_TO_CITE
from sidestream.tools.grants import pin_of
from sidestream.tools.interruption import ServerInterruption, server_policy
from sidestream.tools.server_side import ServerSideTool, WebSearch
from sidestream.tools.tool import Tool
from sidestream.tools.toolset import Toolset

DELEGATION = "sidestream.portable.tools.delegation"
"""Module that runs a tool on another model that hosts it."""

MODULES: dict[str, str] = {
    "apply_patch": "sidestream.portable.tools.apply_patch",
    "code_interpreter": "sidestream.portable.tools.code_interpreter",
    "file_search": "sidestream.portable.tools.file_search",
    "image_generation": DELEGATION,
    "memory": "sidestream.portable.tools.memory",
    "programmatic_tool_calling": "sidestream.portable.tools.programmatic",
    "shell": "sidestream.portable.tools.shell",
    "tool_search": "sidestream.portable.tools.tool_search",
    "web_fetch": "sidestream.portable.tools.web_fetch",
    "web_search": "sidestream.portable.tools.web_search",
    "x_search": DELEGATION,
}
"""Key of a tool → module whose `toolset(config, services)` runs it locally."""

NOT_HERE: dict[str, str] = {
    "computer_use": "a screen to look at and to click on is yours to provide: answer its calls with a function",
    "local_shell": "it is the older tool for a shell of yours; Shell runs here",
    "custom": "it is a function of yours already: pass it in tools=",
}
"""Key of a tool that never runs locally → the reason."""


UNASKED = frozenset(MODULES.keys() - {"apply_patch", "memory"})
"""Keys of the tools whose calls need no approval, as at a provider, since they only read or stay in their sandbox. A
config may say otherwise. A patch changes the user's files, and for a memory the agent's policy applies."""

SOURCES = frozenset({"web_search", "web_fetch", "file_search"})
"""Keys of the tools whose results hold passages that an answer may cite."""


def runs_here(tool: ServerSideTool | type[ServerSideTool]) -> bool:
    """Return whether the tool can run locally."""
    return tool.key in MODULES


def toolset_for(config: ServerSideTool, services: Services) -> Toolset:
    """Create the toolset that runs the tool locally.

    Raises UnsupportedError if the tool cannot run locally, and MissingExtraError if it needs an extra.
    """
    if isinstance(config, WebSearch) and _is_model(config.engine):
        config = replace(config, via=config.engine, engine=None)
    module = MODULES.get(config.key) if config.via is None else DELEGATION
    if module is None:
        reason = NOT_HERE.get(config.key, f"the tools that do are {', '.join(sorted(MODULES))}")
        raise UnsupportedError(f"{type(config).__name__} does not run locally: {reason}")
    made = import_module(module).toolset(config, services)
    return Staged(made, config.on_interruption, is_isolated=getattr(config, "sandbox", None) != "none", pin=config.pin)


def _is_model(engine: str | None) -> bool:
    """Return whether a search engine is a model that hosts a search, e.g. `google:MODEL`."""
    return (engine or "").partition(":")[0] in hosts_of(WebSearch)


class Staged:
    """A toolset whose tools emit the lifecycle events of the hosted tool they replace, and need as few approvals."""

    def __init__(
        self,
        toolset: Toolset,
        on_interruption: ServerInterruption | None = None,
        *,
        is_isolated: bool = True,
        pin: str = "",
    ) -> None:
        self._toolset = toolset
        self._on_interruption: ServerInterruption | None = on_interruption
        self._is_isolated = is_isolated
        self._pin = pin
        """Digest of the tool's settings, which are part of its identity."""

    @property
    def label(self) -> str:
        return self._toolset.label

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._toolset.warnings

    async def list(self) -> Sequence[Tool]:
        """Return the tools, with their lifecycle events and citation instructions."""
        return [self._declared(_staged(tool, self._is_isolated)) for tool in await self._toolset.list()]

    async def aclose(self) -> None:
        await self._toolset.aclose()

    def _declared(self, tool: Tool) -> Tool:
        tool = replace(tool, pin=pin_of(tool.pin, self._pin))
        if self._on_interruption is None:
            return tool
        is_repeatable = tool.on_interruption == "retry"
        policy = server_policy(self._on_interruption, tool.name, is_repeatable=is_repeatable)
        return replace(tool, on_interruption=policy)


def _staged(tool: Tool, is_isolated: bool) -> Tool:
    if tool.approval is None and tool.key in UNASKED and is_isolated:
        tool = replace(tool, approval="run")
    if tool.key in SOURCES:
        tool = replace(tool, description=f"{tool.description}\n\n{HOW_TO_CITE}", has_passages=True)
    return tool if tool.key is None or tool.stages is not None else replace(tool, stages=stages_of(tool.key))
