"""The items of a conversation in the format of the Responses API, both sent and received."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import ValidationError, convert

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.jsontext import JsonObject, objects, text_in
from sidestream.messages.message import (
    ChatMessage,
    DataPart,
    LinkPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.messages.steering import steered_message
from sidestream.parts import Steer
from sidestream.protocols.responses.items import approval_item_id, made_id, response_of_item, shown
from sidestream.server.errors import RequestError, not_found
from sidestream.server.http.requests import query_number
from sidestream.server.responses.log import ResponseFold, ResponseInfo, responses_in
from sidestream.server.responses.service import find_response, read_response
from sidestream.server.server import Server
from sidestream.store.records import ApprovalDecided, MessageAdded, Record, Segment, TurnDiscarded
from sidestream.tools.approvals import Decision

MAX_LISTED = 100


async def conversation_items(server: Server, conversation: str, *, until: int | None = None) -> list[JsonObject]:
    """Return the items of a conversation in order.

    With `until`, returns only the input of the response that starts at this record.
    """
    rows = await server.store.read(conversation)
    infos = {info.start: info for info in responses_in(conversation, rows)}
    items: list[JsonObject] = []
    open_fold: ResponseFold | None = None
    earlier: list[Record] = []
    for row in rows:
        record = await server.store.record(row, load=True)
        if row.seq in infos:
            _take(items, open_fold)
            if row.seq == until:
                open_fold = None
                items += _sent(record, conversation)
                until = -1
                continue
            open_fold = _fold_of(infos[row.seq], earlier)
        elif until == -1 and row.kind != "approval-decided":
            return items
        if isinstance(record.body, TurnDiscarded):
            open_fold = None
        items += _sent(record, conversation)
        earlier.append(record)
        if open_fold is not None:
            open_fold.feed(record)
            if open_fold.is_over:
                _take(items, open_fold)
                open_fold = None
    _take(items, open_fold)
    return items


async def known_items(
    server: Server, owner: str, given: str | list[JsonObject] | None, conversation: str | None
) -> dict[str, JsonObject]:
    """Return the items that an input refers to, from the conversation or from any response of the tenant."""
    wanted = {id for item in objects(given) if item.get("type") == "item_reference" and (id := text_in(item, "id"))}
    known: dict[str, JsonObject] = {}
    if wanted and conversation is not None:
        known = {str(item["id"]): item for item in await conversation_items(server, conversation)}
    responses = {found for id in wanted - known.keys() if (found := response_of_item(id)) is not None}
    for response, dialect in responses:
        with suppress(RequestError):  # The reader of the input reports unknown items.
            output = (await read_response(server, await find_response(server, owner, response), dialect))["output"]
            known |= {str(item["id"]): item for item in output}
    return known


def _fold_of(info: ResponseInfo, earlier: Sequence[Record]) -> ResponseFold:
    fold = ResponseFold(info, "openai")
    for record in earlier:
        if record.seq >= info.first:
            fold.feed(record)
    return fold


def _take(items: list[JsonObject], fold: ResponseFold | None) -> None:
    if fold is not None and fold.encoder is not None:
        items += fold.encoder.stream.output


def _sent(record: Record, conversation: str) -> list[JsonObject]:
    """Return the items that a record adds to the client's input."""
    at = (conversation, record.seq)
    match record.body:
        case MessageAdded(message=message):
            return message_items(message, *at)
        case ApprovalDecided(decision=decision):
            return [_answer(decision, *at)]
        case Segment(parts=(Steer(status="applied"), *_) as parts):
            steers = [part for part in parts if isinstance(part, Steer)]
            return [item for n, steer in enumerate(steers) for item in message_items(steered_message(steer), *at, n)]
        case _:
            return []


