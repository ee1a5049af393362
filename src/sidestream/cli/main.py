"""The commands. A prompt needs no command's name: `sidestream "…"` is `sidestream prompt "…"`."""

import os
import select
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, TypeVar

import click

from sidestream import __version__
from sidestream.cli import process
from sidestream.cli.terminal import OutputClosedError, discard_output, one_line
from sidestream.errors import ConfigurationError
from sidestream.redaction import redact

if TYPE_CHECKING:
    from sidestream.cli.render import View

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MODEL = "openai-responses"
DEFAULT_COMMAND = "prompt"
QUIET_STDIN_S = 2.0
"""After this wait for standard input a line says what is waited for."""

TOOL_HELP = "A server-side tool: web_search, code_interpreter, image_generation … May be given more than once."

EXAMPLES = """\b
Examples:
  sidestream demo
  sidestream "Why is the sky blue?"
  sidestream -T web_search "What is new in Python?"
  sidestream -T code_interpreter --out . "Plot y = x^2"
  cat notes.txt | sidestream "Summarise this"
  sidestream --json "Hello" | jq -r 'select(.type == "text-delta").delta'
  sidestream replay recording.json
"""


class PromptFirst(click.Group):
    """A group whose first argument may be a prompt, and whose help shows the options of one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for param in self.get_params(ctx) for name in param.opts}
        if not args and _is_terminal(sys.stdin):
            args = ["--help"]
        elif not args or (args[0] not in self.commands and args[0] not in own):
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS] PROMPT\n      ", ctx.command_path, "COMMAND …"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        prompt = self.commands[DEFAULT_COMMAND]
        options = [param for param in prompt.params if isinstance(param, click.Option)]
        records = [option.get_help_record(ctx) for option in (*options, *self.get_params(ctx))]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])
        self.format_commands(ctx, formatter)


def _json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print every part as one line of JSON.")(command)


def _out_option(command: F) -> F:
    folder = click.Path(file_okay=False, path_type=Path)
    return click.option("--out", metavar="DIR", type=folder, help="Save the files that tools make to this folder.")(
        command
    )


def _look_options(command: F) -> F:
    thinking = click.option("--thinking", is_flag=True, help="Show the reasoning, as far as the model tells it.")
    verbose = click.option("-v", "--verbose", is_flag=True, help="Show the model, what was used, and unknown events.")
    return thinking(verbose(command))


@click.group(
    cls=PromptFirst,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "--version", prog_name="sidestream", message="%(prog)s %(version)s")
def commands() -> None:
    """Ask a model whose tools run on the provider's side, and see everything that they do.

    The answer goes to standard output, progress to standard error. Keys and base URLs come from the
    environment, e.g. OPENAI_API_KEY and OPENAI_BASE_URL. `sidestream demo` needs neither.
    """


@commands.command(DEFAULT_COMMAND)
@click.argument("words", metavar="PROMPT", nargs=-1)
@click.option(
    "-m",
    "--model",
    default=DEFAULT_MODEL,
    envvar="SIDESTREAM_MODEL",
    metavar="MODEL",
    show_default=True,
    show_envvar=True,
    help="PROVIDER or PROVIDER:MODEL.",
)
@click.option("-T", "--tool", "tools", multiple=True, metavar="TOOL", help=TOOL_HELP)
@click.option("--system", metavar="TEXT", help="The system prompt.")
@click.option("--base-url", metavar="URL", help="Where the provider's API is, in place of the usual address.")
@click.option("--no-stream", is_flag=True, help="Ask for the answer as a whole.")
@_json_option
@_out_option
@_look_options
def prompt(
    words: tuple[str, ...],
    model: str,
    tools: tuple[str, ...],
    system: str | None,
    base_url: str | None,
    no_stream: bool,
    as_json: bool,
    out: Path | None,
    thinking: bool,
    verbose: bool,
) -> int:
    """Send a prompt. This is what happens without a command's name.

    PROMPT may be `-` for standard input. What is piped in besides a prompt is added to its end.
    """
    from sidestream.agent import Agent
    from sidestream.server_tools import tool_named

    given = _argument(words)
    agent = Agent(model, server_side_tools=map(tool_named, tools), system=system, base_url=base_url)
    view = _view(as_json, out, thinking=thinking, verbose=verbose)
    question = _question(given)

    async def work() -> bool:
        from sidestream.cli.playing import play

        async with agent.stream(question, stream=not no_stream) as run:
            return await play(run, view)

    succeeded = process.run_async(work())
    return process.OK if succeeded and not view.has_unsaved else process.FAILED


@commands.command(short_help="Decode recordings, offline.")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@_json_option
@click.option("--pace", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Wait between events.")
@_out_option
@_look_options
def replay(files: tuple[str, ...], as_json: bool, pace: float, out: Path | None, thinking: bool, verbose: bool) -> int:
    """Decode the model exchanges of recordings, offline, as if they came from the network.

    What was recorded may be an error; the exit code says only whether it could be decoded.
    """
    from sidestream.cli.playing import replay_file

    view = _view(as_json, out, thinking=thinking, verbose=verbose)
    code = process.OK
    for file in files:
        try:
            process.run_async(replay_file(file, view, pace_s=pace, is_one_of_many=len(files) > 1))
        except ConfigurationError as error:
            _complain(error)
            code = process.USAGE
    return process.FAILED if code == process.OK and view.has_unsaved else code


@commands.command()
@click.option("--fast", is_flag=True, help="Without waits.")
@click.option("--out", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="Where files are saved.")
def demo(fast: bool, out: Path | None) -> int:
    """Show what a run looks like, from recordings: no key, no network."""
    from sidestream.cli.demo import show

    process.run_async(show(_text_stream(sys.stdout), out, fast=fast))
    return process.OK


def run() -> int:
    """Runs the command line and returns its exit code."""
    try:
        code = commands(standalone_mode=False, prog_name="sidestream")
        return code if isinstance(code, int) else process.OK
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "sidestream"
        _complain(f"{error.format_message()} (see {where.removesuffix(f' {DEFAULT_COMMAND}')} --help)")
        return process.USAGE
    except ConfigurationError as error:
        _complain(error)
        return process.USAGE
    except (KeyboardInterrupt, click.Abort):
        return process.INTERRUPTED
    except OutputClosedError:
        discard_output()
        return process.PIPE_CLOSED
    except OSError as error:
        _complain(f"input or output failed: {error.strerror or error}")
        discard_output()
        return process.FAILED


def _complain(problem: object) -> None:
    if sys.stderr is not None:
        print(f"error: {redact(one_line(str(problem), 1000))}", file=sys.stderr, flush=True)


def _view(as_json: bool, out: Path | None, *, thinking: bool, verbose: bool) -> "View":
    from sidestream.cli.output import Folder
    from sidestream.cli.render import JsonLines, Progress
    from sidestream.cli.terminal import Screen

    folder = Folder(out) if out is not None else None
    err = _text_stream(sys.stderr)
    if as_json:
        return JsonLines(_byte_stream(sys.stdout), err, folder)
    return Progress(Screen(_text_stream(sys.stdout), err), folder, thinking=thinking, verbose=verbose)


def _text_stream(stream: TextIO | None) -> TextIO:
    """The stream, which writes `?` for what its encoding lacks; nowhere, where it was closed from the start."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    return stream


