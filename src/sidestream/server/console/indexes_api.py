"""REST API for the web UI to add, update, search and remove folders of this machine's file index.

The indexed files belong to the server's owner, so the index is closed on shared servers and only the owner changes it.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.server.errors import RequestError
from sidestream.server.file_indexes import FileIndexes
from sidestream.server.http.requests import (
    check_admin,
    check_panel,
    json_response,
    may_administer,
    read_json,
    server_of,
)
from sidestream.server.server import Server
from sidestream.server.settings import offers_index


def routes(server: Server) -> list[BaseRoute]:
    """Return the routes of this API."""
    return [
        Route("/api/indexes", folders),
        Route("/api/indexes", add, methods=["POST"]),
        Route("/api/indexes", remove, methods=["DELETE"]),
        Route("/api/indexes/search", search),
    ]


async def folders(request: Request) -> Response:
    """Return the folders of the index, or the reason why the web UI has no index."""
    check_panel(request, "indexes")
    server = server_of(request)
    indexes = server.indexes
    if not offers_index(server.settings):
        reason = "shared" if indexes.is_on else "off"
        return json_response({"allowed": [], "unavailable": reason, "folders": [], "passages": 0, "vectors": 0})
    is_admin = may_administer(request)
    allowed = list(indexes.allowed) if is_admin else []
    described = await indexes.described(is_editable=is_admin)
    return json_response({"allowed": allowed, "unavailable": None, "editable": is_admin, **described})


async def add(request: Request) -> Response:
    """Start to read a folder or its changes. `GET` reports the progress."""
    indexes = _indexes(request)
    check_admin(request, "index folders")
    path: Any = (await read_json(request)).get("path")
    if not isinstance(path, str):
        raise RequestError(400, "path must be a string", param="path")
    return json_response({"path": indexes.start(path)}, 202)


async def remove(request: Request) -> Response:
    """Remove a folder from the index, keeping its files."""
    indexes = _indexes(request)
    check_admin(request, "remove folders from the index")
    return json_response({"removed": await indexes.remove(request.query_params.get("path", ""))})


async def search(request: Request) -> Response:
    """Return the best passages for `q`."""
    check_panel(request, "indexes")
    indexes = _indexes(request)
    query = request.query_params.get("q", "")
    if not query.strip():
        raise RequestError(400, "q must be a non-empty string", param="q")
    return json_response({"passages": await indexes.search(query)})


def _indexes(request: Request) -> FileIndexes:
    server = server_of(request)
    if not server.indexes.is_on:
        message = "this server was started without folders to index"
        raise RequestError(404, message, type="not_found", code="no_index_folders")
    if not offers_index(server.settings):
        message = "this server is shared, so its files can only be indexed on its machine"
        raise RequestError(403, message, type="permission_error", code="read_only")
    return server.indexes
