"""The `sidestream view` command, which opens logs and recordings as a timeline, and `sidestream replay`."""

import atexit
import os
import threading
import webbrowser
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from sidestream.cli import exit_codes
from sidestream.cli.inputs import options
from sidestream.errors import MissingExtraError
from sidestream.files.folders import data_folder, write_private

if TYPE_CHECKING:
    from sidestream.cli.display.view import View

_PAGE = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={url}">\n'


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port to listen on. Defaults to a free one.")
@click.option("--no-browser", is_flag=True, help="Print the URL instead of opening a browser.")
def view(file: Path | None, port: int, no_browser: bool) -> int:
    """Open a log or a recording in a browser, as a timeline: what happened when, raw events beside typed parts.

    FILE is a log database, a recording, or a file with one part per line, as --json prints them. It defaults to your
    own log, and is only read. The page needs the token in its URL, so other users cannot see it.
    """
    try:
        from sidestream.server.console.viewing import open_file, view_app
        from sidestream.server.uvicorn_runner import bound_socket, serve
    except ImportError:
        raise MissingExtraError("server", "sidestream view") from None
    import secrets

    from sidestream.cli.commands.running_servers import with_token
    from sidestream.cli.interrupts import exit_now, run_async

    file = _log_file() if file is None else file
    token = secrets.token_urlsafe(24)
    app = view_app(run_async(open_file(file)), file.name, token)
    listening = bound_socket("127.0.0.1", port)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/view/{quote(file.name, safe='')}"
    page = data_folder() / "servers" / f"view-{os.getpid()}.html"
    atexit.register(page.unlink, missing_ok=True)

    def started() -> None:
        click.echo(with_token(address, token))
        if not no_browser:
            with suppress(OSError):  # The URL is printed anyway.
                # All users can read a process's arguments, so the browser opens a file that only this user can read.
                write_private(page, _PAGE.format(url=escape(with_token(address, token))))
                threading.Thread(target=_open, args=(page,), daemon=True).start()  # Some browsers block.

    serve(app, listening, exit_now=exit_now, on_start=started, on_stop=lambda: page.unlink(missing_ok=True))
    return exit_codes.OK


def _open(page: Path) -> None:
    with suppress(webbrowser.Error, OSError):
        webbrowser.open(page.as_uri())


def _log_file() -> Path:
    """Return the path of the user's log. Raises UsageError if it is not a file."""
    from sidestream.store.opening import default_location

    location = str(default_location())
    if "://" in location or not Path(location).is_file():
        raise click.UsageError("there is no log file yet: name the file to view")
    return Path(location)


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
