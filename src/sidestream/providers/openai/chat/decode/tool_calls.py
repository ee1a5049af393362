"""Handlers that join tool calls from pieces, by index, or by id if the server sends no index."""

from typing import Any

from sidestream import jsontext
from sidestream.parts import ToolCall, ToolInputDelta, ToolInputEnd, ToolInputStart
from sidestream.providers.openai.chat.decode import state
from sidestream.providers.openai.chat.decode.state import CallState, CompletionsState
from sidestream.providers.shared.decoding import CUSTOM_TOOL, INCOMPLETE_INPUT, input_fields, parse_input

MAX_NAME = 1024
"""Length in characters at which a tool's name stops growing. Servers allow 64 to 128."""


def on_tool_calls(s: CompletionsState, entries: list[state.ToolCallPiece]) -> None:
    """Emit `tool-input-start` and `tool-input-delta`. `tool-input-end` and `tool-call` follow at the end."""
    for entry in entries:
        name, text = _pieces(entry)
        if not (name or text or entry.id):
            continue
        call = _call_of(s, entry, name)
        if entry.id and not call.given_id:
            call.given_id = entry.id
            s.calls_by_id.setdefault(entry.id, call)
        call.is_custom = call.is_custom or entry.is_custom
        _grow(s, call, name, text)


def on_function_call(s: CompletionsState, value: state.Function) -> None:
    """Handle the older form of `tool_calls`, with at most one call per message."""
    entry = state.ToolCallPiece(function=value, index=0)
    on_tool_calls(s, [entry])


def _pieces(entry: state.ToolCallPiece) -> tuple[str, str]:
    if entry.custom is not None and entry.is_custom:
        return entry.custom.name or "", entry.custom.input or ""
    function = entry.function or state.Function()
    given = function.arguments or ""
    return function.name or "", given if isinstance(given, str) else jsontext.dumps(given).decode()


def _call_of(s: CompletionsState, entry: state.ToolCallPiece, name: str) -> CallState:
    """Return the call that a piece belongs to, or a new one."""
    if s.is_whole:
        return _new(s, None)
    if entry.index is None:
        found = s.calls_by_id.get(entry.id or "")
        last = s.calls[-1] if s.calls and not entry.id else None
        # Without an id, a name after arguments starts the next call.
        is_same = last is not None and not (name and last.pieces)
        return found or (last if last is not None and is_same else _new(s, None))
    found = s.calls_at.get(entry.index)
    # Some servers give all calls the same index. A changed id without a name is still the same call.
    is_other = found is not None and bool(name and entry.id and found.given_id and entry.id != found.given_id)
    return _new(s, entry.index) if found is None or is_other else found


def _new(s: CompletionsState, index: int | None) -> CallState:
    s.count_entry()
    call = CallState(len(s.calls))
    s.calls.append(call)
    if index is not None:
        s.calls_at[index] = call
    return call


def _grow(s: CompletionsState, call: CallState, name: str, text: str) -> None:
    if name and not call.is_started and name != call.name and len(call.name) < MAX_NAME:
        call.name += name
    if text and _is_repeated(call, text):
        s.raw_chunk()
        return
    if text:
        call.pieces.append(text)
        call.length += len(text)
    if call.name and call.pieces:
        _emit_input(s, call)


def _is_repeated(call: CallState, text: str) -> bool:
    """Return whether a piece repeats the complete arguments after their pieces."""
    if call.is_custom or len(text) < 2 or len(text) != call.length or text != call.text:
        return False
    return parse_input(text)[1] is None


def _emit_input(s: CompletionsState, call: CallState) -> None:
    """Emit the pieces of the input that were not emitted yet."""
    if not call.is_started:
        s.end_reasoning()
        call.is_started = call.is_open = True
        call.part_id = s.own_id(call)
        s.out.append(ToolInputStart(call.part_id, call.name, False, CUSTOM_TOOL if call.is_custom else None))
        if call.is_custom:
            s.out.append(ToolInputDelta(call.part_id, '"'))
    for piece in call.pieces[call.emitted :]:
        s.out.append(ToolInputDelta(call.part_id, jsontext.escape(piece) if call.is_custom else piece))
    call.emitted = len(call.pieces)


def end_inputs(s: CompletionsState) -> None:
    """End the open inputs of a failed response, whose calls must not be executed."""
    for call in s.calls:
        if call.is_open:
            call.is_open = False
            s.out.append(ToolInputEnd(call.part_id))
    s.out += [ToolInputEnd(call.id) for call in s.hosted.values() if not call.is_called]


def end_calls(s: CompletionsState, *, is_cut: bool) -> None:
    """Emit the calls of a complete response.

    `is_cut` means that a limit ended the response, so that the last input may be incomplete.
    """
    for call in s.calls:
        _emit_input(s, call)
        _rest(s, call)
        call.is_open = False
        s.out.append(ToolInputEnd(call.part_id))
        content = _content(call, is_cut=is_cut and call is s.calls[-1])
        if call.is_custom:
            content |= {"provider_tool": call.name}
        tool = CUSTOM_TOOL if call.is_custom else call.name
        s.out.append(ToolCall(call.part_id, call.name, tool, False, **content))


def _rest(s: CompletionsState, call: CallState) -> None:
    """Complete the JSON text of the input."""
    if call.is_custom:
        s.out.append(ToolInputDelta(call.part_id, '"'))
    elif not call.text.strip():
        s.out.append(ToolInputDelta(call.part_id, "{}"))


def _content(call: CallState, *, is_cut: bool) -> dict[str, Any]:
    text = call.text
    if is_cut and (call.is_custom or not text.strip()):
        return {"input_error": INCOMPLETE_INPUT, "input_text": text}
    if call.is_custom:
        return {"input": text}
    return input_fields(text)
