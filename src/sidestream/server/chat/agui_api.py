"""`/api/agui`: AG-UI 1.0, for its clients. Threads are chats: the page shows them too."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.protocols.agui import AGUIEncoder
from sidestream.protocols.ai_sdk.content import UrlOf
from sidestream.server.chat.agui_input import RunAgentInput, answers_in, body_of
from sidestream.server.chat.stream import sse_frames
from sidestream.server.chat.turns import begin_turn
from sidestream.server.http.event_stream import event_stream
from sidestream.server.http.requests import checked, owner_of, read_json, server_of
from sidestream.server.server import Server


def routes(server: Server) -> list[BaseRoute]:
    """The route of the default agent, and those of agents by name."""
    return [
        Route("/api/agui", post_run, methods=["POST"]),
        Route("/api/agui/{agent}", post_run, methods=["POST"]),
    ]


async def post_run(request: Request) -> Response:
    """Starts a run with the user's new messages, or resumes one with answers; responds with its events.

    The same request again gets the same run from its beginning, so a client that lost the connection sends it again.
    """
    server = server_of(request)
    posted = checked(await read_json(request), RunAgentInput)
    body = body_of(posted, request.path_params.get("agent"))
    turn = await begin_turn(server, owner_of(request), body, answers_in(posted), needs_digest=False)

    def encoder_of(id: str, run: str, url_of: UrlOf) -> AGUIEncoder:
        approval_s = server.settings.approval_s
        return AGUIEncoder(posted.thread_id, posted.run_id, id or None, url_of=url_of, approval_s=approval_s)

    return event_stream(sse_frames(turn.encoded(server, encoder_of), end=b""))
