"""Calls of the client's tools: whole, or with arguments that stream in pieces."""

from typing import Any

from sidestream import jsontext
from sidestream.jsontext import JsonObject
from sidestream.providers.google.computer import client_action
from sidestream.providers.google.decode import shapes
from sidestream.providers.google.decode.arguments import ClientCall
from sidestream.providers.google.decode.state import GenerateContentState
from sidestream.providers.shared.decoding import INCOMPLETE_INPUT
from sidestream.stream.parts import ToolCall, ToolInputDelta, ToolInputEnd, ToolInputStart


def on_function_call(s: GenerateContentState, value: shapes.FunctionCall, raw: JsonObject) -> None:
    """`tool-input-*` as the arguments come, `tool-call` when they are complete."""
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
    """The call of a piece: by its id, or the one that streams. A name alone begins another."""
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
    """Adds to the arguments. False if a piece does not fit them."""
    arguments = call.arguments
    if given.args:
        # All at once: they replace what has streamed.
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
    """`tool-input-end` and `tool-call`; a call that was cut off must never be executed."""
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
    """No more pieces come. In a complete response, a call without its end is emitted as failed."""
    for call in list(s.streaming.values()):
        if is_over:
            end_call(s, call, is_whole=False)
        else:
            s.out.append(ToolInputEnd(call.id))
    s.streaming = {}
