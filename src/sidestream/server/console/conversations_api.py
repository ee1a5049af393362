"""The list of conversations, with their titles and pins."""

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.durable.log.open_runs import job_of
from sidestream.jsontext import JsonObject
from sidestream.server.errors import RequestError, not_found
from sidestream.server.http.requests import checked, json_response, owner_of, read_json, server_of
from sidestream.server.server import Server
from sidestream.store.expiry import conversations_of
from sidestream.store.ids import STATELESS, UNSTORED, ConversationId, chat_of, is_id
from sidestream.store.protocol import ConversationInfo
from sidestream.store.records import open_run

MAX_LISTED = 100
MAX_PINS = 50
MAX_SEARCH = 1000
"""Maximum characters, because databases refuse much longer patterns."""


def routes(server: Server) -> list[BaseRoute]:
    """Return the routes of this API."""
    return [
        Route("/api/conversations", list_conversations, methods=["GET"]),
        Route("/api/conversations/{id}", change_conversation, methods=["PATCH"]),
    ]


class ConversationChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request changes in the list of conversations. Unset fields stay."""

    title: str | UnsetType = UNSET
    """Title. An empty one restores the first question."""
    pinned: bool | UnsetType = UNSET


class ListedConversation(TypedDict):
    """A conversation in the list."""

    id: str
    title: str | None
    model: str | None
    created: float
    updated: float
    status: str
    pinned: bool
    snippet: NotRequired[str | None]
    """What a message says around the words of a search. None if only the title contains them."""


class ConversationList(TypedDict):
    """A page of conversations."""

    conversations: list[ListedConversation]
    next: float | None


class ChangedConversation(TypedDict):
    """The title and pin of a conversation, after a change."""

    id: str
    title: str
    pinned: bool


async def list_conversations(request: Request) -> Response:
    """List the tenant's conversations, pinned ones first, then last changed first.

    `before` is the `next` of the previous page. A chat with branches is listed at its newest branch, and may appear
    again on a later page. Calls of stateless APIs are listed only with `all=true`.
    """
    server, owner = server_of(request), owner_of(request)
    limit = max(1, min(_number(request, "limit", 50), MAX_LISTED))
    before: float | None = _number(request, "before", 0) or None
    search = request.query_params.get("search", "").strip()
    if len(search) > MAX_SEARCH:
        raise RequestError(400, f"search must have at most {MAX_SEARCH} characters", param="search")
    is_all = request.query_params.get("all", "false").lower() == "true"
    hidden = () if is_all else tuple(f"{owner}/{start}" for start in (STATELESS, UNSTORED))
    listing = Listing(server, owner, search, await server.store.pins(owner))
    if before is None:
        await listing.add_first(limit, hidden)
    found = listing.found
    shown, has_more = len(found), True
    while has_more and len(found) - shown < limit:
        page = await server.store.conversations(limit, before, prefix=f"{owner}/", search=search, without=hidden)
        has_more = len(page) >= limit
        for info in page:
            # Keep conversations with the same time on one page, because the next page starts before that time.
            if len(found) - shown >= limit and info.updated != before:
                has_more = True
                break
            before = info.updated
            await listing.add(info)
    return json_response({"conversations": list(found.values()), "next": before if has_more else None})


async def change_conversation(request: Request) -> Response:
    """Rename a conversation with all its branches, or pin it. Runs in progress do not notice it."""
    server, owner, chat = server_of(request), owner_of(request), request.path_params["id"]
    change = checked(await read_json(request), ConversationChange)
    id = str(ConversationId(owner, chat))
    branches = await conversations_of(server.store, [id]) if is_id(id) else []
    if not branches:
        raise not_found("conversation", chat)
    pins = await server.store.pins(owner)
    if change.pinned is True and chat not in pins and len(pins) >= MAX_PINS:
        message = f"at most {MAX_PINS} conversations can be pinned; unpin one first"
        raise RequestError(409, message, type="conflict", param="pinned", code="too_many_pins")
    title = max(branches, key=lambda info: info.updated).title
    if change.title is not UNSET:
        title = await server.titles.rename([info.id for info in branches], change.title)
    if change.pinned is not UNSET:
        await server.store.pin(owner, chat, is_pinned=change.pinned)
    is_pinned = chat in pins if change.pinned is UNSET else change.pinned
    return json_response({"id": chat, "title": title, "pinned": is_pinned})


class Listing:
    """One page of the list of conversations, as it is collected."""

    def __init__(self, server: Server, owner: str, search: str, pins: Sequence[str]) -> None:
        self.found: dict[str, JsonObject] = {}
        """Entries by chat."""
        self._server = server
        self._owner = owner
        self._search = search
        self._pins = pins

    async def add_first(self, limit: int, hidden: tuple[str, ...]) -> None:
        """Add what only the first page has: pinned chats, or in a search those whose title contains the string.

        Chats whose ids begin with one of `hidden` are left out of a search.
        """
        store, ids = self._server.store, [str(ConversationId(self._owner, chat)) for chat in self._pins]
        if self._search:
            titled = await store.titled(self._search, prefix=f"{self._owner}/", limit=limit)
            ids = [chat_of(id) for id in titled if not id.startswith(hidden)]
        newest: dict[str, ConversationInfo] = {}
        for start in range(0, len(ids), MAX_PINS):
            for info in await conversations_of(store, ids[start : start + MAX_PINS]):
                known = newest.get(chat_of(info.id), info)
                newest[chat_of(info.id)] = max(known, info, key=lambda each: each.updated)
        for info in sorted(newest.values(), key=lambda info: -info.updated):
            await self._add(info)
        if not self._search:
            for chat in {*self._pins} - {ConversationId.parse(id).chat for id in newest}:
                await store.pin(self._owner, chat, is_pinned=False)  # The chat has expired.

    async def add(self, info: ConversationInfo) -> None:
        """Add a chat unless the list has it. Pinned ones are on the first page."""
        chat = ConversationId.parse(info.id).chat
        if chat not in self.found and (self._search or chat not in self._pins):
            await self._add(info)

    async def _add(self, info: ConversationInfo) -> None:
        store, chat = self._server.store, ConversationId.parse(info.id).chat
        status: str = await store.conversation(info.id).status(info)
        if status == "unfinished" and job_of(open_run(await store.read(info.id))) is not None:
            status = "running"
        self.found[chat] = {
            "id": chat,
            "title": info.title,
            "model": info.model,
            "created": info.created,
            "updated": info.updated,
            "status": status,
            "pinned": chat in self._pins,
        }
        if self._search:
            self.found[chat]["snippet"] = await self._server.titles.snippet(info.id, self._search)


def _number(request: Request, name: str, default: int) -> Any:
    """Parse a numeric query parameter, an integer unless it is a time. Raises RequestError if it is invalid."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        number = float(text) if name == "before" else int(text)
    except ValueError:
        number = -1
    if not 0 <= number < 1e15:
        raise RequestError(400, f"{name} must be a non-negative number", param=name)
    return number
