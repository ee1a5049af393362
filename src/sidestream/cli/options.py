"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MODEL = "openai-responses"
TOOL_HELP = "A server-side tool: web_search, code_interpreter, image_generation … May be given more than once."
APPROVE_HELP = (
    "Calls of MCP servers and sensitive calls: ask about each, let them always run, or never. "
    "What may have run already, and what a sensitive tool is asked after reading the web, is always asked about."
)


def model_option(command: F) -> F:
    """`-m`, with a default."""
    return click.option(
        "-m",
        "--model",
        default=DEFAULT_MODEL,
        envvar="SIDESTREAM_MODEL",
        metavar="MODEL",
        show_default=True,
        show_envvar=True,
        help="PROVIDER or PROVIDER:MODEL.",
    )(command)


def is_model_chosen() -> bool:
    """Whether the person has said which model; else a conversation goes on with the one it had."""
    source = click.get_current_context().get_parameter_source("model")
    return source is not click.core.ParameterSource.DEFAULT


def agent_options(command: F) -> F:
    """What an agent is made of besides its model."""
    for option in (
        click.option("--base-url", metavar="URL", help="Where the provider's API is, in place of the usual address."),
        click.option("--system", metavar="TEXT", help="The system prompt."),
        click.option(
            "--approve",
            type=click.Choice(["ask", "always", "never"]),
            default="ask",
            show_default=True,
            help=APPROVE_HELP,
        ),
        click.option("--mcp", metavar="FILE", help="An mcp.json: its servers' tools; - for the one in this folder."),
        click.option("-T", "--tool", "tools", multiple=True, metavar="TOOL", help=TOOL_HELP),
    ):
        command = option(command)
    return command


def attach_option(command: F) -> F:
    """`-a`."""
    words = "A file, a URL, or - for standard input, to go with the prompt. May be given more than once."
    return click.option("-a", "--attach", "attachments", multiple=True, metavar="FILE", help=words)(command)


def store_option(command: F) -> F:
    """`--store`."""
    words = "Where conversations are kept: a path or a postgresql:// URL; else a file in the data folder."
    return click.option("--store", envvar="SIDESTREAM_STORE", metavar="WHERE", show_envvar=True, help=words)(command)


def json_option(command: F) -> F:
    """`--json`, of parts."""
    return click.option("--json", "as_json", is_flag=True, help="Print every part as one line of JSON.")(command)


def out_option(command: F) -> F:
    """`--out`."""
    folder = click.Path(file_okay=False, path_type=Path)
    return click.option("--out", metavar="DIR", type=folder, help="Save the files that tools make to this folder.")(
        command
    )


def view_options(command: F) -> F:
    """How much is shown."""
    thinking = click.option("--thinking", is_flag=True, help="Show the reasoning, as far as the model tells it.")
    verbose = click.option("-v", "--verbose", is_flag=True, help="Show the model, what was used, and unknown events.")
    return thinking(verbose(command))
