"""REST API for the web UI to read, change, test and sign in to the MCP servers of the shared `mcp.json`.

Values of headers and variables can be written but are never returned. Anyone who may change the file can start programs
on this machine and make it call any URL, so only the server's owner may. Others see the servers' names, but not how
they are called.
"""

import asyncio
import importlib.util
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from sidestream.errors import ConfigurationError, MissingExtraError
from sidestream.mcp import MCPServer, OAuth, TokenFiles
from sidestream.mcp.client.accepted import AcceptedDefinitions
from sidestream.mcp.config.edit import ConfigEditor, ConfiguredServer
from sidestream.mcp.config.probe import probe
from sidestream.mcp.http import without_user
from sidestream.server.errors import RequestError, not_found
from sidestream.server.http.requests import (
    check_admin,
    check_panel,
    json_response,
    may_administer,
    read_json,
    server_of,
)
from sidestream.server.server import Server
from sidestream.text.redaction import redact
from sidestream.tools.server_side import RemoteMCP

CALLBACK = "/mcp/callback"
"""Redirect path after a sign-in. It needs no token, because another site redirects here; `state` is the secret."""
_FIELDS = frozenset(
    {
        "command", "args", "env", "cwd", "approval", "allowed_tools", "disabled", "type",
        "url", "headers", "authorization", "require_approval", "execution", "server_url", "server_description",
    }
)  # fmt: skip
"""Fields of an entry that the web UI may change."""


def routes(server: Server) -> list[BaseRoute]:
    """Return the routes of this API."""
    return [
        Route("/api/mcp", servers),
        Route("/api/mcp/{label}", change, methods=["PUT"]),
        Route("/api/mcp/{label}", remove, methods=["DELETE"]),
        Route("/api/mcp/{label}/test", test, methods=["POST"]),
        Route("/api/mcp/{label}/accept", accept, methods=["POST"]),
        Route("/api/mcp/{label}/login", login, methods=["POST"]),
        Route("/api/mcp/{label}/logout", logout, methods=["POST"]),
        Route(CALLBACK, callback),
    ]


async def servers(request: Request) -> Response:
    """Return the servers of the file, and whether the sender can change them."""
    check_panel(request, "mcp")
    server = server_of(request)
    if server.settings.mcp_file is None:
        return json_response({"file": None, "editable": False, "servers": [], "problem": None})
    editor, problem, found = ConfigEditor(server.settings.mcp_file), None, list[ConfiguredServer]()
    is_admin = may_administer(request)
    try:
        found = editor.servers()
    except ConfigurationError as error:
        problem = redact(str(error)) if is_admin else "the file cannot be read"
    shown = [await _described(server, editor, each) if is_admin else _named(each) for each in found]
    is_editable = is_admin and problem is None
    return json_response({"file": editor.path.name, "editable": is_editable, "servers": shown, "problem": problem})


async def change(request: Request) -> Response:
    """Merge the fields of the body into the entry of a server. Null removes a field, and missing ones stay."""
    server, label = server_of(request), request.path_params["label"]
    editor = _editor(request)
    changes = await read_json(request)
    if unknown := sorted(changes.keys() - _FIELDS):
        raise RequestError(400, f"{unknown[0]} cannot be changed here", param=unknown[0])
    editor.patch(label, changes)
    await server.load_servers()
    (changed,) = [each for each in editor.servers() if each.label == label]
    return json_response(await _described(server, editor, changed))


async def remove(request: Request) -> Response:
    """Remove a server from the file."""
    server, label = server_of(request), request.path_params["label"]
    if not _editor(request).remove(label):
        raise not_found("MCP server", label)
    _accepted(server).forget(label)
    await server.load_servers()
    return json_response({"deleted": label})


async def test(request: Request) -> Response:
    """Start a server, list its tools and stop it. Return the time of each stage, or the error."""
    server = server_of(request)
    configured = _configured(_editor(request), request.path_params["label"])
    accepted: AcceptedDefinitions | None = _accepted(server)
    if isinstance(configured, RemoteMCP):
        accepted = accepted if configured.execution == "here" else None  # A provider lists the tools itself.
        if configured.url is None:
            raise RequestError(409, "only the provider can reach this server", type="conflict", code="no_url")
        has_own = configured.authorization or any(name.lower() == "authorization" for name in configured.headers)
        configured = MCPServer.from_remote(configured, auth=None if has_own else OAuth())
    if importlib.util.find_spec("mcp") is None:
        raise MissingExtraError("mcp", "MCP servers")
    found = await probe(configured, accepted)
    return json_response({**msgspec.to_builtins(found), "changes": _changes(server, configured.label)})


async def accept(request: Request) -> Response:
    """Accept a changed tool definition by its name and digest, and return the server."""
    server, label = server_of(request), request.path_params["label"]
    editor = _editor(request)
    body = await read_json(request)
    if editor.entry(label) is None:
        raise not_found("MCP server", label)
    if not _accepted(server).accept(label, str(body.get("tool")), str(body.get("pin"))):
        message = "the tool has changed again or is already accepted; review it again"
        raise RequestError(409, message, type="conflict", param="pin", code="changed_again")
    await server.load_servers()
    (found,) = [each for each in editor.servers() if each.label == label]
    return json_response(await _described(server, editor, found))


