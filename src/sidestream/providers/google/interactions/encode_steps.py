"""Conversion of messages to steps.

Messages of this API are resent as the steps they arrived as, unless their parts were edited. All others are encoded
from their parts. Every call gets exactly one result.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_array, is_object, objects
from sidestream.messages.message import (
    NOT_EXECUTED,
    ChatMessage,
    Content,
    DataPart,
    LinkPart,
    MessagePart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    shown_of_result,
)
from sidestream.messages.references import Replays
from sidestream.providers.google.computer import ACKNOWLEDGEMENT
from sidestream.providers.google.context import some_text
from sidestream.providers.google.encode.contents import DELIVERED, content_of, input_of
from sidestream.providers.google.interactions.options import REPLAY_KEY, SESSION_KEY
from sidestream.providers.shared.attachments import as_base64
from sidestream.providers.shared.histories import HistoryWriter, UnsentParts


class StepsTarget(Struct, frozen=True, kw_only=True):
    """The model and server that the steps are for."""

    model: str
    base_url: str
    replays: Replays
    has_tools: bool = True


def encode_steps(
    messages: Sequence[ChatMessage], index: int, target: StepsTarget
) -> tuple[list[JsonObject], list[str]]:
    """Return the steps of the messages from `index` on, and warnings. The server holds the earlier messages."""
    writer = _StepsWriter(messages[index:], target)
    if index:
        writer.expect_pending(messages[index - 1])
    for message in messages[index:]:
        writer.write(message)
    writer.flush()
    return writer.steps, list(dict.fromkeys(writer.warnings))


class _StepsWriter(HistoryWriter):
    """A writer of steps. System messages are encoded by `system_instruction`."""

    def __init__(self, messages: Sequence[ChatMessage], target: StepsTarget) -> None:
        super().__init__(messages)
        self.steps: list[JsonObject] = []
        self._target = target

    def expect_pending(self, message: ChatMessage) -> None:
        """Expect the results of the calls in the last message that the server holds."""
        names = _given_ids(message)
        for call in message.tool_calls:
            self.expect(call.id, {"id": names.get(call.id, call.id), "name": call.name})

    def append(self, role: Role, entries: list[JsonObject]) -> None:
        if role != "user":
            self.steps += entries
        elif entries:
            self.steps.append({"type": "user_input", "content": entries})

    def text(self, text: str, role: Role) -> JsonObject | None:
        entry = {"type": "text", "text": text}
        return None if not text else {"type": "model_output", "content": [entry]} if role == "model" else entry

    def file(self, part: DataPart | LinkPart) -> JsonObject:
        return media_of(part)

    def call(self, part: ToolCallPart) -> JsonObject:
        call = {"type": "function_call", "id": part.id, "name": part.name, "arguments": input_of(part)}
        return self.expect(part.id, call)

    def replay(self, message: ChatMessage) -> tuple[list[JsonObject], Sequence[MessagePart]]:
        parts = UnsentParts(message.parts)
        steps: list[JsonObject] = []
        for step in self._layout(message):
            filled = _filled(step, parts)
            if filled is not None:
                is_call = filled["type"] == "function_call"
                steps.append(self.expect(str(step.get("call_id")), filled) if is_call else filled)
        return steps, parts.rest

    def _layout(self, message: ChatMessage) -> list[JsonObject]:
        session: Any = message.metadata.get(SESSION_KEY) or message.metadata.get(REPLAY_KEY)
        if not is_object(session) or session.get("base_url") not in (None, self._target.base_url):
            return []
        same_model = session.get("model") in (None, self._target.model)
        steps = self._target.replays.read(session, "steps") or []
        return [step for step in steps if self._is_replayable(step, same_model)]

    def _is_replayable(self, step: JsonObject, same_model: bool) -> bool:
        """Return whether a step can be resent.

        Steps that only one model can read go only to that model. Steps of hosted tools need tools in the request.
        """
        kind = str(step.get("type"))
        if kind in ("model_output", "function_call"):
            return True
        return (
            same_model and (kind != "thought" or "signature" in step) and (kind == "thought" or self._target.has_tools)
        )

    def result(self, call: JsonObject, result: ToolResultPart | None) -> JsonObject:
        step: JsonObject = {"type": "function_result", "call_id": call["id"], "name": call["name"]}
        if result is None:
            return {**step, "result": NOT_EXECUTED, "is_error": True}
        return {**step, "result": _result(result)} | ({"is_error": True} if result.is_error else {})


def _given_ids(message: ChatMessage) -> dict[str, str]:
    """Map our id of a call to the API's."""
    session: Any = message.metadata.get(SESSION_KEY)
    if not is_object(session):
        return {}
    if is_object(session.get("calls")):
        return session["calls"]
    # Sessions of older versions hold the steps.
    steps = objects(session.get("steps"))
    return {
        str(step["call_id"]): given
        for step in steps
        if step.get("call_id") and (given := some_text(step, "id")) is not None
    }