def _byte_stream(stream: TextIO | None) -> BinaryIO:
    return open(os.devnull, "wb") if stream is None else stream.buffer


def _argument(words: tuple[str, ...]) -> str:
    """The prompt of the command line; empty where standard input holds it."""
    if len(words) > 1:
        raise click.UsageError("the prompt has several words: put it in quotes")
    return "" if words == ("-",) else "".join(words).strip()


def _question(given: str) -> str:
    """The prompt and what was piped in."""
    piped = _piped(is_wanted=not given)
    question = "\n\n".join(part for part in (given, piped.strip("\n")) if part)
    if not question.strip():
        raise click.UsageError("there is no prompt: write one in quotes, or pipe it in")
    return question


def _piped(*, is_wanted: bool) -> str:
    """Standard input; without need for it only where a pipe or a file stands there."""
    stream = sys.stdin
    if stream is None or (not is_wanted and not _is_piped(stream)):
        return ""
    if _is_terminal(stream):
        print("Type the prompt; Ctrl-D ends it.", file=sys.stderr, flush=True)
    elif not _is_ready(stream):
        print("Waiting for standard input; </dev/null goes without it.", file=sys.stderr, flush=True)
    try:
        return stream.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError("standard input is not UTF-8 text") from error


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _is_piped(stream: TextIO) -> bool:
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _is_ready(stream: TextIO) -> bool:
    try:
        return bool(select.select([stream], [], [], QUIET_STDIN_S)[0])
    except (OSError, ValueError):  # Where only sockets can be waited for.
        return True
