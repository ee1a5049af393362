"""The ASGI app."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from os import PathLike
from typing import Any

from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.durable.engines.protocol import Engine
from sidestream.durable.log.approval_deadlines import OnExpiry
from sidestream.durable.worker.service import ALIVE, READY, STATS_S, readiness
from sidestream.errors import ConfigurationError, MissingExtraError, SidestreamError
from sidestream.jsontext import JsonObject
from sidestream.logs import get_logger
from sidestream.server.settings import (
    DEFAULT_MODEL,
    LOOPBACK,
    Admin,
    Allowed,
    Auth,
    Caps,
    Dialect,
    Disconnect,
    Page,
    ServerSettings,
)
from sidestream.store.opening import open_store
from sidestream.store.protocol import Store
from sidestream.text.redaction import Secret, redact

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError:
    raise MissingExtraError("server", "the server") from None

from sidestream.server.compatible import completions_input, messages_input
from sidestream.server.console import indexes_api, mcp_api, page_files, runs_api, settings_api
from sidestream.server.errors import RequestError, as_request_error
from sidestream.server.http import files_api, offered_models
from sidestream.server.http.requests import http_error, json_response, refused
from sidestream.server.security import HEADERS, Guard, path_of
from sidestream.server.server import Server

PROBE_S = 1.0
"""Seconds for which `/readyz` repeats its last answer."""

_log = get_logger(__name__)


def create_app(
    agents: Agent[Any] | str | Mapping[str, Agent[Any]] | None = None,
    *,
    store: Store | str | PathLike[str] | None = None,
    tokens: str | Iterable[str] = (),
    owner_token: str | None = None,
    owner_cookie: str | None = None,
    allows_weak_tokens: bool = False,
    auth: Auth | None = None,
    allows_admin: bool | Admin = False,
    hosts: Sequence[str] = LOOPBACK,
    origins: Sequence[str] = (),
    allows_models: bool | None = None,
    allows_tools: bool | Iterable[str] | None = None,
    allows_functions: bool | Iterable[str] | None = None,
    allows_instructions: bool | None = None,
    allows_settings: bool | Iterable[str] | None = None,
    dialect: Dialect = "openai",
    on_disconnect: Disconnect = "detach",
    caps: Caps | None = None,
    retention_s: float | None = None,
    approval_s: float | None = 86_400.0,
    on_expiry: OnExpiry = "deny",
    answer_s: float | None = 86_400.0,
    engine: str | Engine | None = None,
    mcp_hosts: Sequence[str] = (),
    mcp_file: str | None = None,
    models: Sequence[str] = (),
    index_folders: Sequence[str] = (),
    examples: Sequence[str] = (),
    page: Page | None = None,
) -> Starlette:
    """Create the ASGI app of a server, to serve with uvicorn or to mount in your own app.

    ```python
    app = create_app(agent, store="talks.db", tokens=["token-of-anna-0123456789"], hosts=["chat.example.com"])
    ```

    `agents` is an agent, a mapping of names to agents, or a model string. Requests name one of them as their `model`;
    with `allows_models` (the default unless you pass agents) they may also name any model string.
    Requests cannot change your agents unless you allow it. `allows_tools`, `allows_functions` and `allows_settings` are
    True, or the names of the server-side tools, client functions and settings that requests may add, and
    `allows_instructions` is True or False. A request for a model string may add anything unless you set them.

    Conversations are kept in `store`. With `tokens`, each request must send one and sees only its own conversations. A
    token has at least 22 characters, unless `hosts` are this machine and `allows_weak_tokens` is set. `auth` is your
    own authentication: a function, async or not, that takes Starlette's `HTTPConnection` and returns a name for the
    user, or None. `hosts` are the host names by which clients may reach the server. `origins` are the other sites whose
    pages may call it. Chats are deleted `retention_s` seconds after their last change. Calls can be approved for
    `approval_s` seconds; after that `on_expiry` applies, which denies them by default. Functions of a client have
    `answer_s` seconds to return their result; after that the run is stopped. A run continues when its subscribers have
    left; with `on_disconnect="cancel"` it is stopped. `caps` limits what one tenant may use. `dialect` selects the
    Responses API: OpenAI's, or `"open-responses"`.

    `models` are model strings that the web UI offers besides each provider's default model. A request may name MCP
    servers at `mcp_hosts`. `mcp_file` is the `mcp.json` that the web UI shows. There, folders
    below `index_folders` can be added to this machine's file index, which models can search. `page` names and restricts
    the web UI; `examples` is short for `Page(examples=…)`. Changing MCP servers, testing keys and indexing folders is
    administration: anyone who may do it can run programs on this machine. Only requests with `owner_token` may, and
    others if `allows_admin` is True, or is a function that returns True for their `HTTPConnection`. The owner's browser
    keeps `owner_cookie`, if given, instead of the token. With the same cookie it stays signed in when the server
    restarts with another token.

    An engine executes the runs. By default it is the embedded one, with a worker in this process. With an `engine`
    (`embedded`, `temporal://…`), workers in other processes execute them: `sidestream worker`.
    """
    named = _named(agents)
    for agent in named.values():
        agent.check()
    settings = ServerSettings(
        agents=named,
        default=next(iter(named)) if named else agents if isinstance(agents, str) else DEFAULT_MODEL,
        allows_models=not named if allows_models is None else allows_models,
        allows_tools=_allowed(allows_tools),
        allows_functions=_allowed(allows_functions),
        allows_instructions=allows_instructions,
        allows_settings=_allowed(allows_settings),
        tokens=tuple(Secret(token) for token in _several(tokens)),
        owner_token=None if owner_token is None else Secret(owner_token),
        owner_cookie=None if owner_cookie is None else Secret(owner_cookie),
        allows_weak_tokens=allows_weak_tokens,
        auth=auth,
        allows_admin=allows_admin,
        hosts=_several(hosts),
        origins=_several(origins),
        dialect=dialect,
        on_disconnect=on_disconnect,
        caps=caps or Caps(),
        retention_s=retention_s,
        approval_s=approval_s,
        on_expiry=on_expiry,
        answer_s=answer_s,
        engine=Secret(engine) if isinstance(engine, str) else engine,
        mcp_hosts=_several(mcp_hosts),
        mcp_file=mcp_file,
        models=_several(models),
        index_folders=_several(index_folders),
        page=_page(page, _several(examples)),
    )
    return app_of(Server(settings, open_store(store)))


def app_of(server: Server) -> Starlette:
    """Create the ASGI app for a server."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        await server.open()
        try:
            yield
        finally:
            await server.aclose()

    app = Starlette(
        routes=routes(server),
        middleware=[
            Middleware(_Probes, server=server),
            Middleware(Guard, settings=server.settings, links=server.links),
            Middleware(_Opened, server=server),
        ],
        exception_handlers={
            RequestError: refused,
            SidestreamError: _failed,
            HTTPException: http_error,
            RecursionError: _too_deep,
            Exception: _crashed,
        },
        lifespan=lifespan,
    )
    app.state.server = server
    return app


