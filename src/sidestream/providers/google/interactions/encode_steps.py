"""Messages → steps.

Messages of this API are replayed as the steps they arrived as, as far as their parts are unedited; all others are
encoded from their parts. Every call gets exactly one result.
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
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    content_of_result,
)
from sidestream.messages.references import Replays
from sidestream.providers.google.computer import ACKNOWLEDGEMENT
from sidestream.providers.google.context import some_text
from sidestream.providers.google.encode.contents import content_of, input_of
from sidestream.providers.google.interactions.context import REPLAY_KEY, SESSION_KEY
from sidestream.providers.shared.attachments import as_base64
from sidestream.providers.shared.histories import FILES_ABOVE, ToolResults, UnsentParts


class StepsTarget(Struct, frozen=True, kw_only=True):
    """The model and server that the steps are for."""

    model: str
    base_url: str
    replays: Replays
    has_tools: bool = True


def encode_steps(
    messages: Sequence[ChatMessage], index: int, target: StepsTarget
) -> tuple[list[JsonObject], list[str]]:
    """The steps of the messages from `index` on, and warnings. The server holds those before it."""
    encoder = _StepsEncoder(messages[index:], target)
    if index:
        encoder.answer_pending(messages[index - 1])
    for message in messages[index:]:
        encoder.message(message)
    return encoder.steps, list(dict.fromkeys(encoder.warnings))


class _StepsEncoder:
    """The steps so far, and the results that no call has claimed yet."""

    def __init__(self, messages: Sequence[ChatMessage], target: StepsTarget) -> None:
        self.steps: list[JsonObject] = []
        self.warnings: list[str] = []
        self._target = target
        self._results = ToolResults(messages)

    def answer_pending(self, message: ChatMessage) -> None:
        """Appends the results of the calls in the last message that the server holds."""
        names = _given_ids(message)
        self.steps += [self._answer(call.id, names.get(call.id, call.id), call.name) for call in message.tool_calls]

    def message(self, message: ChatMessage) -> None:
        """Appends the steps of a message. System messages are encoded by `system_instruction`."""
        if message.role == "model":
            self._model_message(message)
        elif message.role != "system":
            content = [entry for part in message.parts if (entry := self._content(part)) is not None]
            if content:
                self.steps.append({"type": "user_input", "content": content})

    def _content(self, part: MessagePart) -> JsonObject | None:
        if isinstance(part, TextPart):
            return {"type": "text", "text": part.text} if part.text else None
        if isinstance(part, DataPart | LinkPart):
            return media_of(part)
        if isinstance(part, ToolResultPart):
            self.warnings += self._results.warnings_for(part)
        return None

    def _model_message(self, message: ChatMessage) -> None:
        parts = UnsentParts(message.parts)
        answers: list[JsonObject] = []
        for step in self._layout(message):
            filled = _filled(step, parts)
            if filled is None:
                continue
            self.steps.append(filled)
            if filled["type"] == "function_call":
                answers.append(self._answer(step.get("call_id"), filled["id"], filled["name"]))
        files: list[JsonObject] = []
        for part in parts.rest:
            if isinstance(part, TextPart) and part.text:
                self.steps.append({"type": "model_output", "content": [{"type": "text", "text": part.text}]})
            elif isinstance(part, ToolCallPart):
                call = {"type": "function_call", "id": part.id, "name": part.name, "arguments": input_of(part)}
                self.steps.append(call)
                answers.append(self._answer(part.id, part.id, part.name))
            elif isinstance(part, DataPart | LinkPart):
                files.append(media_of(part))
        self.steps += answers
        if files:
            self.steps.append({"type": "user_input", "content": [{"type": "text", "text": FILES_ABOVE}, *files]})

    def _layout(self, message: ChatMessage) -> list[JsonObject]:
        session: Any = message.metadata.get(SESSION_KEY) or message.metadata.get(REPLAY_KEY)
        if not is_object(session) or session.get("base_url") not in (None, self._target.base_url):
            return []
        same_model = session.get("model") in (None, self._target.model)
        steps = self._target.replays.read(session, "steps") or []
        return [step for step in steps if self._is_replayable(step, same_model)]

    def _is_replayable(self, step: JsonObject, same_model: bool) -> bool:
        """Steps that only one model can read are sent to it only, those of hosted tools only beside tools."""
        kind = str(step.get("type"))
        if kind in ("model_output", "function_call"):
            return True
        return (
            same_model and (kind != "thought" or "signature" in step) and (kind == "thought" or self._target.has_tools)
        )

    def _answer(self, key: Any, call_id: str, name: str) -> JsonObject:
        result = self._results.claim(str(key))
        step: JsonObject = {"type": "function_result", "call_id": call_id, "name": name}
        if result is None:
            return {**step, "result": NOT_EXECUTED, "is_error": True}
        return {**step, "result": _result(result)} | ({"is_error": True} if result.is_error else {})


def _given_ids(message: ChatMessage) -> dict[str, str]:
    """Our id of a call → the API's."""
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
    """Text, an object, or the content that the tool shows."""
    value, acknowledged = result.result, {ACKNOWLEDGEMENT: True} if result.acknowledged else {}
    content = [_shown(part) for part in content_of_result(value)]
    if content:
        note = {"type": "text", "text": jsontext.dumps(acknowledged).decode()}
        return [note, *content] if acknowledged else content
    if is_object(value) or is_array(value) or acknowledged:
        return {**(value if is_object(value) else {"output": value}), **acknowledged}
    return value if isinstance(value, str) else jsontext.dumps(value).decode()