def message_items(message: ChatMessage, *names: object) -> list[JsonObject]:
    """Convert a message to items, whose ids are derived from these names."""
    items: list[JsonObject] = []
    content: list[JsonObject] = []
    is_model = message.role == "model"
    for index, part in enumerate(message.parts):
        match part:
            case TextPart(text=text) if is_model:
                content.append({"type": "output_text", "text": text, "annotations": []})
            case TextPart(text=text):
                content.append({"type": "input_text", "text": text})
            case DataPart() | LinkPart():
                content.append(_file(part))
            case ThinkingPart(text=text):
                summary = [{"type": "summary_text", "text": text}]
                items.append({"id": made_id("reasoning", *names, index), "type": "reasoning", "summary": summary})
            case ToolCallPart():
                items.append(_call(part, *names, index))
            case ToolResultPart():
                given = {"call_id": part.id, "output": _output(part.result), "status": "completed"}
                id = made_id("function_call_output", *names, index)
                items.append({"id": id, "type": "function_call_output", **given})
            case _:
                pass
    if content:
        role = {"model": "assistant", "system": "developer"}.get(message.role, "user")
        said = {"id": made_id("message", *names), "type": "message", "role": role, "status": "completed"}
        items.insert(0, {**said, "content": content})
    return items


def _call(part: ToolCallPart, *names: object) -> JsonObject:
    text = part.input_text if part.input_text is not None else jsontext.dumps(part.input).decode()
    given = {"call_id": part.id, "name": part.name, "arguments": text, "status": "completed"}
    return {"id": made_id("function_call", *names), "type": "function_call", **given}


def _file(part: DataPart | LinkPart) -> JsonObject:
    url = part.url if isinstance(part, LinkPart) else media_types.data_url(part.data, part.mime_type)
    if (part.mime_type or "").startswith("image/"):
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    field = "file_url" if isinstance(part, LinkPart) else "file_data"
    return {"type": "input_file", field: url, **({"filename": part.name} if part.name else {})}


def _output(value: Any) -> str | list[JsonObject]:
    """Return a function's output as a string, or as the content that the client sent."""
    try:
        parts = convert(value, list[TextPart | DataPart | LinkPart]) if value else []
    except ValidationError:
        parts = []
    if not parts:
        return shown(value)
    return [{"type": "input_text", "text": part.text} if isinstance(part, TextPart) else _file(part) for part in parts]


def _answer(decision: Decision, *names: object) -> JsonObject:
    if decision.output is not None:
        given = {"call_id": decision.call_id, "output": _output(decision.output.value), "status": "completed"}
        return {"id": made_id("function_call_output", *names), "type": "function_call_output", **given}
    asked = approval_item_id(decision.approval_id)
    item = {"id": made_id("mcp_approval_response", *names), "type": "mcp_approval_response"}
    reason = {"reason": decision.reason} if decision.reason else {}
    return {**item, "approval_request_id": asked, "approve": decision.is_approved, **reason}


def listed(items: Sequence[JsonObject], query: Mapping[str, str], default_order: str = "desc") -> JsonObject:
    """Return a page of items according to `order`, `after` and `limit` of the query.

    Raises RequestError if one of them is invalid.
    """
    order = query.get("order", default_order)
    if order not in ("asc", "desc"):
        raise RequestError(400, "order must be asc or desc", param="order")
    limit = query_number(query, "limit")
    if limit is not None and not 1 <= limit <= MAX_LISTED:
        raise RequestError(400, f"limit must be between 1 and {MAX_LISTED}", param="limit")
    found = list(items) if order == "asc" else list(reversed(items))
    if (after := query.get("after")) is not None:
        places = [index for index, item in enumerate(found) if item["id"] == after]
        if not places:
            raise not_found("item", after[:100], param="after")
        found = found[places[0] + 1 :]
    page = found[: limit or 20]
    return _page(page, has_more=len(page) < len(found))


def _page(page: list[JsonObject], *, has_more: bool) -> JsonObject:
    ids: list[Any] = [item["id"] for item in page] or [None]
    return {"object": "list", "data": page, "first_id": ids[0], "last_id": ids[-1], "has_more": has_more}