class _Probes:
    """Middleware that answers `/healthz` and `/readyz` for load balancers, which know no token and no host name."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app = app
        self._server = server
        self._known_until_s = 0.0
        self._known: tuple[int, JsonObject] = 503, {}
        self._asking = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_of(scope) if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") else ""
        if path not in (ALIVE, READY):
            await self._app(scope, receive, send)
            return
        status, body = (200, {"status": "ok"}) if path == ALIVE else await self._readiness()
        await json_response(body, status, dict(HEADERS))(scope, receive, send)

    async def _readiness(self) -> tuple[int, JsonObject]:
        """Return the status, at most `PROBE_S` old, because each check queries the store and anyone may ask."""
        async with self._asking:
            now_s = asyncio.get_running_loop().time()
            if now_s >= self._known_until_s:
                self._known = readiness(await self._health())
                self._known_until_s = asyncio.get_running_loop().time() + PROBE_S
            return self._known

    async def _health(self) -> JsonObject:
        try:
            async with asyncio.timeout(STATS_S):
                await self._server.open()
        except TimeoutError:
            return {"status": "starting"}
        except SidestreamError as error:
            _log.warning("not ready: %s", redact(str(error)))
            return {"status": "error"}
        return await self._server.runs.execution.health()


class _Opened:
    """Middleware that opens the server on its first request, because a mounted app's lifespan does not run."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            try:
                await self._server.open()
            except SidestreamError as error:
                if scope["type"] != "http":
                    raise
                await _failed(Request(scope), error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def routes(server: Server) -> list[BaseRoute]:
    """Return all routes of the server, with those of the web UI last."""
    from sidestream.server import openapi
    from sidestream.server.chat import agui_input, api as chat_api
    from sidestream.server.console import conversations_api
    from sidestream.server.responses import (
        api as responses_api,
        containers_api,
        conversations_api as response_conversations_api,
    )

    apis = (chat_api, agui_input, conversations_api, settings_api, mcp_api, indexes_api, runs_api, files_api)
    return [
        *responses_api.routes(),
        *response_conversations_api.routes(),
        *containers_api.routes(),
        *offered_models.routes(),
        *completions_input.routes(),
        *messages_input.routes(),
        *(route for api in apis for route in api.routes(server)),
        *openapi.routes(),
        *page_files.routes(server.settings.page),
    ]


def _several(values: str | Iterable[str]) -> tuple[str, ...]:
    """Return the values as a tuple, treating a string as one value."""
    return (values,) if isinstance(values, str) else tuple(values)


def _page(page: Page | None, examples: tuple[str, ...]) -> Page:
    page = page or Page()
    if examples and page.examples:
        raise ConfigurationError("examples are given twice; leave out examples= of create_app, or that of Page")
    if page.title_model is not None:
        Agent(page.title_model).check()
    return replace(page, examples=examples or tuple(page.examples))


def _allowed(names: bool | Iterable[str] | None) -> Allowed | None:
    return names if names is None or isinstance(names, bool) else _several(names)


def _named(agents: Agent[Any] | str | Mapping[str, Agent[Any]] | None) -> dict[str, Agent[Any]]:
    if agents is None or isinstance(agents, str):
        return {}
    if isinstance(agents, Agent):
        return {"agent": agents}
    if not agents:
        raise ConfigurationError("agents must not be empty; pass at least one agent, or None for the default model")
    return dict(agents)


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, SidestreamError)
    return refused(request, as_request_error(error))


def _too_deep(request: Request, error: Exception) -> Response:
    return refused(request, RequestError(400, "the body is nested too deeply", code="invalid_json"))


def _crashed(request: Request, error: Exception) -> Response:
    # This handler runs outside the guard, which adds these headers to all other responses.
    return refused(
        request,
        RequestError(500, "internal server error; see the server's log", type="server_error", headers=dict(HEADERS)),
    )
