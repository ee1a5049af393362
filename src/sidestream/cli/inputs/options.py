"""Options shared by several commands. Imports only click, so that help starts fast."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

VERDICTS = ("ask", "ask-each", "run", "deny")
TOOL_HELP = (
    "Enable a tool: web_search, code_interpreter …, with parameters as web_search:context_size=high, or a Python "
    "function as MODULE:FUNCTION. Can be repeated."
)
APPROVE_HELP = (
    "What to do with calls that may need approval: ask before each (ask-each: also for a tool that was allowed in the "
    "conversation), run them, or deny them. By default, calls to MCP servers need approval and your own functions run. "
    "A server's policy in the mcp.json takes precedence. Even with run, a call that may already have run, and a "
    "sensitive call after reading the web, need approval."
)
MODEL_HELP = (
    "Model to use: PROVIDER, PROVIDER:MODEL or an alias. Defaults to the model set with `sidestream models default`, "
    "else the first provider with a key, else the embedded model."
)


class ModelType(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]  # older clicks have none
    """A click type for model strings and the user's aliases."""

    name = "model"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from sidestream.cli.inputs.default_model import model_of

        return model_of(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from sidestream.cli.preferences import load
        from sidestream.providers.registry import installed_providers

        names = [*load().aliases, *(info.name for info in installed_providers())]
        names += [f"{info.name}:{info.default_models['chat']}" for info in installed_providers() if info.default_models]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


MODEL = ModelType()


def model_option(command: F) -> F:
    """Add `--model`. None means that none was given."""
    return click.option(
        "-m",
        "--model",
        envvar="SIDESTREAM_MODEL",
        type=MODEL,
        metavar="MODEL",
        show_envvar=True,
        help=MODEL_HELP,
    )(command)


def query_option(command: F) -> F:
    """Add `--query`."""
    text = (
        "Use the first known model whose name contains this text, among the providers with a key. Replaces -m. Can be "
        "repeated, then the name must contain all."
    )
    return click.option("-q", "--query", "queries", multiple=True, metavar="TEXT", help=text)(command)


def template_options(command: F) -> F:
    """Add `--fragment`, `--system-fragment`, `--template` and `--param`."""
    of_system = "Put the text of a file or a URL before the system prompt. Can be repeated."
    text = "Put the text of a file, a URL, or - for standard input before the prompt. Can be repeated."
    for option in (
        click.option(
            "-p", "--param", "params", nargs=2, multiple=True, metavar="NAME VALUE", help="Set a template variable."
        ),
        click.option("-t", "--template", metavar="NAME", help="Use a stored prompt and its options."),
        click.option("--sf", "--system-fragment", "system_fragments", multiple=True, metavar="FILE", help=of_system),
        click.option("-f", "--fragment", "fragments", multiple=True, metavar="FILE", help=text),
    ):
        command = option(command)
    return command


def agent_options(command: F) -> F:
    """Add the options for an agent's settings, except its model."""
    for option in (
        click.option(
            "--max-cost",
            type=click.FloatRange(min=0, min_open=True),
            metavar="DOLLARS",
            help="Stop a run once its steps have cost this much.",
        ),
        click.option("--base-url", metavar="URL", help="Base URL of the provider's API."),
        click.option(
            "--key", metavar="KEY", help="API key to use, or the name under which `sidestream keys set` stored one."
        ),
        click.option("--approve", type=click.Choice(VERDICTS), help=APPROVE_HELP),
        click.option(
            "--mcp-required",
            is_flag=True,
            help="Fail if an MCP server cannot be used, instead of leaving it out.",
        ),
        click.option(
            "--mcp",
            metavar="FILE",
            help="Use the local and remote MCP servers in this mcp.json. - uses the one in this folder.",
        ),
        click.option("--agent", metavar="MODULE:NAME", help="Use the Agent that this Python module defines."),
        click.option(
            "--functions",
            multiple=True,
            metavar="FILE",
            help="Let the model call the functions of this Python file, or of Python code. Can be repeated.",
        ),
        click.option(
            "-T",
            "--tool",
            "tools",
            multiple=True,
            metavar="TOOL",
            help=TOOL_HELP,
            shell_complete=_complete_tools,
        ),
        click.option(
            "-o",
            "--option",
            "options",
            nargs=2,
            multiple=True,
            metavar="NAME VALUE",
            help="Set a model setting or a provider option: temperature 0, reasoning.effort low. Can be repeated.",
        ),
        click.option("-s", "--system", metavar="TEXT", help="System prompt."),
    ):
        command = option(command)
    return command


def attach_option(command: F) -> F:
    """Add `--attach`."""
    text = (
        "Attach a file, a URL, the clipboard, or - for standard input. Can be repeated. With a code tool, data files "
        "go to its container only."
    )
    return click.option("-a", "--attach", "attachments", multiple=True, metavar="FILE", help=text)(command)


def store_option(command: F) -> F:
    """Add `--store`."""
    text = "Conversation store: a path or a postgresql:// URL. Defaults to a file in the data folder."
    return click.option("--store", envvar="SIDESTREAM_STORE", metavar="LOCATION", show_envvar=True, help=text)(command)


def engine_option(command: F) -> F:
    """Add `--engine`."""
    text = (
        "Engine that assigns runs to workers: embedded (the store itself), temporal://HOST:PORT/NAMESPACE, "
        "or the URL of another package's engine."
    )
    return click.option(
        "--engine", default="embedded", envvar="SIDESTREAM_ENGINE", metavar="ENGINE", show_envvar=True, help=text
    )(command)


def named_agents_option(command: F) -> F:
    """Add `--agent NAME=MODULE:VARIABLE`, which can be repeated."""
    text = (
        "One of your agents, as MODULE:VARIABLE, or NAME=MODULE:VARIABLE to give it a name and a version, e.g. "
        "support@2=shop:agent. Can be repeated."
    )
    return click.option(
        "--agent", "named", multiple=True, metavar="[NAME=]MODULE:VARIABLE", callback=_named_agents, help=text
    )(command)


def _named_agents(context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Import the agents, by name. Raises ConfigurationError if an import fails."""
    if not values:
        return {}
    from sidestream.cli.inputs.imports import import_agent

    found: dict[str, Any] = {}
    for value in values:
        name, _, path = value.rpartition("=")
        name = name or path.rpartition(":")[2]
        if name in found:
            raise click.BadParameter(f"two agents are named {name!r}: give each a name, as NAME=MODULE:VARIABLE")
        found[name] = import_agent(path)
    return found


def lease_option(command: F) -> F:
    """Add `--lease`."""
    text = "How long until an unresponsive worker loses its runs, e.g. 30s. Defaults to the engine's setting."
    return click.option("--lease", "lease_s", callback=duration, metavar="AGE", help=text)(command)


def approval_options(command: F) -> F:
    """Add `--approve-within`, `--on-expiry` and `--answer-within`, for commands that execute runs."""
    text = (
        "What to do with calls that are not decided in time: deny them and continue the run, wait until they are "
        "denied, or stop the run."
    )
    command = click.option(
        "--on-expiry", type=click.Choice(["deny", "wait", "stop"]), default="deny", show_default=True, help=text
    )(command)
    command = click.option(
        "--answer-within",
        "answer_s",
        default="1d",
        show_default=True,
        callback=duration,
        metavar="AGE",
        help="How long a call to a client's function waits for its result, before the run is stopped.",
    )(command)
    return click.option(
        "--approve-within",
        "approval_s",
        default="1d",
        show_default=True,
        callback=duration,
        metavar="AGE",
        help="How long a call waits for its approval, e.g. 15m.",
    )(command)


def json_option(command: F) -> F:
    """Add `--json`, for stream parts."""
    return click.option("--json", "as_json", is_flag=True, help="Print each stream part as a line of JSON.")(command)


def out_option(command: F) -> F:
    """Add `--out`."""
    folder = click.Path(file_okay=False, path_type=Path)
    return click.option("--out", metavar="DIR", type=folder, help="Save the files that tools generate to this folder.")(
        command
    )


_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")


def duration(context: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Parse a number with a unit, such as `30d`, as seconds. Raises BadParameter if it is invalid."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value.strip().lower())
    if found is None or not float(found[1]) > 0:
        raise click.BadParameter(f"{value!r} is not a number with a unit: write 90m, 12h, 30d or 4w")
    return float(found[1]) * _UNITS_S[found[2]]


THINKING_LEVELS = ("off", "on", "low", "medium", "high")


def thinking_level(value: str | None) -> str | int | None:
    """Parse a level or a budget in tokens. Raises BadParameter if it is neither."""
    if value is None or value in THINKING_LEVELS:
        return value
    if value.isascii() and value.isdigit() and int(value) > 0:
        return int(value)
    raise click.BadParameter(f"{value!r} is not one of {', '.join(THINKING_LEVELS)}, or a number of tokens")


def thinking_option(command: F) -> F:
    """Add `--thinking`, for commands that call a model."""
    text = "Request the model's reasoning and show it: on, low, medium, high, a number of tokens, or off."
    return click.option("--thinking", metavar="LEVEL", callback=_read_level, help=text)(command)


def _read_level(context: click.Context, param: click.Parameter, value: str | None) -> str | int | None:
    return thinking_level(value)


def verbose_option(command: F) -> F:
    """Add `--verbose`, `--usage` and `--plain`."""
    text = "Show the model, usage and cost, and unknown events."
    command = click.option("-v", "--verbose", is_flag=True, help=text)(command)
    text = "Print plain text, as if the output were not a terminal."
    command = click.option("--plain", is_flag=True, help=text)(command)
    return click.option("-u", "--usage", is_flag=True, help="Show tokens and cost at the end.")(command)


def view_options(command: F) -> F:
    """Add the options for how much of a recorded run to show."""
    text = "Show the model's reasoning, if available."
    return click.option("--thinking", is_flag=True, help=text)(verbose_option(command))


def _complete_tools(context: click.Context, param: click.Parameter, text: str) -> "list[CompletionItem | str]":
    from sidestream.cli.inputs.field_values import tool_names

    return [name for name in tool_names() if name.startswith(text)]
