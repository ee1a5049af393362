"""`/api/chat`, which speaks the AI SDK's UI message stream to an unmodified `useChat` and to the web UI."""

from collections.abc import Container
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from sidestream.agent.agent import Agent
from sidestream.errors import ConflictError
from sidestream.jsontext import JsonObject
from sidestream.protocols.ai_sdk.message import UI_MESSAGE_HEADERS
from sidestream.server.chat.branches import Leaf, StoredChat, read_chat, run_of_message, snapshot_of
from sidestream.server.chat.input import ChatBody, EvidenceBody
from sidestream.server.chat.stream import sse_frames
from sidestream.server.chat.turns import StreamedTurn, begin_turn, open_turn
from sidestream.server.errors import RequestError, not_found
from sidestream.server.http import requests
from sidestream.server.http.event_stream import event_stream
from sidestream.server.http.files_api import links_for
from sidestream.server.request_policy import allowance_of
from sidestream.server.server import Server
from sidestream.tools.server_side import WebFetch


def routes(server: Server) -> list[BaseRoute]:
    """Return the routes of this API."""
    from sidestream.server.chat.socket import chat_socket

    return [
        Route("/api/chat", post_chat, methods=["POST"]),
        WebSocketRoute("/api/chat/ws", chat_socket),
        Route("/api/chat/{id}", get_chat, methods=["GET"]),
        Route("/api/chat/{id}", delete_chat, methods=["DELETE"]),
        Route("/api/chat/{id}/stream", get_stream, methods=["GET"]),
        Route("/api/chat/{id}/stop", stop, methods=["POST"]),
        Route("/api/chat/{id}/steer", steer, methods=["POST"]),
        Route("/api/chat/{id}/evidence", check_evidence, methods=["POST"]),
        Route("/api/chat/{id}/grants", get_grants, methods=["GET"]),
        Route("/api/chat/{id}/grants/{grant}", withdraw_grant, methods=["DELETE"]),
    ]


async def post_chat(request: Request) -> Response:
    """Send a new, edited or repeated message, or decisions, and stream the turn.

    A message scheduled for later is only recorded, and the response says when it will be sent.
    """
    at = requests.sent_at(request)
    body = requests.checked(await requests.read_json(request), ChatBody)
    turn = await begin_turn(requests.server_of(request), requests.owner_of(request), body, at=at)
    if at is not None:
        return requests.json_response({"id": body.id, "leaf": turn.leaf, "seq": turn.run_start, "at": at}, 202)
    return _streamed(request, turn, body.features)


async def get_stream(request: Request) -> Response:
    """Stream the turn in progress, or only what follows the record `after`. Responds with 204 if there is none."""
    server = requests.server_of(request)
    chat = await read_chat(server, requests.owner_of(request), request.path_params["id"])
    after = requests.query_number(request.query_params, "after")
    leaf_number = requests.query_number(request.query_params, "leaf")
    if not chat.exists:
        return Response(status_code=204)
    turn = open_turn(chat, chat.leaf(leaf_number), after)
    if turn is None:
        return Response(status_code=204)
    server.runs.readers.admit(chat.owner)
    return _streamed(request, turn, request.query_params.get("features", "").split(","))


async def get_chat(request: Request) -> Response:
    """Return the messages of a chat and the sequence number of the last record that they include."""
    server = requests.server_of(request)
    chat = await read_chat(server, requests.owner_of(request), request.path_params["id"])
    leaf = chat.leaf(requests.query_number(request.query_params, "leaf"))
    snapshot = await snapshot_of(chat, leaf, links_for(request))
    job = chat.last_job(leaf)
    return requests.json_response(
        {
            "id": chat.id,
            "title": await server.store.title_of(leaf.id),
            "model": None if job is None else job.agent,
            "seq": leaf.head,
            "leaf": leaf.number,
            "leaves": [_leaf_json(leaf) for leaf in chat.leaves.values()],
            "messages": snapshot.messages,
            "run": snapshot.run,
            "grants": _grants_json(chat, leaf),
        }
    )


async def delete_chat(request: Request) -> Response:
    """Delete a chat with all its branches, stopping its runs first."""
    server = requests.server_of(request)
    chat = await read_chat(server, requests.owner_of(request), request.path_params["id"])
    if not chat.exists:
        raise not_found("chat", chat.id)
    await server.runs.delete(chat.leaf().id)
    await server.store.pin(chat.owner, chat.id, is_pinned=False)
    await server.store.collect()
    return Response(status_code=204)


