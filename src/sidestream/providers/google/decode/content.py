"""Handlers for the parts of a candidate's content, client tool calls included, by the field that names their kind."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.jsontext import JsonObject, is_object
from sidestream.parts import ToolCall, ToolInputDelta, ToolInputEnd, ToolInputStart
from sidestream.providers.google.computer import client_action
from sidestream.providers.google.context import LANGUAGES, OUTCOMES, PROVIDER_NAME, named
from sidestream.providers.google.decode import shapes
from sidestream.providers.google.decode.arguments import ClientCall
from sidestream.providers.google.decode.state import GenerateContentState, HostedCall
from sidestream.providers.shared.decoding import INCOMPLETE_INPUT, UNREADABLE


def on_function_call(s: GenerateContentState, value: shapes.FunctionCall, raw: JsonObject) -> None:
    """Emit `tool-input-*` as the arguments arrive, and `tool-call` when they are complete."""
    given = value.function_call
    call = _streaming_call(s, given)
    if call is None and not given.name:
        s.raw(raw)
        return
    if call is None:
        call = _begin(s, given, value.thought_signature)
    elif value.thought_signature is not None:
        call.entry["part"].setdefault("thoughtSignature", value.thought_signature)
    if not _grow(s, call, given):
        s.raw(raw)
    if not given.will_continue:
        end_call(s, call)


def _streaming_call(s: GenerateContentState, given: shapes.FunctionFields) -> ClientCall | None:
    """Return the call of a piece, by its id, else the current one. A name alone begins another call."""
    if given.id is not None:
        return s.streaming.get(given.id)
    call = next(reversed(s.streaming.values()), None)
    if call is None or not given.name:
        return call
    return call if given.name == call.name and given.partial_args else None


def _begin(s: GenerateContentState, given: shapes.FunctionFields, signature: str | None) -> ClientCall:
    s.end_block()
    s.count_entry()
    call_id = s.call_id(given.id)
    name = given.name or ""
    entry: JsonObject = {"call_id": call_id, "part": {"functionCall": {"name": name}}}
    if given.id is not None:
        entry["part"]["functionCall"]["id"] = given.id
    if signature is not None:
        entry["part"]["thoughtSignature"] = signature
    s.layout.append(entry)
    call = s.streaming[given.id or call_id] = ClientCall(call_id, given.id, name, entry)
    s.out.append(ToolInputStart(call_id, name, False))
    return call


def _grow(s: GenerateContentState, call: ClientCall, given: shapes.FunctionFields) -> bool:
    """Add to the arguments. Returns False if a piece does not fit."""
    arguments = call.arguments
    if given.args:
        # Whole arguments replace streamed ones.
        if arguments.is_text and not arguments.value:
            s.out.append(ToolInputDelta(call.id, jsontext.dumps(given.args).decode()))
        arguments.replace(given.args)
    for piece in given.partial_args or ():
        try:
            text = arguments.add(piece)
        except ValueError:
            return False
        if text:
            s.out.append(ToolInputDelta(call.id, text))
    return True


def end_call(s: GenerateContentState, call: ClientCall, *, is_whole: bool = True) -> None:
    """Emit `tool-input-end` and `tool-call`. A truncated call gets an input error, so that it is never executed."""
    s.streaming.pop(call.given_id or call.id, None)
    text = call.arguments.end() if is_whole else ""
    if text:
        s.out.append(ToolInputDelta(call.id, text))
    value: dict[str, Any] = call.arguments.value
    call.entry["part"]["functionCall"]["args"] = value
    s.has_client_call = True
    s.out.append(ToolInputEnd(call.id))
    if is_whole:
        tool, action = client_action(s.context, call.name, value) or (call.name, None)
        s.out.append(ToolCall(call.id, call.name, tool, False, input=value, action=action))
    else:
        so_far = jsontext.dumps(value).decode()
        s.out.append(ToolCall(call.id, call.name, call.name, False, input_error=INCOMPLETE_INPUT, input_text=so_far))


def close_calls(s: GenerateContentState, *, is_over: bool) -> None:
    """Close calls that get no more pieces. In a complete response, they are emitted as failed."""
    for call in list(s.streaming.values()):
        if is_over:
            end_call(s, call, is_whole=False)
        else:
            s.out.append(ToolInputEnd(call.id))
    s.streaming = {}


Handler = Callable[[GenerateContentState, Any, JsonObject], None]

CODE = "code_execution"

TOOL_TYPES = {
    "GOOGLE_SEARCH_WEB": "google_search",
    "GOOGLE_SEARCH_IMAGE": "google_search",
    "URL_CONTEXT": "url_context",
    "GOOGLE_MAPS": "google_maps",
    "FILE_SEARCH": "file_search",
    "MEDIA_PROCESSING": "media_processing",
}
"""The API's type of a hosted tool → its metadata key. For other types the key is the lower-case name."""


