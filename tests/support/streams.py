"""Responses events as a server sends them, small enough to read, and the way from events to the parts of one run.

Each builder gives the events of one output item at a place in the output: its `added`, what comes between, its `done`.
`stream` puts items between `response.created` and the terminal event, with sequence numbers.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from sidestream.messages.fold import MessageFold
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import for_log
from sidestream.parts import StepFinish, StepStart, StreamPart, TextDelta, ToolInputDelta
from sidestream.providers.openai.responses.decode.decoder import ResponsesDecoder
from sidestream.providers.openai.responses.options import ResponsesContext
from sidestream.store.records import Row, Segment, pack, unpack
from sidestream.stream.grammar import check
from sidestream.testing import pixel_png
from sidestream.turn.machine import Fetch, Turn

Event = dict[str, Any]
P = TypeVar("P")

PNG = pixel_png(blue=255)
PNG_BASE64 = base64.b64encode(PNG).decode()
USAGE = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 5},
    "output_tokens": 9,
    "output_tokens_details": {"reasoning_tokens": 4},
    "total_tokens": 39,
}


# From parts to records and back


def stored(part: StreamPart) -> StreamPart:
    """The part as the event log gives it back, with what it refers to in place of references."""
    body, blobs = pack(Segment(part.type, (part,)))
    record = unpack(Row(seq=1, time=0, run="", kind="", body=body, blobs=tuple(blobs)), blobs.__getitem__)
    assert isinstance(record.body, Segment)
    (again,) = record.body.parts
    if isinstance(part, StepFinish) and part.outcome is not None and isinstance(again, StepFinish):
        assert again.outcome == for_log(part.outcome)[0]
        return replace(again, outcome=part.outcome)
    return again


# From events to parts


def decode(events: Iterable[Event | bytes], *, store: bool = True, **context: Any) -> list[StreamPart]:
    """The parts of one run whose only answer is this stream; they are legal, or GrammarError is raised."""
    decoder = ResponsesDecoder(ResponsesContext(store=store, **context))
    turn = Turn([], answers_calls=False)
    parts = [*turn.sending((), ()), *turn.opened()]
    for event in events:
        parts += turn.received(decoder.feed(wire(event)), decoder.downloads)
        if not turn.is_receiving:
            break
    else:
        parts += turn.received(decoder.close(), decoder.downloads)
    return _ended(turn, parts)


def decode_whole(response: Any, *, store: bool = True, **context: Any) -> list[StreamPart]:
    """The parts of one run whose only answer is this object, not streamed; they are legal."""
    decoder = ResponsesDecoder(ResponsesContext(store=store, **context))
    turn = Turn([], answers_calls=False)
    parts = [*turn.sending((), ()), *turn.opened()]
    told = decoder.whole(wire(response)) + decoder.close()
    return _ended(turn, parts + turn.received(told, decoder.downloads))


def _ended(turn: Turn, parts: list[StreamPart]) -> list[StreamPart]:
    if isinstance(turn.command, Fetch):
        parts += turn.all_fetched()
    check(parts)
    return parts


def items(*groups: Event | Sequence[Event], store: bool = True, **context: Any) -> list[StreamPart]:
    """What the items of a completed stream became: the parts of its step, without the response's own facts."""
    return inside(decode(stream(*groups), store=store, **context))


def inside(parts: list[StreamPart]) -> list[StreamPart]:
    """The parts of the first step but `response-metadata`."""
    start = next(n for n, part in enumerate(parts) if isinstance(part, StepStart))
    end = next((n for n, part in enumerate(parts) if isinstance(part, StepFinish)), len(parts))
    return [part for part in parts[start + 1 : end] if type(part).__name__ != "ResponseMetadata"]


def wire(event: Any) -> bytes:
    """The event's JSON in ASCII, so that lone surrogates survive; bytes are taken as they are."""
    return event if isinstance(event, bytes) else json.dumps(event).encode()


def of(parts: Iterable[StreamPart], kind: type[P]) -> list[P]:
    """The parts of one kind."""
    return [part for part in parts if isinstance(part, kind)]


def one(parts: Iterable[StreamPart], kind: type[P]) -> P:
    """The only part of one kind."""
    (found,) = of(parts, kind)
    return found


def without_events(parts: Iterable[StreamPart]) -> list[StreamPart]:
    """The parts but tool events."""
    return [part for part in parts if type(part).__name__ != "ToolEvent"]


