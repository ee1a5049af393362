"""Encodes messages as input items.

Messages from this provider are resent as their original items, with edits to their parts applied. All others are
encoded from their parts. Every call gets exactly one answer. Metadata of other providers is never sent, and thinking
only with encrypted content of this provider.
"""

from collections.abc import Sequence
from typing import Any, assert_never

from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_object, objects, text_in
from sidestream.messages.message import (
    ApprovalPart,
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    file_note,
)
from sidestream.messages.references import Replays
from sidestream.providers.openai.responses.encode.answers import answer, answer_key, content_of, remark
from sidestream.providers.openai.responses.encode.replay import RULES, ItemLayout, layout_of, replayable
from sidestream.providers.shared.attachments import as_base64
from sidestream.providers.shared.histories import FILES_ABOVE, UnsentParts, hashed_id, input_object, legal_name

_MAX_CALL_ID = 64


class InputTarget(Struct, frozen=True, kw_only=True):
    """The model and server that receive the items, and encoding settings."""

    model: str
    base_url: str
    session_keys: tuple[str, ...]
    """Metadata keys that may be read."""
    replays: Replays
    provider: str = ""
    image_detail: str = "auto"
    resends_raw: bool = False
    """Whether the server needs its items verbatim."""
    has_containers: bool = True
    """Whether containers of earlier turns still exist. If not, what ran in them cannot be resent."""


def encode_input(
    messages: Sequence[ChatMessage],
    texts: Sequence[str | None],
    others: Sequence[ChatMessage],
    pending: Sequence[JsonObject],
    target: InputTarget,
) -> tuple[list[JsonObject], list[str]]:
    """Encode messages as input items. Returns them with warnings.

    `texts` and `others` are what `only_texts` returns. `pending` are items on the server that need an answer.
    """
    newest = next((message for message in reversed(messages) if message.role == "model"), None)
    encoder = _InputEncoder(others, newest, target)
    encoder.expect(pending)
    items, is_settled = encoder.items, encoder.is_settled()
    for message, text in zip(messages, texts, strict=True):
        if text is None or not is_settled or (role := message.role) == "tool":
            encoder.message(message)
            is_settled = encoder.is_settled()
        elif text:
            items.append(_of_model(text) if role == "model" else {"role": role, "content": text})
    encoder.flush_files()
    return encoder.items, encoder.warnings


LONG = 100
"""Messages from which a history is worth the attempt to encode it as `plain_items`."""


class _OfUser(Struct, gc=False):
    content: str
    role: str = "user"


class _OfModel(Struct, gc=False):
    content: str
    role: str = "assistant"
    type: str = "message"


_PLAIN: dict[str, type[_OfUser | _OfModel]] = {"user": _OfUser, "model": _OfModel}


def plain_items(messages: Sequence[ChatMessage]) -> list[Any] | None:
    """Encode a history of plain texts, as structs, which take half the time of dicts. Returns None for any other.

    Such a history has no session. It is read from its end, which is where most others have one.
    """
    items: list[Any] = []
    append = items.append
    try:
        for message in reversed(messages):
            (part,) = message.parts
            if message.metadata or type(part) is not TextPart or not (text := part.text):
                return None
            append(_PLAIN[message.role](text))
    except (ValueError, KeyError):  # a message with no part, or several, or of another role
        return None
    items.reverse()
    return items


def _of_model(text: str) -> JsonObject:
    # llama.cpp refuses model messages without a type.
    return {"type": "message", "role": "assistant", "content": text}


