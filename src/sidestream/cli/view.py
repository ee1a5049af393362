"""`sidestream view`: opens a log, a recording or a file of parts in the page's timeline."""

import webbrowser
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import click

from sidestream.cli import exit_codes
from sidestream.errors import MissingExtraError


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port; by default any free one.")
@click.option("--no-browser", is_flag=True, help="Print the address instead of opening a browser.")
def view(file: Path | None, port: int, no_browser: bool) -> int:
    """Open a log or a recording in a browser, as a timeline: what happened when, raw events beside typed parts.

    FILE is a log database, a recording, or a file with the JSON of a part in each line, as --json prints them; by
    default your own log. It is only read, and nobody else can reach the page.
    """
    try:
        from sidestream.server.serving import bound_socket, serve
        from sidestream.server.viewing import open_file, view_app
    except ImportError:
        raise MissingExtraError("server", "sidestream view") from None
    from sidestream.cli.process import exit_now, run_async

    file = _log_file() if file is None else file
    app = view_app(run_async(open_file(file)), file.name)
    listening = bound_socket("127.0.0.1", port)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/view/{quote(file.name, safe='')}"
    click.echo(address)
    if not no_browser:
        with suppress(webbrowser.Error, OSError):  # The address is printed.
            webbrowser.open(address)
    serve(app, listening, exit_now=exit_now)
    return exit_codes.OK


def _log_file() -> Path:
    """The log of this user. Raises UsageError if it is no file."""
    from sidestream.store.opening import default_location

    location = str(default_location())
    if "://" in location or not Path(location).is_file():
        raise click.UsageError("there is no log file yet: name the file to view")
    return Path(location)
