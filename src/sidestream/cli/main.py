"""The command group. `prompt` is the default command: `sidestream "…"` is `sidestream prompt "…"`.

Until a command runs, only click is imported. The command's module then imports the rest of the package.
"""

import os
import sys
from importlib import import_module
from typing import NamedTuple

import click

from sidestream import __version__
from sidestream.cli import exit_codes

DEFAULT_COMMAND = "prompt"


class LazyCommand(NamedTuple):
    """A command, defined under its name in a module of `sidestream.cli.commands` that is imported on first use."""

    module: str
    help: str
    """First sentence of the command's help, for the list of commands."""


COMMANDS = {
    DEFAULT_COMMAND: LazyCommand("prompt", "Send a prompt to a model. This is the default command."),
    "chat": LazyCommand("chat", "Chat with a model."),
    "logs": LazyCommand("logs", "List, search, show, export and resume logged conversations."),
    "view": LazyCommand("view", "Open a log or a recording in a browser, as a timeline."),
    "models": LazyCommand("models", "List providers and models, set the default model and aliases."),
    "tools": LazyCommand("models", "Show where each server-side tool runs."),
    "keys": LazyCommand("keys", "Manage the providers' API keys."),
    "templates": LazyCommand("templates", "Manage stored prompts."),
    "schemas": LazyCommand("templates", "Manage stored schemas."),
    "mcp": LazyCommand("mcp", "List, check and sign in to the MCP servers in an mcp.json."),
    "embed": LazyCommand("embed", "Convert texts to vectors."),
    "similar": LazyCommand("embed", "Rank texts by their similarity to TEXT."),
    "replay": LazyCommand("view", "Decode the model exchanges of recordings offline."),
    "record": LazyCommand("record", "Run COMMAND and record its traffic with model providers in FILE."),
    "serve": LazyCommand("serve", "Serve a chat page, the Responses API and streams for other front ends."),
    "worker": LazyCommand("worker", "Execute runs that other programs started."),
    "runs": LazyCommand("runs", "List, show, follow, stop, resume and decide runs."),
    "index": LazyCommand("index", "Index files and folders for file search, and search them."),
    "local": LazyCommand("local", "Install the embedded models, and add models of your own."),
    "demo": LazyCommand("demo", "Play recorded runs, and a live one on this machine."),
    "doctor": LazyCommand("doctor", "Check the installation, keys, stores and servers."),
    "completion": LazyCommand("models", "Print a shell's completion script."),
}
"""Commands by name."""

EXAMPLES = """\b
Examples:
  sidestream demo
  sidestream "Why is the sky blue?"
  sidestream -T web_search "What is new in Python?"
  sidestream -T code_interpreter --out . "Plot y = x^2"
  sidestream -a photo.jpg -o temperature 0 "What is this?"
  cat notes.txt | sidestream "Summarise this"
  sidestream --schema 'name, age int' "Invent a person"
  sidestream --functions tools.py "What is 12 % of 3,400?"
  sidestream --json "Hello" | jq -r 'select(.type == "text-delta").delta'
  sidestream chat --mcp mcp.json
  sidestream logs search eclipse
  sidestream serve
"""


class DefaultCommandGroup(click.Group):
    """A group that runs `prompt` if no command is named, and shows its options in the help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = COMMANDS.get(cmd_name)
        if command is None:
            return None
        return getattr(import_module(f"sidestream.cli.commands.{command.module}"), cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        group_options = {name for param in self.get_params(ctx) for name in param.opts}
        args = [word for word in args if word != "--debug"]  # Allowed anywhere; `failures` reads it from sys.argv.
        if not args and (ctx.resilient_parsing or _is_terminal()):
            args = [] if ctx.resilient_parsing else ["--help"]  # Shell completion parses the words before the cursor.
        elif not args or (args[0] not in COMMANDS and args[0] not in group_options):
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS] PROMPT\n      ", ctx.command_path, "COMMAND …"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        prompt = self.get_command(ctx, DEFAULT_COMMAND)
        assert prompt is not None
        prompt_options = [param for param in prompt.params if isinstance(param, click.Option)]
        records = [option.get_help_record(ctx) for option in (*prompt_options, *self.get_params(ctx))]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in COMMANDS.items()])


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


@click.group(
    cls=DefaultCommandGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__, "--version", prog_name="sidestream", message="%(prog)s %(version)s")
def commands(debug: bool) -> None:
    """Prompt a model with server-side tools, and see everything they do.

    The answer is written to standard output, progress to standard error. API keys and base URLs are read from the
    environment, for example OPENAI_API_KEY and OPENAI_BASE_URL. `sidestream keys` stores keys. `sidestream demo` needs
    no key.
    """


def run() -> int:
    """Run the command line and return the exit code."""
    try:
        if os.environ.get("SIDESTREAM_LOG"):
            from sidestream.logs import log_level

            log_level()  # Refuse an unknown level. The first logger starts printing.
        code = commands(standalone_mode=False, prog_name="sidestream")
        return code if isinstance(code, int) else exit_codes.OK
    except Exception as error:
        return _failed(error)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def _failed(error: Exception) -> int:
    """Report an error in one line and return its exit code."""
    from sidestream.cli.failures import report

    if isinstance(error, click.ClickException):
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "sidestream"
        advice = f"(see {where.removesuffix(f' {DEFAULT_COMMAND}')} --help)"
        return report(f"{error.format_message()} {advice}", exit_codes.USAGE)
    if isinstance(error, click.Abort):
        return exit_codes.INTERRUPTED
    return report(error)