class PartRow(Struct, frozen=True):
    """How one kind of part is decoded. `tool` names the tool of its events, for the docs."""

    shape: type[shapes.Part]
    handler: Handler
    tool: str | None = None


def on_text(s: GenerateContentState, value: shapes.Text, raw: JsonObject) -> None:
    """Emit `text-*`, or `reasoning-*` for a thought. Consecutive parts form one block."""
    s.text("reasoning" if value.thought else "text", value.text, value.thought_signature)


def on_code(s: GenerateContentState, value: shapes.ExecutableCode, raw: JsonObject) -> None:
    """Emit `tool-input-*` and `tool-call`."""
    s.end_block()
    call = s.last_code = HostedCall(s.call_id(value.executable_code.id), CODE)
    s.tool_event(CODE, "interpreting", raw, call.id)
    language = named(value.executable_code.language, LANGUAGES)
    s.hosted_call(call, {"language": language, "code": value.executable_code.code})
    s.keep(raw)


def on_code_result(s: GenerateContentState, value: shapes.CodeExecutionResult, raw: JsonObject) -> None:
    """Emit `tool-result`, and `file` if the output is a `data:` URL."""
    s.end_block()
    given = value.code_execution_result
    outcome = named(given.outcome, OUTCOMES)
    is_error = outcome not in (None, "OUTCOME_OK", "OUTCOME_UNSPECIFIED")
    call = _answered(s, CODE, given.id, "failed" if is_error else "completed", raw)
    s.hosted_result(call, {"outcome": outcome, "output": given.output or ""}, is_error=is_error)
    data = media_types.from_data_url((given.output or "").strip())
    if data:
        mime_type = media_types.sniff(data)
        kind = "image" if mime_type.startswith("image/") else "file"
        name = f"{kind}_{s.files}.{media_types.extension(mime_type)}"
        s.file(mime_type, name, data=data, tool=s.portable(call.tool), call_id=call.id)


def on_tool_call(s: GenerateContentState, value: shapes.ToolCallWire, raw: JsonObject) -> None:
    """Emit `tool-input-*` and `tool-call`."""
    s.end_block()
    call = HostedCall(s.call_id(value.tool_call.id), tool_key(value.tool_call.tool_type))
    s.tool_event(call.tool, "in_progress", raw, call.id)
    s.hosted_call(call, value.tool_call.args or {})
    s.keep(raw)


def on_tool_response(s: GenerateContentState, value: shapes.ToolResponsePart, raw: JsonObject) -> None:
    """Emit `tool-result`. It may be empty if the findings arrive with the grounding."""
    s.end_block()
    given = value.tool_response
    is_error = "error" in (given.response or {})
    call = _answered(s, tool_key(given.tool_type), given.id, "failed" if is_error else "completed", raw)
    s.hosted_result(call, given.response or {}, is_error=is_error)


def _answered(s: GenerateContentState, tool: str, given_id: str | None, word: str, raw: JsonObject) -> HostedCall:
    """Emit a result's event and return its call. A call that never arrived is emitted now."""
    call = s.pending_call(tool, given_id)
    is_known = call is not None
    call = call or HostedCall(s.call_id(given_id), tool)
    s.tool_event(tool, word, raw, call.id)
    if not is_known:
        s.hosted_call(call, {})
    s.last_code = call if tool == CODE else s.last_code
    s.keep(raw)
    return call


