"""Serves the files of a tenant's conversations in a way that prevents any of them from running in a browser."""

from collections.abc import Callable
from functools import partial
from urllib.parse import quote

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.errors import BlobError
from sidestream.files.media_types import sniff
from sidestream.files.saving import safe_name
from sidestream.server.errors import not_found
from sidestream.server.http.requests import owner_of, server_of
from sidestream.server.server import Server
from sidestream.store.blobs.folder import is_digest

INLINE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""MIME types, detected from content, that browsers may show. Others, such as SVG, HTML and PDF, can hold scripts."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "private, max-age=3600",
}


def routes(server: Server) -> list[BaseRoute]:
    """Return the routes of this API."""
    return [Route("/api/blobs/{digest}", blob)]


async def blob(request: Request) -> Response:
    """Return a file that one of the tenant's conversations refers to."""
    digest = request.path_params["digest"]
    store = server_of(request).store
    if not is_digest(digest) or not await store.refers_to(digest, prefix=f"{owner_of(request)}/"):
        raise not_found("file", digest[:64])
    if request.headers.get("if-none-match") == f'"{digest}"':
        return _shared(request, Response(status_code=304, headers=_HEADERS))  # Caches adopt its headers.
    try:
        data = await store.blob(digest)
    except BlobError:
        raise not_found("file", digest, code="file_lost") from None
    return _shared(request, file_response(data, digest, request.query_params.get("name")))


def _shared(request: Request, response: Response) -> Response:
    """Let pages of other sites show a file whose URL is signed. They request images without an origin."""
    if request.state.is_signed:
        response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
    return response


def links_for(connection: HTTPConnection) -> Callable[[str], str]:
    """Return the function that maps digests to URLs for the sender of a request."""
    return partial(server_of(connection).links.url, connection)


def file_response(data: bytes, digest: str, name: str | None) -> Response:
    """Return a response that shows a file if its content is an image, and else downloads it."""
    mime_type = sniff(data, name or None)
    place = "inline" if mime_type in INLINE else "attachment"
    headers = {
        **_HEADERS,
        "ETag": f'"{digest}"',
        "Content-Disposition": f"{place}; {filename(safe_name(name or digest[:12], mime_type))}",
    }
    return Response(data, headers=headers, media_type=mime_type)


def filename(name: str) -> str:
    """Return the filename parameter of `Content-Disposition` for any name."""
    if name.isascii() and not set('"\\') & set(name):
        return f'filename="{name}"'
    return f"filename*=UTF-8''{quote(name, safe='')}"