async def stop(request: Request) -> Response:
    """Stop the run in progress."""
    leaf = await _leaf(request)
    return requests.json_response({"stopped": await requests.server_of(request).runs.stop(leaf.id)})


async def steer(request: Request) -> Response:
    """Pass a message to the run in progress, whose stream reports the outcome as `data-steer`."""
    leaf = await _leaf(request)
    text = (await requests.read_json(request)).get("text")
    if not isinstance(text, str) or not text.strip():
        raise RequestError(400, "text must be a non-empty string", param="text")
    return requests.json_response({"id": await requests.server_of(request).runs.steer(leaf.id, text)})


async def check_evidence(request: Request) -> Response:
    """Read the pages and files that an answer cites, compare its claims with them, and keep the check in the log.

    The chat's messages have the result. Pages are read within the egress policy, as far as their robots.txt allows.
    """
    from sidestream.agent.files import CitedFileReader
    from sidestream.portable.fetch.cited import CitedFiles, compare

    server = requests.server_of(request)
    chat = await read_chat(server, requests.owner_of(request), request.path_params["id"])
    leaf = chat.leaf(requests.query_number(request.query_params, "leaf"))
    body = requests.checked(await requests.read_json(request), EvidenceBody)
    job, answer = chat.answer(leaf, body.message)
    agent = server.settings.agents.get(job.agent)
    if not allowance_of(server.settings, job.agent).may_check(agent):
        message = f"{job.agent!r:.80} does not let users check citations; the server's operator can set its evidence"
        raise RequestError(403, message, code="not_allowed")
    if leaf.is_live:
        raise ConflictError(leaf.id)
    async with server.runs.checking(leaf.id):
        messages = (await chat.state(leaf)).messages
        fetch = None if agent is None else CitedFileReader(agent, agent.server_side_tools)
        files = CitedFiles(answer.parts, messages, fetch)
        checked = await compare(answer.claims(), () if agent is None else _private_hosts(agent), files)
        if checked.claims:
            run = run_of_message(body.message)
            await server.runs.add_check(leaf.id, run, checked.record, checked.bodies)
    return requests.json_response({"checked": len(checked.claims)})


def _private_hosts(agent: Agent[Any]) -> list[str]:
    """Return the hosts that may have a private address, as the agent's check and its web fetch name them."""
    tools = [tool for tool in agent.server_side_tools if isinstance(tool, WebFetch)]
    checks = [] if agent.evidence is None else [agent.evidence]
    return [host for entry in (*checks, *tools) for host in entry.allow_hosts]


async def get_grants(request: Request) -> Response:
    """Return the remembered approvals of a chat."""
    chat = await read_chat(requests.server_of(request), requests.owner_of(request), request.path_params["id"])
    return requests.json_response(
        {"grants": _grants_json(chat, chat.leaf(requests.query_number(request.query_params, "leaf")))}
    )


async def withdraw_grant(request: Request) -> Response:
    """Revoke a remembered approval in all branches of a chat, so that the next call to its tool needs approval."""
    server = requests.server_of(request)
    chat = await read_chat(server, requests.owner_of(request), request.path_params["id"])
    grant = request.path_params["grant"]
    if not any([await server.runs.withdraw(leaf.id, grant) for leaf in chat.leaves.values()]):
        raise not_found("grant", grant)
    return Response(status_code=204)


def _grants_json(chat: StoredChat, leaf: Leaf) -> list[JsonObject]:
    return [
        {"id": grant.id, "tool": grant.tool, "server": grant.server_label, "remote": grant.is_remote}
        for grant in chat.grants(leaf)
    ]


async def _leaf(request: Request) -> Leaf:
    chat = await read_chat(requests.server_of(request), requests.owner_of(request), request.path_params["id"])
    return chat.leaf(requests.query_number(request.query_params, "leaf"))


def _streamed(request: Request, turn: StreamedTurn, features: Container[str]) -> Response:
    headers = {**UI_MESSAGE_HEADERS, "X-Sidestream-Leaf": str(turn.leaf), requests.RUN_HEADER: turn.run}
    return event_stream(sse_frames(turn.chunks(requests.server_of(request), features, links_for(request))), headers)


def _leaf_json(leaf: Leaf) -> JsonObject:
    fork = leaf.fork
    return {
        "leaf": leaf.number,
        "parent": fork.leaf if fork is not None else None,
        "forkedAt": fork.index if fork is not None else None,
        "updated": leaf.updated,
    }