class _InputEncoder:
    """An encoder of messages, with the items so far and the pending answers."""

    def __init__(self, others: Sequence[ChatMessage], newest: ChatMessage | None, target: InputTarget) -> None:
        """Index the results and approvals in `others`, the messages that are not plain text."""
        self.items: list[JsonObject] = []
        self.warnings: list[str] = []
        self._target = target
        self._results: dict[str, list[ToolResultPart | ApprovalPart]] = {}  # not claimed by a call or encoded yet
        self._approved: set[str] = set()
        self._newest = newest
        for message in others:
            for part in message.parts:
                if type(part) is ToolResultPart or type(part) is ApprovalPart:
                    self._results.setdefault(part.id, []).append(part)
            if message.metadata and (layout := self._layout(message)):
                self._approved |= layout.approvals
        self._replies: dict[str, list[JsonObject]] = {}
        self._unanswered: list[JsonObject] = []
        self._left_out: set[str] = set()
        self._requested: set[str] = set()
        self._called: set[str] = set()
        """Call ids of resent items, to which outputs and callers refer."""
        self._files: JsonObject | None = None
        self._remarks: list[str] = []
        """Text of results that does not fit into their items."""

    def is_settled(self) -> bool:
        """Return whether nothing has to be sent before the next message."""
        return not self._unanswered and not self._remarks and self._files is None

    def expect(self, pending: Sequence[JsonObject]) -> None:
        """Prepare the answers to these items, and append those that are missing from the history."""
        for item in pending:
            self._expect(answer_key(item), item)
        self._flush_unanswered()

    def message(self, message: ChatMessage) -> None:
        """Append the items of a message."""
        if message.role != "tool" and (self._files is not None or self._remarks):
            self.flush_files()
        layout = self._layout(message) if message.metadata else None
        parts = message.parts if layout is None else self._replay(message, layout)
        start = len(self.items)
        content = [entry for part in parts if (entry := self._part(message.role, part)) is not None]
        self._drop_trailing_reasoning(start)
        self._flush_unanswered()
        if content and message.role in ("model", "tool"):
            # Defer files, so that nothing comes between calls and their results.
            self._files = self._files or {"role": "user", "content": [{"type": "input_text", "text": FILES_ABOVE}]}
            self._files["content"] += content
        elif len(content) == 1 and content[0]["type"] == "input_text":
            self.items.append({"role": message.role, "content": content[0]["text"]})
        elif content:
            self.items.append({"role": message.role, "content": content})

    def flush_files(self) -> None:
        """Append the remarks and files of the last messages as user messages."""
        self.items += [{"role": "user", "content": text} for text in self._remarks]
        self._remarks = []
        if self._files is not None:
            self.items.append(self._files)
            self._files = None

    def _layout(self, message: ChatMessage) -> ItemLayout | None:
        target = self._target
        return layout_of(message, target.session_keys, target.model, target.base_url, target.replays)

    def _part(self, role: str, part: MessagePart) -> JsonObject | None:
        """Append a part that is a separate item, or return the part as content."""
        match part:
            case TextPart():
                if role != "model":
                    return {"type": "input_text", "text": part.text} if part.text else None
                self._text(part.text)
            case ThinkingPart(encrypted_content=str(content)) if part.provider == self._target.provider:
                summary = [{"type": "summary_text", "text": part.text}] if part.text else []
                self.items.append({"type": "reasoning", "summary": summary, "encrypted_content": content})
            case ThinkingPart():
                pass
            case DataPart() if part.to == "container":
                return {"type": "input_text", "text": file_note(part)}
            case DataPart() | LinkPart():
                return content_of(part, self._target.image_detail)
            case ToolCallPart():
                self._call(part.id, _function_call(part))
            case ToolResultPart() | ApprovalPart():
                self._result(part)
            case _:
                assert_never(part)
        return None

    def _text(self, text: str, phase: Any = None) -> None:
        if text:
            message = _of_model(text)
            self.items.append({**message, "phase": phase} if phase else message)

    def _call(self, key: str, item: JsonObject) -> None:
        if self._expect(key, item):
            self.items.append(item)

    def _expect(self, key: str, item: JsonObject) -> bool:
        """Prepare the answer to an item. Returns False if it cannot be answered, and so must not be sent."""
        results = self._results.get(key, [])
        reply = answer(item, results[0] if results else None)
        if reply is None:
            self._left_out.add(key)
            if item["type"] != "mcp_approval_request":
                self.warnings.append(f"the {item['type']} {key} has no usable answer and is left out")
            return False
        if not results:
            self._unanswered.append(reply)
        else:
            if text := remark(item, results.pop(0)):
                self._remarks.append(text)
            self._replies.setdefault(key, []).append(reply)
        return True

    def _result(self, part: ToolResultPart | ApprovalPart) -> None:
        if replies := self._replies.get(part.id):
            self.items.append(replies.pop(0))
            return
        self._results[part.id].pop(0)
        if part.id not in self._left_out:
            what = f"result {part.id} of {part.name}" if isinstance(part, ToolResultPart) else f"decision {part.id}"
            self.warnings.append(f"the {what} has no matching call and is left out")

    def _flush_unanswered(self) -> None:
        self.items += self._unanswered
        self._unanswered = []

    def _replay(self, message: ChatMessage, layout: ItemLayout) -> list[MessagePart]:
        """Append the original items of a message. Returns the parts that they do not cover."""
        parts = _ItemParts(message.parts)
        start = len(self.items)
        for raw in layout.items:
            if raw.get("type") == "message":
                self._text(parts.text_of(raw), raw.get("phase"))
                continue
            if layout.is_reduced and raw.get("type") == "mcp_approval_request" and message is not self._newest:
                # The call has been made. Without it, the approval would cause a second call.
                self._left_out.add(str(raw.get("id")))
                continue
            waits = layout.waits(raw)
            filled = parts.fill(raw, waits)
            body = None
            if filled is not None:
                body = replayable(filled, same_model=layout.same_model, is_raw=self._target.resends_raw)
            if body is not None:
                self._replay_item(raw, body, waits, self._target.has_containers and not layout.is_forked)
            elif raw.get("type") not in RULES:
                self.warnings.append(f"an item of type {raw.get('type')} cannot be resent and is left out")
        self._drop_trailing_reasoning(start)
        return parts.rest

    def _drop_trailing_reasoning(self, start: int) -> None:
        while len(self.items) > start and self.items[-1].get("type") == "reasoning":
            self.items.pop()  # The API refuses reasoning without a following item.

    def _replay_item(self, raw: JsonObject, body: JsonObject, waits: bool, has_containers: bool) -> None:
        if not self._are_references_known(body):
            self.warnings.append(f"a {body['type']} is left out, since its call is not in the history")
            return
        if body.get("call_id") is not None:
            self._called.add(str(body["call_id"]))
        if body["type"] == "mcp_approval_request":
            self._replay_approval(str(raw.get("id")), body)
        elif waits:
            self._call(answer_key(raw), body)
        elif has_containers or body["type"] != "code_interpreter_call":
            if not has_containers:
                body.pop("environment", None)
            if body.get("approval_request_id") not in self._requested:
                body.pop("approval_request_id", None)
            self.items.append(body)

    def _are_references_known(self, body: JsonObject) -> bool:
        """Return False for an output whose call is not in the request. An unknown caller is removed."""
        caller = body.get("caller")
        if is_object(caller) and "caller_id" in caller and str(caller["caller_id"]) not in self._called:
            del body["caller"]
        answered = body.get("call_id") if str(body["type"]).endswith("_output") else None
        return answered is None or str(answered) in self._called

    def _replay_approval(self, key: str, body: JsonObject) -> None:
        """Append an approval request with its decision, or leave it out if it has none."""
        if self._expect(key, body):
            self._requested.add(body["id"])
            self.items.append(body)
        elif key in self._approved:
            self._requested.add(body["id"])
            self.items.append(body)
            self._unanswered.append(
                {"type": "mcp_approval_response", "approval_request_id": body["id"], "approve": True}
            )