def on_inline_data(s: GenerateContentState, value: shapes.InlineData, raw: JsonObject) -> None:
    """Emit `file`, or `custom` for an image of a thought."""
    blob = value.inline_data
    data = media_types.from_base64(blob.data)
    if data is None:
        s.raw(raw)
        return
    s.end_block()
    if value.thought:
        s.thought_image(blob.mime_type, blob.data)
        if value.thought_signature is not None:
            s.keep(raw)
        return
    kind = "image" if blob.mime_type.startswith("image/") else "file"
    name = blob.display_name or f"{kind}_{s.files}.{media_types.extension(blob.mime_type)}"
    mime_type = media_types.checked_type(data, blob.mime_type, name)
    if blob.display_name is None:
        name = f"{kind}_{s.files}.{media_types.extension(mime_type)}"
    call = s.last_code  # files follow the result of the code that wrote them
    transcription = {"audio_transcription": value.audio_transcription} if value.audio_transcription else {}
    s.file(
        mime_type,
        name,
        data=data,
        tool=s.portable(call.tool) if call else None,
        call_id=call.id if call else None,
        provider_metadata={PROVIDER_NAME: transcription} if transcription else None,
    )
    rest = {key: content for key, content in blob_fields(raw).items() if key != "data"}
    s.keep({**raw, "inlineData": rest}, file=media_types.digest(data))


def on_file_data(s: GenerateContentState, value: shapes.FileData, raw: JsonObject) -> None:
    """Emit `file` with its URL."""
    s.end_block()
    uri = value.file_data
    s.file(uri.mime_type or "application/octet-stream", uri.display_name, url=uri.file_uri)
    s.keep(raw, link=uri.file_uri)


def blob_fields(part: JsonObject) -> JsonObject:
    """Return the fields of a part's inline data."""
    blob = part.get("inlineData")
    return blob if is_object(blob) else {}


def tool_key(tool_type: str | None) -> str:
    """Return the metadata key of a hosted tool."""
    return TOOL_TYPES.get(tool_type or "", (tool_type or "unknown_tool").lower())


PARTS: dict[str, PartRow] = {
    "text": PartRow(shapes.Text, on_text),
    "functionCall": PartRow(shapes.FunctionCall, on_function_call),
    "executableCode": PartRow(shapes.ExecutableCode, on_code, CODE),
    "codeExecutionResult": PartRow(shapes.CodeExecutionResult, on_code_result, CODE),
    "toolCall": PartRow(shapes.ToolCallWire, on_tool_call, "its `toolType`"),
    "toolResponse": PartRow(shapes.ToolResponsePart, on_tool_response, "its `toolType`"),
    "inlineData": PartRow(shapes.InlineData, on_inline_data),
    "fileData": PartRow(shapes.FileData, on_file_data),
}
"""Field that names the kind of a part → how it is decoded."""

BESIDE = {
    "thought": "marks text as reasoning",
    "thoughtSignature": "is kept in the session with its part",
    "partMetadata": "is the client's own",
    "videoMetadata": "belongs to input",
    "mediaResolution": "belongs to input",
    "mediaProcessing": "belongs to input",
    "speechMetadata": "belongs to input",
    "audioTranscription": "is `provider_metadata` of its file",
}
"""Other fields of a part, each with what it becomes."""

PASSED_ON = {"functionResponse": "only the client sends it; passed on as a raw part"}
"""Known parts that become raw parts, each with its reason."""


def on_part(s: GenerateContentState, part: JsonObject) -> None:
    """Decode one part of the content."""
    kind = next((key for key in PARTS if key in part), None)
    if kind is None:
        if part.keys() <= BESIDE.keys() and isinstance(part.get("thoughtSignature"), str):
            s.keep(part)
        else:
            s.raw(part)
        return
    row = PARTS[kind]
    try:
        value = msgspec.convert(part, row.shape)
    except UNREADABLE:
        s.raw(part)
        return
    row.handler(s, value, part)
