"""The command group. `prompt` is the default command: `sidestream "…"` is `sidestream prompt "…"`."""

import sys
from importlib import import_module
from pathlib import Path

import click

from sidestream import __version__
from sidestream.cli import exit_codes, options
from sidestream.cli.log_output import log_to_stderr
from sidestream.cli.stdio import is_terminal, text_stream
from sidestream.cli.terminal import OutputClosedError, discard_output, one_line
from sidestream.errors import ConfigurationError, SidestreamError
from sidestream.redaction import redact

DEFAULT_COMMAND = "prompt"

COMMAND_MODULES = {
    DEFAULT_COMMAND: "prompt",
    "chat": "chat",
    "logs": "logs",
    "models": "models",
    "tools": "tools",
    "keys": "keys",
    "mcp": "mcp",
    "serve": "serve",
    "view": "view",
    "local": "local",
}
"""Command → the module of `sidestream.cli` that defines it under the same name, imported on first use."""

EXAMPLES = """\b
Examples:
  sidestream demo
  sidestream "Why is the sky blue?"
  sidestream -T web_search "What is new in Python?"
  sidestream -T code_interpreter --out . "Plot y = x^2"
  sidestream -a photo.jpg "What is this?"
  cat notes.txt | sidestream "Summarise this"
  sidestream --json "Hello" | jq -r 'select(.type == "text-delta").delta'
  sidestream chat --mcp mcp.json
  sidestream mcp login docs
  sidestream serve
  sidestream logs resume
  sidestream replay recording.json
  sidestream view recording.json
"""


class DefaultCommandGroup(click.Group):
    """A group that runs `prompt` if no command is named, and shows its options in the help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMAND_MODULES, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMAND_MODULES.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        return getattr(import_module(f"sidestream.cli.{module}"), cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        group_options = {name for param in self.get_params(ctx) for name in param.opts}
        if not args and is_terminal(sys.stdin):
            args = ["--help"]
        elif not args or (args[0] not in self.list_commands(ctx) and args[0] not in group_options):
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
        self.format_commands(ctx, formatter)


@click.group(
    cls=DefaultCommandGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "--version", prog_name="sidestream", message="%(prog)s %(version)s")
def commands() -> None:
    """Prompt a model with server-side tools, and see everything that they do.

    The answer is written to standard output, progress to standard error. API keys and base URLs are read from the
    environment, e.g. OPENAI_API_KEY and OPENAI_BASE_URL. `sidestream keys` stores keys; `sidestream demo` needs none.
    """


@commands.command(short_help="Decode recordings offline.")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@options.json_option
@click.option("--pace", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Delay between events.")
@options.out_option
@options.view_options
def replay(
    files: tuple[str, ...], as_json: bool, pace: float, out: Path | None, thinking: bool, verbose: bool, usage: bool
) -> int:
    """Decode the model exchanges of recordings offline, as if they came from the network.

    A recorded error does not change the exit code, which only reports whether the files could be decoded.
    """
    from sidestream.cli.process import run_async
    from sidestream.cli.replay import replay_file
    from sidestream.cli.views import ViewOptions, screen_and_view

    _, view = screen_and_view(ViewOptions(as_json=as_json, out=out, thinking=thinking, verbose=verbose, usage=usage))
    code = exit_codes.OK
    for file in files:
        try:
            run_async(replay_file(file, view, pace_s=pace, is_one_of_many=len(files) > 1))
        except ConfigurationError as error:
            print_error(error)
            code = exit_codes.USAGE
    return exit_codes.FAILED if code == exit_codes.OK and view.has_unsaved else code


@commands.command()
@click.option("--fast", is_flag=True, help="Play without pauses.")
@click.option(
    "--out", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="Save files to this folder."
)
def demo(fast: bool, out: Path | None) -> int:
    """Play recorded runs, and a live one on this machine. Needs no key and no network."""
    from sidestream.cli.demo import play_demo
    from sidestream.cli.process import run_async

    run_async(play_demo(text_stream(sys.stdout), out, fast=fast))
    return exit_codes.OK


def run() -> int:
    """Runs the command line and returns the exit code."""
    try:
        log_to_stderr()
        code = commands(standalone_mode=False, prog_name="sidestream")
        return code if isinstance(code, int) else exit_codes.OK
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "sidestream"
        print_error(f"{error.format_message()} (see {where.removesuffix(f' {DEFAULT_COMMAND}')} --help)")
        return exit_codes.USAGE
    except ConfigurationError as error:
        print_error(error)
        return exit_codes.USAGE
    except SidestreamError as error:
        print_error(error)
        return exit_codes.FAILED
    except (KeyboardInterrupt, click.Abort):
        return exit_codes.INTERRUPTED
    except (OutputClosedError, BrokenPipeError):
        discard_output()
        return exit_codes.PIPE_CLOSED
    except OSError as error:
        print_error(f"input or output failed: {error.strerror or error}")
        discard_output()
        return exit_codes.FAILED


def print_error(error: object) -> None:
    """Prints an error as one line to standard error."""
    if sys.stderr is not None:
        print(f"error: {redact(one_line(str(error), 1000))}", file=sys.stderr, flush=True)