class _ItemParts(UnsentParts):
    """The parts of a message that no item covers yet."""

    def text_of(self, item: JsonObject) -> str:
        """Return the current text of a message item."""
        ids = dict.fromkeys(text_id for entry in objects(item.get("content")) if (text_id := text_in(entry, "text_id")))
        return "".join(part.text for text_id in ids if (part := self.take(text_id, TextPart)) is not None)

    def fill(self, item: JsonObject, waits: bool) -> JsonObject | None:
        """Fill an item with the current content of its part. Returns None if the part was removed."""
        if item.get("type") == "image_generation_call":
            image = self.take(item.get("file"), DataPart)
            return {**item, "result": as_base64(image)} if image else None
        if not waits or item.get("type") == "mcp_approval_request":
            return item
        call = self.take(answer_key(item), ToolCallPart)
        if call is None:
            return None
        if item.get("type") == "function_call" and not _is_input(str(item.get("arguments")), call):
            return {**item, "arguments": _input_text(call)}
        edited = item.get("type") == "custom_tool_call" and isinstance(call.input, str)
        return {**item, "input": call.input} if edited else item


def _function_call(part: ToolCallPart) -> JsonObject:
    """Encode a call, with an id and name that the API accepts, since another provider may have made it."""
    too_long = not 0 < len(part.id) <= _MAX_CALL_ID
    call_id = hashed_id(part.id) if too_long else part.id
    return {"type": "function_call", "call_id": call_id, "name": legal_name(part.name), "arguments": _input_text(part)}


def _input_text(part: ToolCallPart) -> str:
    return jsontext.dumps(input_object(part)).decode() if part.input_text is None else part.input_text


def _is_input(text: str, part: ToolCallPart) -> bool:
    """Return whether the text parses to the call's input, so that the model's own text can be sent."""
    if part.input_text is not None:
        return part.input_text == text
    try:
        return jsontext.loads(text) == part.input
    except (ValueError, RecursionError):
        return False
