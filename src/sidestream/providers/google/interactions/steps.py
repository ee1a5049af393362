"""Handlers for steps and their deltas, by type. Citations become sources, and media become files."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.jsontext import JsonObject, is_array, is_object, objects
from sidestream.providers.google.context import some_text
from sidestream.providers.google.decode.outcome import error_of
from sidestream.providers.google.decode.state import DRAFT_PIECES, GeminiBlock
from sidestream.providers.google.interactions.state import InteractionState, Step
from sidestream.providers.shared.decoding import UNREADABLE, input_fields


class InteractionsEvent(Struct, kw_only=True):
    """Fields that all events may have."""

    event_id: str | None = None


class InteractionSnapshot(InteractionsEvent, kw_only=True):
    """The events interaction.created and interaction.completed."""

    interaction: dict[str, Any]


class StatusEvent(InteractionsEvent, kw_only=True):
    status: str
    interaction_id: str | None = None
    continuation_token: str | None = None


class StepStartEvent(InteractionsEvent, kw_only=True):
    index: int
    step: dict[str, Any]


class StepDeltaEvent(InteractionsEvent, kw_only=True):
    index: int
    delta: dict[str, Any]
    metadata: dict[str, Any] | None = None


class StepStopEvent(InteractionsEvent, kw_only=True):
    index: int
    usage: dict[str, Any] | None = None


class InteractionsError(InteractionsEvent, kw_only=True):
    error: dict[str, Any] | None = None


class StepTextDelta(Struct, kw_only=True):
    text: str


class AnnotationsDelta(Struct, kw_only=True):
    annotations: list[dict[str, Any]]


class ArgumentsDelta(Struct, kw_only=True):
    arguments: str


class SummaryDelta(Struct, kw_only=True):
    content: dict[str, Any]


class StepSignatureDelta(Struct, kw_only=True):
    signature: str


class CallDelta(Struct, kw_only=True):
    """Fields of a hosted tool call."""

    arguments: dict[str, Any] | None = None


class ResultDelta(Struct, kw_only=True):
    """Fields of a hosted tool result."""

    result: Any = None
    is_error: bool | None = None


class MediaDelta(Struct, kw_only=True):
    """An image, audio, video or document."""

    data: str | None = None
    uri: str | None = None
    mime_type: str | None = None


def on_annotations(s: InteractionState, step: Step, value: AnnotationsDelta, raw: JsonObject) -> None:
    """Emit `source`."""
    for annotation in value.annotations:
        kind = str(annotation.get("type"))
        if kind in SOURCES:
            _source(s, step.block, SOURCES[kind](annotation), annotation)
        elif kind not in NO_SOURCES:
            s.raw({"annotation": annotation})
        elif step.block is not None:
            step.block.annotations.append(annotation)


def _source(s: InteractionState, block: GeminiBlock | None, fields: JsonObject, annotation: JsonObject) -> None:
    place: JsonObject = {}
    start, end = annotation.get("start_index") or 0, annotation.get("end_index")
    if block is not None:
        block.annotations.append(annotation)
        place["text_id"] = block.id
        if type(start) is int and type(end) is int:
            place["start"], place["end"], cited = block.characters(start, end)
            place["cited_text"] = cited or None
    known = {"type", "start_index", "end_index", "url", "title", "name", "document_uri", "file_name"}
    s.source({**fields, **place}, {key: content for key, content in annotation.items() if key not in known})


SOURCES: dict[str, Callable[[JsonObject], JsonObject]] = {
    "url_citation": lambda a: {"kind": "url", "url": some_text(a, "url"), "title": some_text(a, "title")},
    "file_citation": lambda a: {
        "kind": "document",
        "url": some_text(a, "document_uri"),
        "file_id": some_text(a, "media_id"),
        "title": some_text(a, "file_name"),
    },
    "place_citation": lambda a: {
        "kind": "place",
        "url": some_text(a, "url"),
        "file_id": some_text(a, "place_id"),
        "title": some_text(a, "name"),
    },
}
"""Annotation type → the fields of its source."""

NO_SOURCES = {
    "speech_metadata": "is how text is spoken; an annotation of the `text-end`",
    "word_info": "is when a word is spoken; an annotation of the `text-end`",
}
"""Annotations that cite nothing, each with what it becomes."""


def on_file(s: InteractionState, step: Step, value: MediaDelta, raw: JsonObject) -> None:
    """Emit `file`."""
    s.end_block(step)
    if not media(s, step, raw):
        s.raw(raw)


def media(s: InteractionState, step: Step, content: JsonObject) -> bool:
    """Emit a file. Returns False if the content holds none."""
    data, uri = some_text(content, "data"), some_text(content, "uri")
    decoded = media_types.from_base64(data) if data else None
    if decoded is None and uri is None:
        return False
    claimed = some_text(content, "mime_type") or "application/octet-stream"
    mime_type = media_types.checked_type(decoded, claimed) if decoded else claimed
    kind = "image" if mime_type.startswith("image/") else "file"
    is_tools = step.kind != "model_output"
    s.file(
        mime_type,
        f"{kind}_{s.files}.{media_types.extension(mime_type)}",
        data=decoded,
        url=None if decoded else uri,
        tool=s.portable(step.tool) if is_tools else None,
        call_id=step.call_id if is_tools else None,
    )
    kept = {key: value for key, value in content.items() if key != "data"}
    step.content.append({**kept, "file": media_types.digest(decoded)} if decoded else kept)
    return True


StepHandler = Callable[[InteractionState, Step], None]
DeltaHandler = Callable[[InteractionState, Step, Any, JsonObject], None]


class StepRow(Struct, frozen=True, kw_only=True):
    """How one type of step is decoded. `tool` is the metadata key of its events. Steps without it have no events."""

    start: StepHandler
    stop: StepHandler
    tool: str | None = None


class StepDeltaRow(Struct, frozen=True):
    """How one type of delta is decoded. `step` is the type of the step that it opens if none has started."""

    shape: Any
    handler: DeltaHandler
    step: str | None = None


def _output_start(s: InteractionState, step: Step) -> None:
    """Emit the content that came with the start, as if it had just streamed."""
    _whole_output(s, step, objects(step.raw.pop("content", None)))


def _whole_output(s: InteractionState, step: Step, contents: list[JsonObject]) -> None:
    for content in contents:
        kind = str(content.get("type"))
        if kind not in DELTAS or DELTAS[kind].step != "model_output" or not on_delta(s, step, content):
            s.raw(content)
        annotations = content.get("annotations")
        if kind == "text" and annotations and not on_delta(s, step, {**content, "type": "text_annotation_delta"}):
            s.raw({"annotations": annotations})
        s.end_block(step)


def _output_stop(s: InteractionState, step: Step) -> None:
    """Emit `text-end`."""
    s.end_block(step)
    if is_object(step.raw.get("error")):
        s.error = error_of(step.raw["error"], "the model's output failed")
    step.raw["content"] = [_whole(content) for content in step.content]


def _whole(content: JsonObject) -> JsonObject:
    """Return content of the output, with the pieces of a draft joined to its text."""
    return {"type": "text", "text": "".join(content[DRAFT_PIECES])} if DRAFT_PIECES in content else content


def _thought_start(s: InteractionState, step: Step) -> None:
    """Emit the content that came with the start, as if it had just streamed."""
    for content in objects(step.raw.pop("summary", None)):
        if not on_delta(s, step, {"type": "thought_summary", "content": content}):
            s.raw(content)


def _thought_stop(s: InteractionState, step: Step) -> None:
    """Emit `reasoning-end` with its signature."""
    s.end_block(step)
    if step.content:
        step.raw["summary"] = step.content


def _call_start(s: InteractionState, step: Step) -> None:
    """Emit nothing yet, since the call is emitted with its arguments."""
    step.call_id = s.unique_id(some_text(step.raw, "id") or s.made_call_id(step))
    step.name = some_text(step.raw, "name") or step.tool
    s.begin_call(step)


def _function_start(s: InteractionState, step: Step) -> None:
    """Emit `tool-input-start`."""
    _call_start(s, step)
    step.tool = step.name
    s.open_input(step)


def _function_stop(s: InteractionState, step: Step) -> None:
    """Emit `tool-input-end` and `tool-call`."""
    _finish_call(s, step)


def _call_stop(s: InteractionState, step: Step) -> None:
    """Emit `tool-input-*` and `tool-call`."""
    _finish_call(s, step)


def _finish_call(s: InteractionState, step: Step) -> None:
    text = "".join(step.deltas)
    if not text.strip():
        step.deltas.clear()
        s.call(step, input=jsontext.as_object(step.raw.get("arguments")))
        return
    fields = input_fields(text)
    if "input" in fields:
        step.raw["arguments"] = fields["input"]
    s.call(step, **fields)


def _result_start(s: InteractionState, step: Step) -> None:
    """Emit nothing yet, since the result is emitted when it is complete."""
    given = some_text(step.raw, "call_id")
    call = s.begun.get(given) if given is not None else s.last_unanswered(step.tool)
    call = call or s.taken_up(step.tool, given)
    step.call_id = call.call_id if call is not None else s.unique_id(given or s.made_call_id(step))
    step.name = (call.name if call is not None else None) or some_text(step.raw, "name") or step.tool


def _result_stop(s: InteractionState, step: Step) -> None:
    """Emit `tool-result`, and `file` for each file that code wrote."""
    value = step.raw.get("result")
    call = s.begun.get(step.call_id)
    if call is not None:
        end_step(s, call)
    s.result(step, value, is_error=step.raw.get("is_error") is True)
    if step.tool == "code_execution":
        for content in objects(value):
            if content.get("type") != "text":
                media(s, step, content)


def _text(s: InteractionState, step: Step, value: StepTextDelta, raw: JsonObject) -> None:
    """Emit `text-delta`."""
    s.text(step, "text", value.text)


def _summary(s: InteractionState, step: Step, value: SummaryDelta, raw: JsonObject) -> None:
    """Emit `reasoning-delta`, or `custom` for an image."""
    text, image = value.content.get("text"), value.content.get("data")
    if isinstance(text, str):
        s.text(step, "reasoning", text)
    elif isinstance(image, str) and media_types.from_base64(image) is not None:
        s.thought_image(value.content.get("mime_type"), image)
    else:
        s.raw(raw)


def _signature(s: InteractionState, step: Step, value: StepSignatureDelta, raw: JsonObject) -> None:
    """Store the signature for `reasoning-end`."""
    step.raw["signature"] = value.signature


def _arguments(s: InteractionState, step: Step, value: ArgumentsDelta, raw: JsonObject) -> None:
    """Emit `tool-input-delta`."""
    if not step.call_id:
        s.raw(raw)
        return
    s.open_input(step)
    s.input_delta(step, value.arguments)


def _fields(s: InteractionState, step: Step, value: Any, raw: JsonObject) -> None:
    """Store fields of the call or result, which is emitted at its end."""
    old, new = step.raw.get("result"), raw.get("result")
    step.raw |= {key: content for key, content in raw.items() if key != "type" and content is not None}
    if is_array(old) and is_array(new):
        step.raw["result"] = old if step.owns_result else [*old]
        step.raw["result"].extend(new)
        step.owns_result = True
    elif new is not None:
        step.owns_result = False


_HOSTED = {
    "code_execution": "code_execution",
    "google_search": "google_search",
    "url_context": "url_context",
    "file_search": "file_search",
    "google_maps": "google_maps",
    "mcp_server_tool": "mcp",
    "retrieval": "retrieval",
    "processing": "processing",
}
"""Name of a hosted tool in its steps → its metadata key."""

STEPS: dict[str, StepRow] = {
    "model_output": StepRow(start=_output_start, stop=_output_stop),
    "thought": StepRow(start=_thought_start, stop=_thought_stop),
    "function_call": StepRow(start=_function_start, stop=_function_stop),
    **{f"{name}_call": StepRow(start=_call_start, stop=_call_stop, tool=tool) for name, tool in _HOSTED.items()},
    **{f"{name}_result": StepRow(start=_result_start, stop=_result_stop, tool=tool) for name, tool in _HOSTED.items()},
}
"""Step type → how it is decoded."""

IGNORED_STEPS = {
    "user_input": "is the client's own",
    "function_result": "is the client's own",
}
"""Steps that become no part, each with its reason."""

DELTAS: dict[str, StepDeltaRow] = {
    "text": StepDeltaRow(StepTextDelta, _text, "model_output"),
    "text_annotation_delta": StepDeltaRow(AnnotationsDelta, on_annotations, "model_output"),
    "thought_summary": StepDeltaRow(SummaryDelta, _summary, "thought"),
    "thought_signature": StepDeltaRow(StepSignatureDelta, _signature, "thought"),
    "arguments_delta": StepDeltaRow(ArgumentsDelta, _arguments),
    "image": StepDeltaRow(MediaDelta, on_file, "model_output"),
    "audio": StepDeltaRow(MediaDelta, on_file, "model_output"),
    "video": StepDeltaRow(MediaDelta, on_file, "model_output"),
    "document": StepDeltaRow(MediaDelta, on_file, "model_output"),
    **{f"{name}_call": StepDeltaRow(CallDelta, _fields, f"{name}_call") for name in _HOSTED},
    **{f"{name}_result": StepDeltaRow(ResultDelta, _fields, f"{name}_result") for name in _HOSTED},
}
"""Delta type → how it is decoded."""

IGNORED_DELTAS = {"function_result": "is the client's own"}
"""Deltas that become no part, each with its reason."""


def on_delta(s: InteractionState, step: Step, delta: JsonObject) -> bool:
    """Apply a delta to a step. Returns False, without changing anything, if the delta is unreadable."""
    row = DELTAS.get(str(delta.get("type")))
    if row is None:
        return False
    try:
        value = msgspec.convert(delta, row.shape)
    except UNREADABLE:
        return False
    row.handler(s, step, value, delta)
    return True


def begin_step(s: InteractionState, index: int, raw: JsonObject) -> Step | None:
    """Start a step. Returns None if its type is unknown."""
    kind = str(raw.get("type"))
    row = STEPS.get(kind)
    if row is None:
        return None
    s.count_entry()
    step = s.steps[index] = Step(index, kind, dict(raw))
    step.tool = row.tool or ""
    s.order.append(step)
    row.start(s, step)
    return step


def complete_step(s: InteractionState, step: Step, final: JsonObject) -> None:
    """End a step that was only partly streamed, completing it from the whole interaction."""
    if step.kind == "model_output":
        contents, known = objects(final.get("content")), max(len(step.content) - 1, 0)
        if step.block is not None and known < len(contents):
            _rest(s, step, some_text(contents[known], "text") or "")
        _whole_output(s, step, contents[len(step.content) :])
    elif step.kind == "thought":
        summary = "".join(some_text(content, "text") or "" for content in objects(final.get("summary")))
        _rest(s, step, summary)
    elif step.call_id and is_object(final.get("arguments")):
        s.call(step, input=final["arguments"])
    step.raw |= {key: value for key, value in final.items() if key not in ("content", "summary")}
    end_step(s, step)


def _rest(s: InteractionState, step: Step, final: str) -> None:
    """Extend the open block of a step to its final text, or replace its text."""
    block = step.block
    if block is None or final.startswith(block.text):
        family = "text" if step.kind == "model_output" else "reasoning"
        s.text(step, family, final if block is None else final[len(block.text) :])
    else:
        step.block = None
        s.close_block(block, final)


def end_step(s: InteractionState, step: Step) -> None:
    """End a step, once."""
    if not step.done:
        step.done = True
        STEPS[step.kind].stop(s, step)
        s.end_block(step)  # also a block that does not belong in this type of step
