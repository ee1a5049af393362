"""Options shared by several commands."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from sidestream.tools.approvals import Verdict

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MODEL = "openai-responses"
TOOL_HELP = "Enable a server-side tool: web_search, code_interpreter, image_generation … Can be repeated."
APPROVE_HELP = (
    "What to do with calls of MCP servers: ask before each, run them, or deny them. The policy of a server in the "
    "mcp.json comes first. Even with run, a call that may already have run, and a sensitive call after reading the "
    "web, need approval."
)


def model_option(command: F) -> F:
    """`--model`, with a default."""
    return click.option(
        "-m",
        "--model",
        default=DEFAULT_MODEL,
        envvar="SIDESTREAM_MODEL",
        metavar="MODEL",
        show_default=True,
        show_envvar=True,
        help="Model to use: PROVIDER or PROVIDER:MODEL.",
    )(command)


def is_model_explicit() -> bool:
    """Whether the user chose the model; otherwise a continued conversation keeps its own."""
    source = click.get_current_context().get_parameter_source("model")
    return source is not click.core.ParameterSource.DEFAULT


def agent_options(command: F) -> F:
    """The settings of an agent, except its model."""
    for option in (
        click.option(
            "--max-cost",
            type=click.FloatRange(min=0, min_open=True),
            metavar="DOLLARS",
            help="Stop a run once its steps have cost this much.",
        ),
        click.option("--base-url", metavar="URL", help="Base URL of the provider's API."),
        click.option("--system", metavar="TEXT", help="System prompt."),
        click.option(
            "--approve",
            type=click.Choice(get_args(Verdict)),
            default="ask",
            show_default=True,
            help=APPROVE_HELP,
        ),
        click.option(
            "--mcp",
            metavar="FILE",
            help="Use the MCP servers of this mcp.json, local and remote; - finds it in this folder.",
        ),
        click.option("-T", "--tool", "tools", multiple=True, metavar="TOOL", help=TOOL_HELP),
    ):
        command = option(command)
    return command


def attach_option(command: F) -> F:
    """`--attach`."""
    text = "Attach a file, a URL, or - for standard input. Can be repeated."
    return click.option("-a", "--attach", "attachments", multiple=True, metavar="FILE", help=text)(command)


def store_option(command: F) -> F:
    """`--store`."""
    text = "Conversation store: a path or a postgresql:// URL. Defaults to a file in the data folder."
    return click.option("--store", envvar="SIDESTREAM_STORE", metavar="LOCATION", show_envvar=True, help=text)(command)


def json_option(command: F) -> F:
    """`--json`, for stream parts."""
    return click.option("--json", "as_json", is_flag=True, help="Print each stream part as a line of JSON.")(command)


def out_option(command: F) -> F:
    """`--out`."""
    folder = click.Path(file_okay=False, path_type=Path)
    return click.option("--out", metavar="DIR", type=folder, help="Save the files that tools generate to this folder.")(
        command
    )


_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")


def duration(context: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Seconds, from a number with a unit such as `30d`."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value.strip().lower())
    if found is None or not float(found[1]) > 0:
        raise click.BadParameter(f"{value!r} is not a number with a unit: write 90m, 12h, 30d or 4w")
    return float(found[1]) * _UNITS_S[found[2]]


THINKING_LEVELS = ("off", "on", "low", "medium", "high")


def _thinking(context: click.Context, param: click.Parameter, value: str | None) -> str | int | None:
    """A level, or a budget in tokens."""
    if value is None or value in THINKING_LEVELS:
        return value
    if value.isascii() and value.isdigit() and int(value) > 0:
        return int(value)
    raise click.BadParameter(f"{value!r} is not one of {', '.join(THINKING_LEVELS)}, or a number of tokens")


def thinking_option(command: F) -> F:
    """`--thinking`, for commands that call a model."""
    text = "Request the model's reasoning and show it: on, low, medium, high, a number of tokens, or off."
    return click.option("--thinking", metavar="LEVEL", callback=_thinking, help=text)(command)


def verbose_option(command: F) -> F:
    """`--verbose`, and `--usage` for the part of it that most people want."""
    text = "Show the model, usage and cost, and unknown events."
    command = click.option("-v", "--verbose", is_flag=True, help=text)(command)
    return click.option("--usage", is_flag=True, help="Show tokens and cost at the end.")(command)


def view_options(command: F) -> F:
    """How much of a recorded run is shown."""
    text = "Show the model's reasoning, if available."
    return click.option("--thinking", is_flag=True, help=text)(verbose_option(command))
