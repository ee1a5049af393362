"""The files of the web UI, built by `make page` into `server/page` and shipped in the wheel."""

import mimetypes
import re
from functools import cache
from html import escape
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from sidestream.server.errors import RequestError
from sidestream.server.settings import ICON_TYPES, Page

FOLDER = Path(__file__).parents[1] / "page"
NOT_BUILT = (
    "The web UI is not built. In a checkout of Sidestream, run `make page`; released packages include it.\n"
    "The server's APIs work without it: /v1/responses, /v1/chat/completions, /v1/messages, /api/chat.\n"
)
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}
"""MIME types by extension, because those that Python knows depend on the machine."""
_FOREVER = "public, max-age=31536000, immutable"
"""Cache header for files whose name contains a hash of their content."""
_ENCODINGS = {"br": ".br", "gzip": ".gz"}
"""Extensions of compressed files by encoding, the best first. `make page` writes them beside the originals."""
_REFUSED = re.compile(r"q=0(\.0*)?")
_BASE = '<meta name="sidestream-base" content="'
_SIGN_IN = '<meta name="sidestream-sign-in" content="'
_TITLE = "<title>Sidestream</title>"
_ICON = 'type="image/svg+xml" href="./icon.svg"'


def routes(page: Page, folder: Path = FOLDER) -> list[BaseRoute]:
    """Return the routes of the web UI and its files."""
    shown = (page.title, page.icon, page.sign_in_url or "")

    def index(request: Request) -> Response:
        if not (folder / "index.html").is_file():
            return PlainTextResponse(NOT_BUILT, 503)
        html = _index(folder, (folder / "index.html").stat().st_mtime_ns, request.scope.get("root_path", ""), *shown)
        return Response(html, media_type="text/html", headers={"Cache-Control": "no-cache"})

    def asset(request: Request) -> Response:
        return _file(request, folder, f"assets/{request.path_params['name']}", _FOREVER)

    def icon(request: Request) -> Response:
        return _file(request, folder, "icon.svg", "public, max-age=86400")

    def own_icon(request: Request) -> Response:
        if page.icon is None:
            raise RequestError(404, "/icon not found", type="not_found")
        path = Path(page.icon)
        return FileResponse(path, media_type=ICON_TYPES[path.suffix.lower()], headers={"Cache-Control": "no-cache"})

    def licences(request: Request) -> Response:
        return _file(request, folder, "LICENCES.txt", "no-cache")

    return [
        Route("/assets/{name}", asset),
        Route("/icon.svg", icon),
        Route("/icon", own_icon),
        Route("/licences.txt", licences),
        Route("/", index),
        *(Route(path, index) for path in ("/c/{id}", "/r/{run}", "/view/{name}", "/settings/{panel}")),
    ]


def _file(request: Request, folder: Path, name: str, caching: str) -> Response:
    path = folder / name
    if path.suffix in _ENCODINGS.values() or not path.is_file() or path.resolve().parent != path.parent.resolve():
        raise RequestError(404, f"/{name} not found", type="not_found")
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    headers = {"Cache-Control": caching, "Vary": "Accept-Encoding"}
    accepted = _accepted(request.headers.get("accept-encoding", ""))
    for encoding, suffix in _ENCODINGS.items():
        smaller = path.with_name(path.name + suffix)
        if encoding in accepted and smaller.is_file():
            return FileResponse(smaller, media_type=kind, headers={**headers, "Content-Encoding": encoding})
    return FileResponse(path, media_type=kind, headers=headers)


def _accepted(header: str) -> set[str]:
    """Return the encodings that an `Accept-Encoding` header allows by name."""
    found: set[str] = set()
    for entry in header.lower().split(","):
        encoding, *parameters = (text.strip() for text in entry.split(";"))
        if not any(_REFUSED.fullmatch(parameter) for parameter in parameters):
            found.add(encoding)
    return found


@cache
def _index(folder: Path, changed: int, root_path: str, title: str, icon: str | None, sign_in_url: str) -> str:
    """Return the web UI's HTML for a server mounted below `root_path`, with what it shows before anyone signs in."""
    root = escape(root_path.rstrip("/"))
    html = (folder / "index.html").read_text("utf-8")
    if icon is not None:
        kind = ICON_TYPES[Path(icon).suffix.lower()]
        html = html.replace(_ICON, f'type="{kind}" href="./icon"')
    return (
        html.replace('="./', f'="{root}/')
        .replace(_BASE, _BASE + root)
        .replace(_SIGN_IN, _SIGN_IN + escape(sign_in_url))
        .replace(_TITLE, f"<title>{escape(title)}</title>")
    )
