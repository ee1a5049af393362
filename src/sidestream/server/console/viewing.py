"""The viewer of a file, which shows a log, a recording or a file of parts in the web UI's timeline."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream import __version__, jsontext
from sidestream.errors import BlobError, ConfigurationError
from sidestream.jsontext import JsonObject, objects
from sidestream.parts import ResponseMetadata, part_from_json
from sidestream.replay.provider import model_exchanges, replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.server.console import page_files
from sidestream.server.console.runs_api import record_json
from sidestream.server.errors import RequestError, not_found
from sidestream.server.http.files_api import file_response
from sidestream.server.http.requests import http_error, json_response, refused
from sidestream.server.security import Guard, sign_in
from sidestream.server.settings import Page, ServerSettings
from sidestream.store.opening import open_store
from sidestream.store.protocol import Store
from sidestream.store.records import RunStarted, unpack
from sidestream.text.redaction import Secret

MAX_CONVERSATIONS = 500
"""Maximum conversations listed from a log, latest first."""
_SQLITE = b"SQLite format 3\x00"


class ViewedRun(Struct, frozen=True, kw_only=True):
    """A run in the file."""

    id: str
    title: str = ""
    model: str | None = None
    time: float = 0
    """Start in seconds since 1970. 0 means unknown."""


class ViewedFile(Protocol):
    """A file that the viewer can show."""

    async def runs(self) -> Sequence[ViewedRun]:
        """Return the runs, newest first or in the order of the file."""
        ...

    async def records(self, run: str) -> list[JsonObject] | None:
        """Return the records of a run in the form of `record_json`, or None if the run is unknown."""
        ...

    async def blob(self, digest: str) -> bytes:
        """Return the content of a file that a record names. Raises BlobError if it is missing."""
        ...

    async def aclose(self) -> None:
        """Close the file."""
        ...


class PartsFile:
    """Runs that are lists of parts without times."""

    def __init__(self, runs: Mapping[str, tuple[ViewedRun, list[JsonObject]]]) -> None:
        self._runs = runs

    async def runs(self) -> Sequence[ViewedRun]:
        """Return the runs."""
        return [run for run, _ in self._runs.values()]

    async def records(self, run: str) -> list[JsonObject] | None:
        """Return one record for each part."""
        if run not in self._runs:
            return None
        parts = self._runs[run][1]
        return [{"seq": at, "time": 0, "kind": part["type"], "parts": [part]} for at, part in enumerate(parts, 1)]

    async def blob(self, digest: str) -> bytes:
        """Raise BlobError, because the parts contain their bytes."""
        raise BlobError(f"file {digest} not found", digest=digest)

    async def aclose(self) -> None:
        """Do nothing, because no file is open."""


class LogFile:
    """The runs of a log database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def runs(self) -> Sequence[ViewedRun]:
        """Return the runs of the latest conversations, newest first."""
        found: list[ViewedRun] = []
        for info in (await self._store.conversations(MAX_CONVERSATIONS))[:MAX_CONVERSATIONS]:
            seen: dict[str, ViewedRun] = {}
            for row in await self._store.read(info.id):
                if row.kind != "run-started" or row.run in seen:
                    continue
                body = unpack(row).body
                model = body.model if isinstance(body, RunStarted) else None
                seen[row.run] = ViewedRun(id=row.run, title=info.title or info.id, model=model, time=row.time)
            found += seen.values()
        return sorted(found, key=lambda run: -run.time)

    async def records(self, run: str) -> list[JsonObject] | None:
        """Return the records of a run and the message that it answers."""
        found = await self._store.find_run(run)
        if found is None:
            return None
        rows = await self._store.read(found[0], max(0, found[1] - 2))
        return [record_json(row) for row in rows if row.run == run]

    async def blob(self, digest: str) -> bytes:
        """Return the content of a file. Raises BlobError if it is missing."""
        return await self._store.blob(digest)

    async def aclose(self) -> None:
        """Close the store."""
        await self._store.aclose()


