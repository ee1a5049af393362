"""`sidestream record`: runs a command and keeps its provider traffic as a recording."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidestream.cli import exit_codes

if TYPE_CHECKING:
    from sidestream.cli.commands.recording_proxy import RecordingProxy

GRACE_S = 5.0
"""How long a command that was interrupted may take to end."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND…")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def record(file: Path, command: tuple[str, ...], force: bool) -> int:
    """Run COMMAND and record its traffic with model providers in FILE, without its secrets.

    The command gets other base URLs (OPENAI_BASE_URL, ANTHROPIC_BASE_URL, GOOGLE_GEMINI_BASE_URL), behind which this
    program forwards what is sent; streams pass through live. `sidestream replay FILE` plays the recording, and the
    model replay:FILE answers from it. The exit code is that of the command.

    \b
    sidestream record search.json -- sidestream -T web_search "What is new?"
    sidestream record run.json -- python my_agent.py
    """
    from sidestream.cli import key_file
    from sidestream.cli.interrupts import run_async

    if file.exists() and not force:
        raise click.UsageError(f"{file} exists: choose another name, or replace it with --force")
    if not file.absolute().parent.is_dir():
        raise click.UsageError(f"the folder of {file} does not exist")
    key_file.load()
    words = command[1:] if command[0] == "--" else command
    return run_async(_record(file, words))


async def _record(file: Path, command: tuple[str, ...]) -> int:
    from sidestream.cli.commands.recording_proxy import RecordingProxy
    from sidestream.providers.registry import base_urls

    async with RecordingProxy(base_urls()) as proxy:
        try:
            process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **proxy.environment})
        except OSError as error:
            raise click.UsageError(f"cannot run {command[0]}: {error.strerror}") from None
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _ended(process)
            _save(file, proxy)
            raise
        for problem in proxy.problems:
            click.echo(f"warning: a request was not forwarded: {problem}", err=True)
        has_traffic = _save(file, proxy)
    if code != 0:
        return code if code > 0 else 128 - code
    return exit_codes.OK if has_traffic else exit_codes.FAILED


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Waits for a command that got Ctrl-C too; ends it if it does not."""
    try:
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    except TimeoutError:
        process.terminate()


def _save(file: Path, proxy: "RecordingProxy") -> bool:
    recording = proxy.recording
    count = len(recording.exchanges)
    if not count:
        click.echo("nothing was recorded: the command sent nothing to the base URLs in its environment", err=True)
        return False
    recording.save(file)
    click.echo(f"{count} exchange{'' if count == 1 else 's'} recorded in {file}", err=True)
    return True
