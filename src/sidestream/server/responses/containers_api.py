"""Files of a response, at the `containers.files` endpoints where OpenAI's SDK looks for cited files."""

from collections.abc import Sequence

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.files.media_types import digest
from sidestream.jsontext import JsonObject
from sidestream.parts import File, Source, StreamPart
from sidestream.protocols.responses.items import annotation_of, file_id, is_container_of_response, response_of_container
from sidestream.server.errors import not_found
from sidestream.server.http.files_api import file_response
from sidestream.server.http.requests import json_response, owner_of, server_of
from sidestream.server.responses.service import find_response
from sidestream.server.responses.stored_items import listed
from sidestream.server.server import Server
from sidestream.store.records import Row, Segment

MAX_SCANNED = 100
"""Maximum conversations searched for a file by its provider's own id."""


class _Found(Struct, frozen=True):
    id: str
    file: File
    time: float

    def described(self, container: str) -> JsonObject:
        """Return the file's description in the API's format."""
        return {
            "id": self.id,
            "object": "container.file",
            "container_id": container,
            "created_at": int(self.time),
            "bytes": len(self.file.data or b""),
            "path": self.file.name or self.file.id,
            "source": "assistant",
        }


def routes() -> list[BaseRoute]:
    """Return the routes of this API."""
    return [
        Route("/v1/containers/{id}/files", list_files, methods=["GET"]),
        Route("/v1/containers/{id}/files/{file}", retrieve, methods=["GET"]),
        Route("/v1/containers/{id}/files/{file}/content", content, methods=["GET"]),
    ]


async def list_files(request: Request) -> Response:
    """List the files of a response, newest first unless the query sets another order."""
    found = [each.described(request.path_params["id"]) for each in await _files(request)]
    return json_response(listed(found, request.query_params))


async def retrieve(request: Request) -> Response:
    """Return a file's description."""
    return json_response((await _found(request)).described(request.path_params["id"]))


async def content(request: Request) -> Response:
    """Return a file's content."""
    found = await _found(request)
    data = found.file.data or b""
    return file_response(data, digest(data), found.file.name)


async def _found(request: Request) -> _Found:
    container, name = request.path_params["id"], request.path_params["file"]
    if is_container_of_response(container):
        files = await _files(request)
    else:
        files = await _cited(server_of(request), owner_of(request), container, name)
    for each in files:
        if name in (each.id, each.file.id):
            return each
    raise not_found("file", name[:100])


async def _files(request: Request) -> list[_Found]:
    """Return the files of a response. Raises RequestError(404) if no response has this container."""
    server, id = server_of(request), request.path_params["id"]
    if not is_container_of_response(id):
        raise not_found("container", id[:100])
    info = await find_response(server, owner_of(request), response_of_container(id))
    rows = await server.store.read(info.conversation, info.start - 1)
    files = [(row.time, part) for row, part in await _parts(server, rows, info.end) if isinstance(part, File)]
    found = [_Found(file_id(number), file, time) for number, (time, file) in enumerate(files)]
    return [each for each in found if each.file.data is not None]


async def _cited(server: Server, owner: str, container: str, name: str) -> list[_Found]:
    """Find a file by the provider's own ids, in the tenant's latest conversations."""
    for info in await server.store.conversations(MAX_SCANNED, prefix=f"{owner}/"):
        parts = await _parts(server, await server.store.read(info.id))
        sources = [annotation_of(part) for _, part in parts if isinstance(part, Source) and part.file_id == name]
        if any(source is not None and source.get("container_id") == container for source in sources):
            files = [(row.time, part) for row, part in parts if isinstance(part, File) and part.id == name]
            return [_Found(name, file, time) for time, file in files if file.data is not None]
    return []


async def _parts(server: Server, rows: Sequence[Row], end: int | None = None) -> list[tuple[Row, StreamPart]]:
    """Return the files and sources among the records."""
    found: list[tuple[Row, StreamPart]] = []
    for row in rows:
        if row.kind in ("file", "source") and (end is None or row.seq < end):
            body = (await server.store.record(row, load=True)).body
            found += [(row, part) for part in (body.parts if isinstance(body, Segment) else ())]
    return found