async def open_file(path: Path) -> ViewedFile:
    """Open a log database, a recording, or a file with one part per line.

    Raises ConfigurationError if it is anything else or cannot be read.
    """
    try:
        with path.open("rb") as opened:
            beginning = opened.read(len(_SQLITE))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    if beginning == _SQLITE:
        return LogFile(open_store(path))
    if (recording := _recording(path)) is not None:
        return PartsFile(await _replayed(recording, path))
    return PartsFile({path.stem: (ViewedRun(id=path.stem, title=path.name), _parts(path))})


def _recording(path: Path) -> Recording | None:
    try:
        return Recording.load(path)
    except ConfigurationError:
        return None


async def _replayed(recording: Recording, path: Path) -> dict[str, tuple[ViewedRun, list[JsonObject]]]:
    """Replay the model exchanges of a recording, each as a run."""
    if not model_exchanges(recording):
        raise ConfigurationError(f"{path} has no model exchange that an installed provider can decode")
    found: dict[str, tuple[ViewedRun, list[JsonObject]]] = {}
    for number, run in enumerate(replay(recording, ReplayTransport(recording)), 1):
        async with run:
            parts = [part async for part in run]
        model = next((part.model for part in parts if isinstance(part, ResponseMetadata) and part.model), None)
        id = f"{path.stem}-{number}"
        title = f"exchange {number}"
        found[id] = (ViewedRun(id=id, title=title, model=model), objects([jsontext.loads(p.to_json()) for p in parts]))
    return found


def _parts(path: Path) -> list[JsonObject]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not a log, a recording or a file of parts") from None
    parts: list[JsonObject] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            parts.append(jsontext.as_object(jsontext.loads(part_from_json(line).to_json())))
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            what = "is not a log or a recording, and its line" if number == 1 else "has parts, but its line"
            raise ConfigurationError(f"{path} {what} {number} is not a part: {error}") from None
    if not parts:
        raise ConfigurationError(f"{path} is empty")
    return parts


def view_app(viewed: ViewedFile, name: str, token: str | None = None) -> Starlette:
    """Create the app that shows a file in the web UI, reachable only from this machine and with the token, if any."""

    async def about(request: Request) -> Response:
        # There is no agent to chat with; `view` makes the web UI show only the file.
        return json_response({"version": __version__, "agents": [], "examples": [], "hasMcp": False, "view": name})

    async def conversations(request: Request) -> Response:
        return json_response({"conversations": [], "next": None})

    async def view(request: Request) -> Response:
        return json_response({"file": name, "runs": await viewed.runs()})

    async def records(request: Request) -> Response:
        run = request.path_params["run"]
        found = await viewed.records(run)
        if found is None:
            raise not_found("run", run)
        after = request.query_params.get("after", "0")
        start = int(after) if after.isdecimal() and len(after) < 16 else 0
        shown = [record for record in found if int(str(record["seq"])) > start]
        return json_response({"run": {"id": run, "chat": None, "live": False}, "records": shown, "done": True})

    async def blob(request: Request) -> Response:
        digest = request.path_params["digest"]
        try:
            data = await viewed.blob(digest)
        except BlobError:
            raise not_found("file", digest[:64]) from None
        return file_response(data, digest, request.query_params.get("name"))

    routes: list[BaseRoute] = [
        Route("/api/about", about),
        Route("/api/sign-in", sign_in, methods=["POST"]),
        Route("/api/conversations", conversations),
        Route("/api/view", view),
        Route("/api/runs/{run}/records", records),
        Route("/api/blobs/{digest}", blob),
        *page_files.routes(Page()),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await viewed.aclose()

    settings = ServerSettings(agents={}, default="", owner_token=None if token is None else Secret(token))
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, settings=settings)],
        exception_handlers={RequestError: refused, HTTPException: http_error},
    )