def _result(result: ToolResultPart) -> Any:
    """Return a tool result as text, an object, or the content that the tool shows."""
    value, acknowledged = result.result, {ACKNOWLEDGEMENT: True} if result.acknowledged else {}
    content = [_shown(part) for part in shown_of_result(value)]
    if content:
        note = {"type": "text", "text": jsontext.dumps(acknowledged).decode()}
        return [note, *content] if acknowledged else content
    if is_object(value) or is_array(value) or acknowledged:
        return {**(value if is_object(value) else {"output": value}), **acknowledged}
    return value if isinstance(value, str) else jsontext.dumps(value).decode()


def _shown(part: Content) -> JsonObject:
    return {"type": "text", "text": part.text} if isinstance(part, TextPart) else media_of(part)


def _filled(step: JsonObject, rest: UnsentParts) -> JsonObject | None:
    """Fill a step with the message's current parts, and take those that it covers. None if they were removed."""
    kind = step.get("type")
    if kind == "model_output":
        content = [entry for entry in (_content(entry, rest) for entry in objects(step.get("content"))) if entry]
        return {**step, "content": content} if content else None
    if kind == "thought":
        summary = [entry for entry in (_content(entry, rest) for entry in objects(step.get("summary"))) if entry]
        return {**step, "summary": summary} if summary else {key: step[key] for key in step if key != "summary"}
    if kind == "code_execution_result" and "signature" not in step:
        return _without_files(step)
    if kind != "function_call":
        return step
    call = rest.take(step.get("call_id"), ToolCallPart)
    if call is None:
        return None
    kept = {key: value for key, value in step.items() if key != "call_id"}
    return {**kept, "id": some_text(step, "id") or call.id, "name": call.name, "arguments": input_of(call)}


def _without_files(step: JsonObject) -> JsonObject:
    """Return a result of code without its files, which were delivered to the user."""
    result = step.get("result")
    if not is_array(result):
        return step
    shown = [{"type": "text", "text": DELIVERED} if is_object(entry) and "data" in entry else entry for entry in result]
    return {**step, "result": shown}


def _content(entry: JsonObject, rest: UnsentParts) -> JsonObject | None:
    text = rest.take(entry.get("text_id"), TextPart, ThinkingPart)
    if text is not None:
        return {"type": "text", "text": text.text}
    is_sent = "file" in entry and not rest.is_made(entry["file"])
    file = rest.take_file(entry["file"]) if is_sent else None
    if file is not None:
        kept = {key: value for key, value in entry.items() if key != "file"}
        return {**kept, "data": as_base64(file)}
    if rest.take(entry.get("uri"), LinkPart) is not None:
        return entry
    return entry if entry.keys() == {"type", "text"} else None


def media_of(part: DataPart | LinkPart) -> JsonObject:
    """Convert a file or link to content, by way of its generateContent form."""
    body = content_of(part)
    if "text" in body:
        return {"type": "text", "text": body["text"]}
    place: JsonObject = body.get("inlineData") or body["fileData"]
    kind = str(place.get("mimeType", "video/mp4"))
    family = kind.partition("/")[0]
    content: JsonObject = {"type": family if family in ("image", "audio", "video") else "document", "mime_type": kind}
    return content | ({"data": place["data"]} if "data" in place else {"uri": place["fileUri"]})
