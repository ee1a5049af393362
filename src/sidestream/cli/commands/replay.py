"""The `sidestream replay` command, which shows recorded model exchanges."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidestream.cli import exit_codes
from sidestream.cli.inputs import options

if TYPE_CHECKING:
    from sidestream.cli.display.view import View


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@options.json_option
@click.option("--pace", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Delay between events.")
@options.out_option
@options.view_options
def replay(
    files: tuple[str, ...],
    as_json: bool,
    pace: float,
    out: Path | None,
    thinking: bool,
    verbose: bool,
    usage: bool,
    plain: bool,
) -> int:
    """Decode the model exchanges of recordings offline, as if they came from the network.

    A recorded error does not change the exit code, which only reports whether the files could be decoded.
    """
    from sidestream.cli.display.view import ViewOptions, screen_and_view
    from sidestream.cli.failures import print_error
    from sidestream.cli.interrupts import run_async
    from sidestream.errors import ConfigurationError

    view_options = ViewOptions(
        as_json=as_json, out=out, thinking=thinking, verbose=verbose, usage=usage, is_plain=plain
    )
    _, view = screen_and_view(view_options)
    code = exit_codes.OK
    for file in files:
        try:
            run_async(_replay(file, view, pace_s=pace, is_one_of_many=len(files) > 1))
        except ConfigurationError as error:
            print_error(error)
            code = exit_codes.USAGE
    return exit_codes.FAILED if code == exit_codes.OK and view.has_unsaved else code


async def _replay(path: str, view: "View", *, pace_s: float, is_one_of_many: bool) -> None:
    """Show each model exchange of a recording. Raises ConfigurationError if the recording has none."""
    from sidestream.cli.display.view import show_run
    from sidestream.errors import ConfigurationError
    from sidestream.replay.provider import model_exchanges, replay
    from sidestream.replay.recording import Recording
    from sidestream.replay.transport import ReplayTransport

    recording = Recording.load(path)
    total = len(model_exchanges(recording))
    if total == 0:
        found = ", ".join(f"{e.request.method} {e.request.path}" for e in recording.exchanges[:3]) or "nothing"
        raise ConfigurationError(f"{path} has no model exchange that an installed provider can decode, only {found}")
    for number, run in enumerate(replay(recording, ReplayTransport(recording, pace_s=pace_s)), 1):
        if is_one_of_many or total > 1:
            view.heading(f"{path}, exchange {number} of {total}")
        async with run:
            await show_run(run, view)
