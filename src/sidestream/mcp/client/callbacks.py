"""A server's requests to its client: elicitation, sampling and roots, answered by the user's callbacks."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sidestream.files.media_types import from_base64
from sidestream.jsontext import without_none
from sidestream.logs import get_logger
from sidestream.mcp.client.content import mime_type_of
from sidestream.mcp.display import one_line, visible
from sidestream.messages.message import ChatMessage, DataPart, MessagePart, TextPart
from sidestream.text.redaction import redact
from sidestream.tools.approvals import defaults

if TYPE_CHECKING:
    from mcp.client.session import ClientRequestContext
    from mcp_types import (
        CreateMessageRequestParams,
        CreateMessageResult,
        ElicitRequestParams,
        ElicitResult,
        ErrorData,
        ListRootsResult,
        LoggingMessageNotificationParams,
        SamplingMessageContentBlock,
    )

log = get_logger(__name__)
_MAX_LOGGED = 2000


class Elicitation(Struct, frozen=True, kw_only=True):
    """A server's request for user input: a form (`schema`), or a page to visit (`url`)."""

    server: str
    message: str
    schema: dict[str, Any] | None = None
    url: str | None = None


class SamplingRequest(Struct, frozen=True, kw_only=True):
    """A server's request for a completion by a model."""

    server: str
    messages: tuple[ChatMessage, ...]
    max_tokens: int
    instructions: str | None = None
    temperature: float | None = None
    stop_sequences: tuple[str, ...] = ()
    model_hints: tuple[str, ...] = ()


class SamplingAnswer(Struct, frozen=True, kw_only=True):
    """A completion for a server."""

    text: str
    model: str = "unknown"


ElicitationAnswer = dict[str, Any] | bool | None
OnElicitation = Callable[[Elicitation], ElicitationAnswer | Awaitable[ElicitationAnswer]]
"""Returns the form's values, with its defaults for the rest. True means all defaults; False or None declines."""
OnSampling = Callable[[SamplingRequest], SamplingAnswer | str | Awaitable[SamplingAnswer | str | None] | None]
"""Returns the completion, or None to decline."""
Root = str | PathLike[str]
Roots = Sequence[Root] | Callable[[], Sequence[Root] | Awaitable[Sequence[Root]]]
"""Folders that a server may work in, or a function that returns them, as paths or `file:` URIs."""


class Callbacks(Struct, frozen=True, kw_only=True):
    """The user's callbacks for one server, adapted to the official client."""

    server: str
    on_elicitation: OnElicitation | None = None
    on_sampling: OnSampling | None = None
    roots: Roots | None = None

    def client_arguments(self) -> dict[str, Any]:
        """Return the callback arguments for the official client.

        A capability without a callback is not announced to the server.
        """
        callbacks = {
            "elicitation_callback": self.elicit if self.on_elicitation else None,
            "sampling_callback": self.sample if self.on_sampling else None,
            "list_roots_callback": self.list_roots if self.roots is not None else None,
        }
        given = without_none(callbacks)
        return given | {"logging_callback": self.log_message}

    async def elicit(self, _: "ClientRequestContext", params: "ElicitRequestParams") -> "ElicitResult":
        """Call `on_elicitation`. An exception in it cancels the request."""
        from mcp_types import ElicitResult

        assert self.on_elicitation is not None
        is_form = params.mode == "form"
        request = Elicitation(
            server=self.server,
            message=visible(params.message),
            schema=dict(params.requested_schema) if is_form else None,
            url=None if is_form else visible(params.url),
        )
        try:
            answer = await _await_if_needed(self.on_elicitation(request))
        except Exception as error:
            log.warning("on_elicitation for %s raised %s", self.server, type(error).__name__, exc_info=error)
            return ElicitResult(action="cancel")
        if answer is None or answer is False:
            return ElicitResult(action="decline")
        if not is_form:
            return ElicitResult(action="accept")
        return ElicitResult(action="accept", content=defaults(request.schema) | ({} if answer is True else answer))

    async def decline(self, _: "ClientRequestContext", params: "ElicitRequestParams") -> "ElicitResult":
        """Decline an elicitation.

        Announces the capability where the user answers later; the client never calls it.
        """
        from mcp_types import ElicitResult

        return ElicitResult(action="decline")

    async def sample(
        self, _: "ClientRequestContext", params: "CreateMessageRequestParams"
    ) -> "CreateMessageResult | ErrorData":
        """Call `on_sampling`. An exception in it is reported to the server as a failure."""
        from mcp_types import INTERNAL_ERROR, CreateMessageResult, ErrorData, TextContent

        assert self.on_sampling is not None
        hints = params.model_preferences.hints if params.model_preferences else None
        request = SamplingRequest(
            server=self.server,
            messages=tuple(
                ChatMessage(
                    "model" if message.role == "assistant" else "user",
                    tuple(_message_part(block) for block in message.content_as_list),
                )
                for message in params.messages
            ),
            max_tokens=params.max_tokens,
            instructions=params.system_prompt,
            temperature=params.temperature,
            stop_sequences=tuple(params.stop_sequences or ()),
            model_hints=tuple(hint.name for hint in hints or () if hint.name),
        )
        try:
            answer = await _await_if_needed(self.on_sampling(request))
        except Exception as error:
            log.warning("on_sampling for %s raised %s", self.server, type(error).__name__, exc_info=error)
            return ErrorData(code=INTERNAL_ERROR, message="sampling failed")
        if answer is None:
            # Error code that the protocol defines for a request rejected by the user.
            return ErrorData(code=-1, message="User rejected sampling request")
        completion = SamplingAnswer(text=answer) if isinstance(answer, str) else answer
        return CreateMessageResult(
            role="assistant", content=TextContent(text=completion.text), model=completion.model, stop_reason="endTurn"
        )

    async def list_roots(self, _: "ClientRequestContext") -> "ListRootsResult":
        """Return the roots as URIs."""
        from mcp_types import ListRootsResult, Root as WireRoot
        from pydantic import FileUrl

        assert self.roots is not None
        roots = await _await_if_needed(self.roots()) if callable(self.roots) else self.roots
        return ListRootsResult(roots=[WireRoot(uri=FileUrl(_uri(root))) for root in roots])

    async def log_message(self, params: "LoggingMessageNotificationParams") -> None:
        """Forward a log message of the server to our logger."""
        if log.isEnabledFor(logging.DEBUG):
            text = one_line(redact(str(params.data)), _MAX_LOGGED)
            log.debug("%s [%s] %s", self.server, params.level, text)


async def _await_if_needed(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _uri(root: Root) -> str:
    text = str(root)
    return text if text.startswith("file:") else Path(text).expanduser().resolve().as_uri()


def _message_part(block: "SamplingMessageContentBlock") -> MessagePart:
    if block.type == "text":
        return TextPart(block.text)
    if block.type == "image" or block.type == "audio":
        content = from_base64(block.data)
        if content is not None:
            return DataPart(content, mime_type_of(content, block.mime_type))
    return TextPart(f"[{block.type}]")