def input_text(parts: Iterable[StreamPart], call_id: str) -> str:
    """The JSON text of a call's input as it was streamed."""
    return "".join(part.delta for part in of(parts, ToolInputDelta) if part.id == call_id)


def streamed_text(parts: Iterable[StreamPart]) -> str:
    """All text deltas, joined."""
    return "".join(part.delta for part in of(parts, TextDelta))


def messages(parts: Iterable[StreamPart]) -> list[ChatMessage]:
    """The messages that the parts fold to."""
    fold = MessageFold()
    return [message for part in parts for message in fold.feed(part)]


# From items to events


def event(name: str, **fields: Any) -> Event:
    """One event of the `response.` family."""
    return {"type": f"response.{name}", **fields}


def response(output: Sequence[Any] = (), status: str = "completed", **fields: Any) -> Event:
    """A response object."""
    head = {"id": "resp_1", "object": "response", "created_at": 1764964102, "model": "gpt-5.6", "status": status}
    return {**head, "output": [*output], "usage": USAGE, "error": None, "incomplete_details": None, **fields}


def stream(*groups: Event | Sequence[Event], end: str = "completed", **fields: Any) -> list[Event]:
    """A whole stream; the final response's output is made of the `done` events."""
    events = flat(*groups)
    done = {e["output_index"]: e["item"] for e in events if e["type"] == "response.output_item.done"}
    output = [done[index] for index in sorted(done)]
    opening = event("created", response=response(status="in_progress", usage=None))
    return numbered([opening, *events, event(end, response=response(output, end, **fields))])


def flat(*groups: Event | Sequence[Event]) -> list[Event]:
    """Events and lists of events, in one list."""
    return [e for group in groups for e in ([group] if isinstance(group, dict) else group)]


def numbered(events: Iterable[Event]) -> list[Event]:
    """The events with sequence numbers."""
    return [{**e, "sequence_number": number} for number, e in enumerate(events)]


def interleaved(*groups: Sequence[Event]) -> list[Event]:
    """One event of each group in turn."""
    longest = max(len(group) for group in groups)
    return [group[n] for n in range(longest) for group in groups if n < len(group)]


def added(index: int, item: Event) -> Event:
    return event("output_item.added", output_index=index, item=item)


def done(index: int, item: Event) -> Event:
    return event("output_item.done", output_index=index, item=item)


def around(index: int, item: Event, between: Iterable[Event] = (), **opening: Any) -> list[Event]:
    """An item's events: `added` with what `opening` says instead, those between, `done`."""
    first = {**item, "status": "in_progress", **opening} if "status" in item else {**item, **opening}
    middle = [{"output_index": index, "item_id": item["id"], **e} for e in between]
    return [added(index, first), *middle, done(index, item)]


def message(
    index: int, *deltas: str, item_id: str = "msg_1", annotations: Sequence[Event] = (), **fields: Any
) -> list[Event]:
    """A message of one text."""
    part = {"type": "output_text", "text": "".join(deltas), "annotations": [*annotations], "logprobs": []}
    between = [
        event("content_part.added", part={**part, "text": "", "annotations": []}),
        *(event("output_text.delta", delta=delta, logprobs=[]) for delta in deltas),
        *(
            event("output_text.annotation.added", annotation_index=number, annotation=annotation)
            for number, annotation in enumerate(annotations)
        ),
        event("output_text.done", text=part["text"], logprobs=[]),
        event("content_part.done", part=part),
    ]
    item = {"id": item_id, "type": "message", "status": "completed", "role": "assistant", "content": [part], **fields}
    return around(index, item, [{**e, "content_index": 0} for e in between], content=[])


def refusal(index: int, *deltas: str) -> list[Event]:
    """A message that refuses."""
    part = {"type": "refusal", "refusal": "".join(deltas)}
    between = [
        event("content_part.added", part={**part, "refusal": ""}),
        *(event("refusal.delta", delta=delta) for delta in deltas),
        event("refusal.done", refusal=part["refusal"]),
        event("content_part.done", part=part),
    ]
    item = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    return around(index, item, [{**e, "content_index": 0} for e in between], content=[])