def _shown(part: Content) -> JsonObject:
    return {"type": "text", "text": part.text} if isinstance(part, TextPart) else media_of(part)


def _filled(step: JsonObject, rest: UnsentParts) -> JsonObject | None:
    """The step with the current content of the message; None if that was removed. Takes the parts that it covers."""
    kind = step.get("type")
    if kind == "model_output":
        content = [entry for entry in (_content(entry, rest) for entry in objects(step.get("content"))) if entry]
        return {**step, "content": content} if content else None
    if kind == "thought":
        summary = [entry for entry in (_content(entry, rest) for entry in objects(step.get("summary"))) if entry]
        return {**step, "summary": summary} if summary else {key: step[key] for key in step if key != "summary"}
    if kind != "function_call":
        return step
    call = rest.take(step.get("call_id"), ToolCallPart)
    if call is None:
        return None
    kept = {key: value for key, value in step.items() if key != "call_id"}
    return {**kept, "id": some_text(step, "id") or call.id, "name": call.name, "arguments": input_of(call)}


def _content(entry: JsonObject, rest: UnsentParts) -> JsonObject | None:
    text = rest.take(entry.get("text_id"), TextPart, ThinkingPart)
    if text is not None:
        return {"type": "text", "text": text.text}
    file = rest.take_file(entry["file"]) if "file" in entry else None
    if file is not None:
        kept = {key: value for key, value in entry.items() if key != "file"}
        return {**kept, "data": as_base64(file)}
    if rest.take(entry.get("uri"), LinkPart) is not None:
        return entry
    return entry if entry.keys() == {"type", "text"} else None


def media_of(part: DataPart | LinkPart) -> JsonObject:
    """A file or link as content, converted from the form of generateContent."""
    body = content_of(part)
    if "text" in body:
        return {"type": "text", "text": body["text"]}
    place: JsonObject = body.get("inlineData") or body["fileData"]
    kind = str(place.get("mimeType", "video/mp4"))
    family = kind.partition("/")[0]
    content: JsonObject = {"type": family if family in ("image", "audio", "video") else "document", "mime_type": kind}
    return content | ({"data": place["data"]} if "data" in place else {"uri": place["fileUri"]})
