"""Which server-side tools run here, and the module of each."""

from importlib import import_module

from sidestream.errors import UnsupportedError
from sidestream.portable.services import Services
from sidestream.tools.server_side import ServerSideTool
from sidestream.tools.toolset import Toolset

MODULES: dict[str, str] = {
    "memory": "sidestream.portable.memory",
}
"""Key of a tool → the module whose `toolset(config, services)` runs it here."""

NOT_HERE: dict[str, str] = {
    "computer_use": "a screen to look at and to click on is yours to provide: answer its calls with a function",
    "custom": "it is a function of yours already: pass it in tools=",
}
"""Key of a tool that never runs here → why."""


def runs_here(tool: ServerSideTool | type[ServerSideTool]) -> bool:
    """True if the tool can run here."""
    return tool.key in MODULES


def toolset_for(config: ServerSideTool, services: Services) -> Toolset:
    """The toolset that runs the tool here. Raises UnsupportedError if none does, MissingExtraError if it needs more."""
    module = MODULES.get(config.key)
    if module is None:
        reason = NOT_HERE.get(config.key, f"those that do are {', '.join(sorted(MODULES))}")
        raise UnsupportedError(f"{type(config).__name__} does not run here: {reason}")
    made: Toolset = import_module(module).toolset(config, services)
    return made