def summary(index: int, *deltas: str) -> list[Event]:
    """One summary part of a reasoning item."""
    part = {"type": "summary_text", "text": "".join(deltas)}
    events = [
        event("reasoning_summary_part.added", part={**part, "text": ""}),
        *(event("reasoning_summary_text.delta", delta=delta) for delta in deltas),
        event("reasoning_summary_text.done", text=part["text"]),
        event("reasoning_summary_part.done", part=part),
    ]
    return [{**e, "summary_index": index} for e in events]


def thoughts(*deltas: str) -> list[Event]:
    """The raw reasoning of a reasoning item."""
    events = [
        *(event("reasoning_text.delta", delta=delta) for delta in deltas),
        event("reasoning_text.done", text="".join(deltas)),
    ]
    return [{**e, "content_index": 0} for e in events]


def reasoning(index: int, *between: Sequence[Event], encrypted: str | None = None) -> list[Event]:
    """A reasoning item; what it holds at its end is read from the events between."""
    events = flat(*between)
    parts = [e["part"] for e in events if e["type"] == "response.reasoning_summary_part.done"]
    texts = [e["text"] for e in events if e["type"] == "response.reasoning_text.done"]
    item: Event = {"id": "rs_1", "type": "reasoning", "summary": parts}
    item |= {"content": [{"type": "reasoning_text", "text": text} for text in texts]} if texts else {}
    item |= {"encrypted_content": encrypted} if encrypted else {}
    return around(index, item, events, summary=[], **({"content": []} if texts else {}))


def function_call(index: int, *deltas: str, call_id: str = "call_1", name: str = "get_weather") -> list[Event]:
    """A call of a client's function."""
    arguments = "".join(deltas)
    item = {"id": f"fc_{call_id}", "type": "function_call", "status": "completed"}
    between = [
        *(event("function_call_arguments.delta", delta=delta) for delta in deltas),
        event("function_call_arguments.done", arguments=arguments),
    ]
    return around(index, {**item, "call_id": call_id, "name": name, "arguments": arguments}, between, arguments="")


def custom_tool(index: int, *deltas: str) -> list[Event]:
    """A call of a client's custom tool."""
    item = {"id": "ct_1", "type": "custom_tool_call", "status": "completed", "call_id": "call_1", "name": "sql"}
    between = [
        *(event("custom_tool_call_input.delta", delta=delta) for delta in deltas),
        event("custom_tool_call_input.done", input="".join(deltas)),
    ]
    return around(index, {**item, "input": "".join(deltas)}, between, input="")


def stages(tool: str, *names: str) -> list[Event]:
    """The stages of a tool's item."""
    return [event(f"{tool}.{name}") for name in names]


def code(
    index: int, *deltas: str, item_id: str = "ci_1", outputs: Any = None, container: str = "cntr_1"
) -> list[Event]:
    """A run of code."""
    item = {"id": item_id, "type": "code_interpreter_call", "status": "completed", "code": "".join(deltas)}
    between = [
        *stages("code_interpreter_call", "in_progress"),
        *(event("code_interpreter_call_code.delta", delta=delta) for delta in deltas),
        event("code_interpreter_call_code.done", code="".join(deltas)),
        *stages("code_interpreter_call", "interpreting", "completed"),
    ]
    item |= {"container_id": container, "outputs": outputs}
    return around(index, item, between, code="", outputs=None)


def image(index: int, *previews: str, item_id: str = "ig_1", result: Any = PNG_BASE64, **fields: Any) -> list[Event]:
    """A picture and its previews."""
    item = {"id": item_id, "type": "image_generation_call", "status": "completed", "result": result, **fields}
    between = [
        *stages("image_generation_call", "in_progress", "generating"),
        *(
            event("image_generation_call.partial_image", partial_image_index=number, partial_image_b64=preview)
            for number, preview in enumerate(previews)
        ),
        *stages("image_generation_call", "completed"),
    ]
    return around(index, item, between, result=None)


def patch(index: int, operation: Event, *deltas: str) -> list[Event]:
    """A patch for the client to apply; its diff streams if there are deltas."""
    item = {"id": "apc_1", "type": "apply_patch_call", "status": "completed", "call_id": "call_1"}
    between = [event("apply_patch_call_operation_diff.delta", delta=delta) for delta in deltas]
    if deltas:
        between.append(event("apply_patch_call_operation_diff.done", diff="".join(deltas)))
    opening = {**operation, "diff": ""} if deltas else operation
    return around(index, {**item, "operation": operation}, between, operation=opening)