async def login(request: Request) -> Response:
    """Start a sign-in and return the `url` for the browser, which is null if the server does not require one."""
    server = server_of(request)
    configured = _configured(_editor(request), request.path_params["label"])
    if not isinstance(configured, RemoteMCP) or configured.url is None:
        raise RequestError(409, "only servers with a URL support sign-in", type="conflict", code="no_url")
    if configured.authorization:
        raise RequestError(409, "the server has an authorization; remove it to sign in instead", type="conflict")
    redirect_uri = f"{request.url.scheme}://{request.headers['host']}{request.scope.get('root_path', '')}{CALLBACK}"
    started = await server.sign_ins.start(configured, redirect_uri)
    url = started.url.result()
    if url is None and started.error is not None:
        raise RequestError(502, started.error, type="server_error", code="sign_in_failed")
    return json_response({"url": url, "host": urlsplit(url).hostname if url else None})


async def logout(request: Request) -> Response:
    """Delete the sign-in's tokens from this machine."""
    server = server_of(request)
    configured = _configured(_editor(request), request.path_params["label"])
    if not isinstance(configured, RemoteMCP) or configured.url is None:
        raise RequestError(409, "only servers with a URL support sign-in", type="conflict", code="no_url")
    await TokenFiles().save(without_user(configured.url, {})[0], None)
    await server.load_servers()
    return json_response({"signedOut": configured.label})


async def callback(request: Request) -> Response:
    """Finish a sign-in after the browser was redirected back."""
    server = server_of(request)
    found = server.sign_ins.returned(dict(request.query_params))
    if found is None:
        return PlainTextResponse("No pending sign-in matches this request. Start the sign-in again.", 404)
    await asyncio.wait([found.task])
    if found.error is not None:
        return PlainTextResponse(f"The sign-in failed: {found.error}", 400)
    await server.load_servers()
    return PlainTextResponse("You are signed in. You can close this tab and return to the page.")


async def _described(server: Server, editor: ConfigEditor, each: ConfiguredServer) -> dict[str, Any]:
    pending = server.sign_ins[each.label]
    url = _url(editor, each.label)
    stored = await TokenFiles().load(without_user(url, {})[0]) if url else None
    return {
        "label": each.label,
        "kind": _kind(each.entry),
        "enabled": each.is_enabled,
        "entry": each.entry,
        "problem": each.problem,
        "changes": _changes(server, each.label),
        "signIn": {
            "state": "waiting" if pending and not pending.task.done() else "signed-in" if stored else "none",
            "issuer": stored.issuer if stored else None,
            "expires": stored.expires_at if stored else None,
            "error": pending.error if pending else None,
        },
    }


def _named(each: ConfiguredServer) -> dict[str, Any]:
    """Describe a server to those who may not change it, without arguments and URLs, which may hold secrets."""
    return {
        "label": each.label,
        "kind": _kind(each.entry),
        "enabled": each.is_enabled,
        "entry": {},
        "problem": None if each.problem is None else "it cannot be used",
        "changes": [],
        "signIn": {"state": "none", "issuer": None, "expires": None, "error": None},
    }


def _url(editor: ConfigEditor, label: str) -> str | None:
    """Return the server's full URL, because the displayed one has its secrets removed."""
    try:
        configured = _configured(editor, label)
    except ConfigurationError:
        return None
    return configured.url if isinstance(configured, RemoteMCP) else None


def _accepted(server: Server) -> AcceptedDefinitions:
    assert server.settings.mcp_file is not None
    return AcceptedDefinitions.of_config(server.settings.mcp_file)


def _changes(server: Server, label: str) -> list[Any]:
    """Return the tools that are not offered because their definitions have changed."""
    return msgspec.to_builtins(_accepted(server).changes(label))


def _kind(entry: dict[str, Any]) -> str:
    """Return `command` (a local process), `url` (called from this machine) or `provider` (called by the provider)."""
    if "command" in entry:
        return "command"
    is_wire_form = "server_label" in entry
    return "url" if entry.get("execution", "auto" if is_wire_form else "here") == "here" else "provider"


def _editor(request: Request) -> ConfigEditor:
    """Return the file's editor. Raises RequestError if there is no file or the sender may not change it."""
    file = server_of(request).settings.mcp_file
    if file is None:
        raise RequestError(404, "this server has no MCP configuration file", type="not_found", code="no_mcp_file")
    check_admin(request, "change, test and sign in to its MCP servers")
    return ConfigEditor(file)


def _configured(editor: ConfigEditor, label: str) -> MCPServer | RemoteMCP:
    entry = editor.entry(label)
    if entry is None:
        raise not_found("MCP server", label)
    return entry.server()
