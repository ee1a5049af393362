"""The `sidestream view` command, which opens a log, a recording or a file of parts in the timeline."""

import atexit
import os
import threading
import webbrowser
from contextlib import suppress
from html import escape
from pathlib import Path
from urllib.parse import quote

import click

from sidestream.cli import exit_codes
from sidestream.errors import MissingExtraError
from sidestream.files.folders import data_folder, write_private

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