CONTAINER = {"type": "container_reference", "container_id": "cntr_1"}


def shell(index: int, *commands: Sequence[str], environment: Event | None = CONTAINER, **action: Any) -> list[Event]:
    """A call of the shell; each command is given as its deltas."""
    between: list[Event] = []
    for number, deltas in enumerate(commands):
        between += [
            event("shell_call_command.added", command_index=number, command=""),
            *(event("shell_call_command.delta", command_index=number, delta=delta) for delta in deltas),
            event("shell_call_command.done", command_index=number, command="".join(deltas)),
        ]
    whole = {"commands": ["".join(deltas) for deltas in commands], **action}
    item = {"id": "sh_1", "type": "shell_call", "status": "completed", "call_id": "call_1", "environment": environment}
    events = around(index, {**item, "action": whole}, between, action={"commands": []})
    return [{key: value for key, value in e.items() if key != "item_id"} for e in events]


def shell_output(index: int, stdout: str, outcome: Event | None = None) -> list[Event]:
    """What a shell gave back."""
    outputs = [{"stdout": stdout, "stderr": "", "outcome": outcome or {"type": "exit", "exit_code": 0}}]
    between = [
        event("shell_call_output_content.delta", command_index=0, delta={"stdout": stdout}),
        event("shell_call_output_content.done", command_index=0, output=outputs),
    ]
    item = {"id": "sho_1", "type": "shell_call_output", "status": "completed", "call_id": "call_1"}
    return around(index, {**item, "output": outputs}, between, output=[])


def mcp_call(index: int, arguments: str, **fields: Any) -> list[Event]:
    """A call of a remote MCP server's tool."""
    item: Event = {"id": "mcp_1", "type": "mcp_call", "status": "completed", "server_label": "wiki", "name": "ask"}
    item |= {"arguments": arguments, "output": "42", "error": None, "approval_request_id": None, **fields}
    stage = "failed" if item["status"] == "failed" else "completed"
    between = [
        *stages("mcp_call", "in_progress"),
        event("mcp_call_arguments.delta", delta=arguments),
        event("mcp_call_arguments.done", arguments=arguments),
        *stages("mcp_call", stage),
    ]
    return around(index, item, between, arguments="", output=None, error=None)


def web_search(index: int, item_id: str = "ws_1", **fields: Any) -> list[Event]:
    """A search of the web."""
    action = {"type": "search", "query": "news", "sources": [{"type": "url", "url": "https://example.com/a"}]}
    item = {"id": item_id, "type": "web_search_call", "status": "completed", "action": action, **fields}
    return around(index, item, stages("web_search_call", "in_progress", "searching", "completed"), action=None)


def file_search(index: int, results: Any = None) -> list[Event]:
    """A search of the user's files."""
    item = {"id": "fs_1", "type": "file_search_call", "status": "completed", "queries": ["paris"], "results": results}
    return around(index, item, stages("file_search_call", "in_progress", "searching", "completed"), queries=[])


def x_search(index: int, name: str = "x_keyword_search", kind: str = "x_search_call") -> list[Event]:
    """A search of X, in its older form."""
    item = {"id": "xs_1", "type": kind, "status": "completed", "call_id": "", "name": name}
    item["arguments"] = '{"query":"paris"}'
    known = ("in_progress", "searching", "completed") if kind == "x_search_call" else ()
    return around(index, item, stages(kind, *known))


def plain(index: int, kind: str, **fields: Any) -> list[Event]:
    """An item that only its `added` and `done` tell of."""
    return around(index, {"id": f"{kind}_1", "type": kind, **fields})


URL_CITATION = {
    "type": "url_citation",
    "url": "https://example.com/a",
    "title": "A",
    "start_index": 0,
    "end_index": 2,
}
FILE_CITATION = {"type": "file_citation", "file_id": "file_1", "filename": "a.txt", "index": 2}
CONTAINER_CITATION = {
    "type": "container_file_citation",
    "container_id": "cntr_1",
    "file_id": "cfile_1",
    "filename": "plot.png",
    "start_index": 1,
    "end_index": 3,
}
FILE_PATH = {"type": "file_path", "file_id": "file_2", "index": 1}

_SHELL_ACTION = {"type": "exec", "command": ["ls", "-l"], "env": {"A": "b"}, "timeout_ms": 1000}
_CLICK = {"type": "click", "button": "left", "x": 1, "y": 2}
_SCREENSHOT = {"type": "computer_screenshot", "image_url": "data:image/png;base64," + PNG_BASE64}

