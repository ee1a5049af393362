"""The `sidestream record` command, which runs a command behind a local recording proxy."""

import asyncio
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp
import click
from aiohttp import web
from yarl import URL

from sidestream.cli import exit_codes
from sidestream.replay.capture import Capture
from sidestream.replay.recording import STREAMS, Recording, essence
from sidestream.text.redaction import redact
from sidestream.transport.calls import HttpCall
from sidestream.wire.egress import configured_session

MAX_BODY = 512 * 1024 * 1024
"""Maximum request size, in bytes. As large as providers accept."""
CONNECT_TIMEOUT_S = 30.0
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host"}
    | {"content-length", "accept-encoding", "content-encoding"}
)
"""Headers that belong to one connection, or that no longer apply once a body has been read."""


class RecordingProxy:
    """A proxy that forwards requests to providers' base URLs and records the exchanges.

    `base_urls` maps environment variables to the providers' URLs. A program that runs with the variables in
    `environment` sends its requests to the proxy instead.
    """

    def __init__(self, base_urls: Mapping[str, str]) -> None:
        # Other users of this machine can connect too, so the path includes a secret.
        secret = secrets.token_urlsafe(24)
        self._targets = {f"{name.lower()}-{secret}": url.rstrip("/") for name, url in base_urls.items()}
        self._names = {f"{name.lower()}-{secret}": name for name in base_urls}
        self._captures: list[Capture] = []
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._port = 0
        self.problems: list[str] = []
        """Reasons why requests could not be forwarded."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make a program send its requests to the proxy."""
        return {
            self._names[key]: f"http://127.0.0.1:{self._port}/{key}{urlsplit(url).path}"
            for key, url in self._targets.items()
        }

    @property
    def recording(self) -> Recording:
        """The exchanges so far, without secrets."""
        return Recording(tuple(capture.exchange() for capture in self._captures), source="sidestream record")

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{target}/{path:.*}", self._forward)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self._session = configured_session()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        target = self._targets.get(request.match_info["target"])
        if target is None or self._session is None:
            return web.Response(status=404, text="sidestream record: unknown URL")
        origin = urlsplit(target)
        path = request.raw_path.partition(request.match_info["target"])[2]
        url = f"{origin.scheme}://{origin.netloc}{path}"
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        body = await request.read()
        call = HttpCall(method=request.method, url=url, headers=headers, body=body or None)
        try:
            opened = self._session.request(
                request.method,
                URL(url, encoded=True),
                headers={**headers, "Accept-Encoding": "identity"},
                data=body or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            )
            async with opened as answer:
                return await self._passed_on(request, call, answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            self.problems.append(redact(f"{origin.netloc}: {error or type(error).__name__}"))
            message = {"error": {"message": f"sidestream record: {self.problems[-1]}", "code": "unreachable"}}
            return web.json_response(message, status=502)

    async def _passed_on(
        self, request: web.Request, call: HttpCall, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        kind = answer.headers.get("Content-Type", "application/octet-stream")
        capture = Capture(call, answer.status, kind)
        self._captures.append(capture)
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                response.headers.add(name, value)
        data = bytearray()
        try:
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                data += chunk
                await response.write(chunk)
            with suppress(ConnectionError):
                await response.write_eof()
        finally:  # Record what has arrived even if the program disconnects.
            capture.data = bytes(data)
            if essence(kind) in STREAMS:
                capture.split_events()
        return response


GRACE_S = 5.0
"""Seconds an interrupted command may take to end."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND…")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def record(file: Path, command: tuple[str, ...], force: bool) -> int:
    """Run COMMAND and record its traffic with model providers in FILE, without its secrets.

    The command runs with other base URLs (OPENAI_BASE_URL, ANTHROPIC_BASE_URL, GOOGLE_GEMINI_BASE_URL), from which this
    program forwards its requests. Streams pass through live. `sidestream replay FILE` plays the recording, and the
    model replay:FILE answers from it. The exit code is the command's.

    \b
    sidestream record search.json -- sidestream -T web_search "What is new?"
    sidestream record run.json -- python my_agent.py
    """  # noqa: D301 - click needs the backspace
    from sidestream.cli import key_file
    from sidestream.cli.interrupts import run_async

    if file.exists() and not force:
        raise click.UsageError(f"{file} already exists; choose another name, or use --force to replace it")
    if not file.absolute().parent.is_dir():
        raise click.UsageError(f"the folder of {file} does not exist")
    key_file.load()
    words = command[1:] if command[0] == "--" else command
    return run_async(_record(file, words))


async def _record(file: Path, command: tuple[str, ...]) -> int:

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
    """Wait for a command that also received Ctrl-C, and terminate it after the grace period."""
    try:
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    except TimeoutError:
        process.terminate()


def _save(file: Path, proxy: "RecordingProxy") -> bool:
    recording = proxy.recording
    count = len(recording.exchanges)
    if not count:
        click.echo("Nothing was recorded: the command sent no requests to the base URLs in its environment.", err=True)
        return False
    recording.save(file)
    click.echo(f"{count} exchange{'' if count == 1 else 's'} recorded in {file}", err=True)
    return True
