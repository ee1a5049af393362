"""What a server may ask of its user: input, a model's answer, the folders it may work in. All in plain values."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sidestream.deliverables import from_base64
from sidestream.mcp.content import media_type_of
from sidestream.mcp.display import one_line, visible
from sidestream.messages.message import ChatMessage, DataPart, MessagePart, TextPart
from sidestream.redaction import redact

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

log = logging.getLogger("sidestream.mcp")
_MAX_LOGGED = 2000


class Elicitation(Struct, frozen=True, kw_only=True):
    """A server asks a person for input: by a form (`schema`), or by a page to visit (`url`)."""

    server: str
    message: str
    schema: dict[str, Any] | None = None
    url: str | None = None


class SamplingRequest(Struct, frozen=True, kw_only=True):
    """A server asks for a model's answer."""

    server: str
    messages: tuple[ChatMessage, ...]
    max_tokens: int
    instructions: str | None = None
    temperature: float | None = None
    stop_sequences: tuple[str, ...] = ()
    model_hints: tuple[str, ...] = ()


class SamplingAnswer(Struct, frozen=True, kw_only=True):
    """A model's answer for a server."""

    text: str
    model: str = "unknown"


ElicitationAnswer = dict[str, Any] | bool | None
OnElicitation = Callable[[Elicitation], ElicitationAnswer | Awaitable[ElicitationAnswer]]
"""Returns the form's values, True to agree without any, or False or None to decline."""
OnSampling = Callable[[SamplingRequest], SamplingAnswer | str | Awaitable[SamplingAnswer | str | None] | None]
"""Returns the answer, or None to decline."""
Root = str | PathLike[str]
Roots = Sequence[Root] | Callable[[], Sequence[Root] | Awaitable[Sequence[Root]]]
"""Folders that a server may work in, or a function that says which: paths or `file:` URIs."""


class Callbacks(Struct, frozen=True, kw_only=True):
    """The answers of one server's user, in the shape that the official client calls."""

    server: str
    on_elicitation: OnElicitation | None = None
    on_sampling: OnSampling | None = None
    roots: Roots | None = None

    def offered(self) -> dict[str, Any]:
        """Arguments for the client. What is not answered is not offered to the server, so it should not ask."""
        offers = {
            "elicitation_callback": self.elicit if self.on_elicitation else None,
            "sampling_callback": self.sample if self.on_sampling else None,
            "list_roots_callback": self.list_roots if self.roots is not None else None,
        }
        return {name: offer for name, offer in offers.items() if offer is not None} | {"logging_callback": self.note}

    async def elicit(self, _: "ClientRequestContext", params: "ElicitRequestParams") -> "ElicitResult":
        """Asks the user; a failing callback counts as a dismissed question."""
        from mcp_types import ElicitResult

        assert self.on_elicitation is not None
        is_form = params.mode == "form"
        question = Elicitation(
            server=self.server,
            message=visible(params.message),
            schema=dict(params.requested_schema) if is_form else None,
            url=None if is_form else visible(params.url),
        )
        try:
            answer = await _settled(self.on_elicitation(question))
        except Exception as error:
            log.warning("on_elicitation for %s raised %s", self.server, type(error).__name__, exc_info=error)
            return ElicitResult(action="cancel")
        if answer is None or answer is False:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=({} if answer is True else answer) if is_form else None)

    async def sample(
        self, _: "ClientRequestContext", params: "CreateMessageRequestParams"
    ) -> "CreateMessageResult | ErrorData":
        """Asks the user's function for a model's answer."""
        from mcp_types import INTERNAL_ERROR, CreateMessageResult, ErrorData, TextContent

        assert self.on_sampling is not None
        hints = params.model_preferences.hints if params.model_preferences else None
        request = SamplingRequest(
            server=self.server,
            messages=tuple(
                ChatMessage(
                    "model" if message.role == "assistant" else "user",
                    tuple(_sampled(block) for block in message.content_as_list),
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
            answer = await _settled(self.on_sampling(request))
        except Exception as error:
            log.warning("on_sampling for %s raised %s", self.server, type(error).__name__, exc_info=error)
            return ErrorData(code=INTERNAL_ERROR, message="sampling failed")
        if answer is None:
            # The protocol's own code for a user who says no.
            return ErrorData(code=-1, message="User rejected sampling request")
        given = SamplingAnswer(text=answer) if isinstance(answer, str) else answer
        return CreateMessageResult(
            role="assistant", content=TextContent(text=given.text), model=given.model, stop_reason="endTurn"
        )

    async def list_roots(self, _: "ClientRequestContext") -> "ListRootsResult":
        """The folders as URIs."""
        from mcp_types import ListRootsResult, Root as WireRoot
        from pydantic import FileUrl

        assert self.roots is not None
        found = await _settled(self.roots()) if callable(self.roots) else self.roots
        return ListRootsResult(roots=[WireRoot(uri=FileUrl(_uri(root))) for root in found])

    async def note(self, params: "LoggingMessageNotificationParams") -> None:
        """Passes on what the server logs."""
        if log.isEnabledFor(logging.DEBUG):
            text = one_line(redact(str(params.data)), _MAX_LOGGED)
            log.debug("%s [%s] %s", self.server, params.level, text)


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _uri(root: Root) -> str:
    text = str(root)
    return text if text.startswith("file:") else Path(text).expanduser().resolve().as_uri()


def _sampled(block: "SamplingMessageContentBlock") -> MessagePart:
    if block.type == "text":
        return TextPart(block.text)
    if block.type == "image" or block.type == "audio":
        content = from_base64(block.data)
        if content is not None:
            return DataPart(content, media_type_of(content, block.mime_type))
    return TextPart(f"[{block.type}]")