EVERY_ITEM: dict[str, list[Event]] = {
    "message": message(0, "Hi ", "you", annotations=[URL_CITATION, CONTAINER_CITATION], phase="final_answer"),
    "reasoning": reasoning(0, summary(0, "First ", "thought"), thoughts("raw ", "thought"), encrypted="gAAA"),
    "function_call": function_call(0, '{"city":', '"Rome"}'),
    "custom_tool_call": custom_tool(0, "SELECT ", '"a"'),
    "web_search_call": web_search(0),
    "x_search_call": x_search(0),
    "view_image_call": x_search(0, "view_image", "view_image_call"),
    "view_x_video_call": x_search(0, "view_x_video", "view_x_video_call"),
    "code_execution_call": around(
        0,
        {"id": "ci_1", "type": "code_execution_call", "status": "completed", "arguments": '{"code":"print(1)"}'},
        stages("code_execution_call", "in_progress", "executing", "completed"),
    ),
    "file_search_call": file_search(0, [{"file_id": "file_1", "filename": "a.txt", "score": 0.5, "text": "Paris"}]),
    "code_interpreter_call": code(0, "print(", '"hi")\n', outputs=[{"type": "logs", "logs": "hi\n"}]),
    "image_generation_call": image(0, PNG_BASE64, output_format="png", size="1024x1024"),
    "mcp_call": mcp_call(0, '{"question":"why"}'),
    "mcp_list_tools": around(
        0,
        {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "wiki", "tools": [{"name": "ask"}]},
        stages("mcp_list_tools", "in_progress", "completed"),
        tools=[],
    ),
    "mcp_approval_request": plain(0, "mcp_approval_request", server_label="wiki", name="ask", arguments='{"q":1}'),
    "shell_call": shell(0, ["echo ", "hi"], ["ls"], timeout_ms=1000),
    "shell_call_output": [*shell(0, ["ls"]), *shell_output(1, "a.txt\n")],
    "apply_patch_call": patch(0, {"type": "update_file", "path": "a.py", "diff": "-a\n+b"}, "-a\n", "+b"),
    "apply_patch_call_output": plain(0, "apply_patch_call_output", call_id="call_0", status="completed", output="ok"),
    "local_shell_call": plain(0, "local_shell_call", call_id="call_1", status="completed", action=_SHELL_ACTION),
    "local_shell_call_output": plain(0, "local_shell_call_output", output="{}"),
    "computer_call": plain(
        0,
        "computer_call",
        call_id="call_1",
        status="completed",
        action=_CLICK,
        pending_safety_checks=[{"id": "sc_1", "code": "malicious", "message": "Sure?"}],
    ),
    "computer_call_output": plain(0, "computer_call_output", call_id="call_0", output=_SCREENSHOT),
    "tool_search_call": plain(0, "tool_search_call", call_id=None, execution="server", arguments={"paths": ["crm"]}),
    "tool_search_output": [
        *plain(0, "tool_search_call", call_id=None, execution="server", arguments={"paths": ["crm"]}),
        *plain(1, "tool_search_output", call_id=None, execution="server", tools=[{"type": "function", "name": "crm"}]),
    ],
    "program": plain(0, "program", call_id="call_1", code="await tools.f({})", fingerprint="gAAA"),
    "program_output": [
        *plain(0, "program", call_id="call_1", code="await tools.f({})", fingerprint="gAAA"),
        *plain(1, "program_output", call_id="call_1", status="completed", result="{}"),
    ],
    "compaction": [
        event("compaction.compacting", output_index=0, item_id="compaction_1"),
        *plain(0, "compaction", encrypted_content="gAAA"),
    ],
    "additional_tools": plain(0, "additional_tools", role="developer", tools=[{"type": "function", "name": "f"}]),
    "configuration_update": plain(0, "configuration_update", reasoning={"effort": "low"}),
    "function_call_output": plain(0, "function_call_output", call_id="call_0", output="sunny"),
    "custom_tool_call_output": plain(0, "custom_tool_call_output", call_id="call_0", output="3 rows"),
    "mcp_approval_response": plain(0, "mcp_approval_response", approval_request_id="mcpr_0", approve=True),
}
"""Output item type → the events of such an item, with what it needs before it."""
