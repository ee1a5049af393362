"""What a call that runs here has in common with a hosted one: its parts, without what may differ."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from sidestream import File, Source, StreamPart, ToolResult
from sidestream.parts import TextEnd, ToolCall, ToolEvent, ToolInputDelta, ToolInputEnd, ToolInputStart

ALLOWED = {
    "provider_executed": "says who ran the call",
    "ids": "a call has the id of the function call, not that of an item; events have no sequence number",
    "steps": "a call that runs here ends a step, so its result comes between two steps",
    "deltas": "the model's own deltas are cut elsewhere, and a provider may send the input of a call as a whole",
    "order": "the input of a hosted call may be complete before, while or after the tool works: that of a search is known "
    "when it has ended. A file that the code of a call has made comes before the result that mentions it",
    "input": "a hosted call's input has what the provider adds: the container, the type of a search, a limit of output; "
    "what a model writes for tool search and image generation are arguments of a function of ours",
    "extras": "a result or an item from here may have more fields: cite, notes, files, queries, text, by, container_id",
    "nulls": "fields of an item that are null, repeat the request (environment, max_output_length), or that only the "
    "provider can read (fingerprint)",
    "markdown": "a fetched page is Markdown here, whatever kind of text it is at a provider",
    "status": "an item of output is in progress when it is added, since the tool works then; a provider may add it when "
    "the tool has ended",
    "logs": "what code prints arrives while it runs; at a provider when it has ended. A delegate's finish is forwarded",
    "span": "a hosted file citation is a point behind the sentence; here it is the sentence, with the same end",
    "checked": "a source from here says what was established about it, and has the text that it cites",
    "events": "the Responses API hosts no web fetch and no memory: the events of a fetch have the same form, a memory has "
    "none. What Anthropic sends on the way are the blocks of its messages",
}
"""What may differ → why. This is the whole list."""

_EXTRA_STAGES = {"logs", "finish"}
_UNIMPORTANT = {
    "environment",
    "max_output_length",
    "fingerprint",
}


class Compared(Struct, frozen=True, kw_only=True):
    """One call of a run, and what its answer cites."""

    order: list[str]
    """Its parts in order, but for those of its input."""
    input_parts: list[str]
    streamed: str
    """The code that was streamed as events."""
    call: ToolCall
    result: Any
    items: list[set[str]]
    """The fields of its finished items."""
    sources: list[dict[str, Any]]
    annotations: list[set[str]]


def compared(parts: list[StreamPart], key: str, number: int = 0) -> Compared:
    """The call with this number of a tool, reduced to what must be the same."""
    call = [part for part in parts if isinstance(part, ToolCall) and part.tool == key][number]
    own = [part for part in parts if _call_of(part) == call.id]
    (result,) = (part for part in own if isinstance(part, ToolResult) and not part.preliminary)
    assert {part.tool for part in own if isinstance(part, ToolEvent | ToolResult | File)} == {key}
    events = [part for part in own if isinstance(part, ToolEvent)]
    inputs = [part for part in own if _is_input(part)]
    # A file has no fixed place: it is compared behind everything else.
    order = [part for part in own if not _is_input(part) and not isinstance(part, File | ToolInputDelta)]
    order += [part for part in own if isinstance(part, File)]
    texts = [part for part in parts if isinstance(part, TextEnd)]
    return Compared(
        order=[words for part in order if (words := _words(part))],
        input_parts=sorted(words for part in inputs if (words := _words(part))),
        streamed="".join(_code(part) for part in events),
        call=call,
        result=result.result,
        items=[fields_of(part.event["item"]) for part in events if part.event["type"] == "response.output_item.done"],
        sources=[_source(part) for part in parts if isinstance(part, Source) and part.text_id is not None],
        annotations=[set(entry) for text in texts for entry in text.annotations],
    )


def fields_of(value: dict[str, Any]) -> set[str]:
    """The fields that count."""
    return {name for name, content in value.items() if content is not None and name not in _UNIMPORTANT}


def file_kind(mime_type: str) -> str:
    """The mime type; `text` for all texts."""
    return "text" if mime_type.startswith("text/") else mime_type


def _call_of(part: StreamPart) -> str | None:
    match part:
        case ToolInputStart() | ToolInputDelta() | ToolInputEnd() | ToolCall() | ToolResult():
            return part.id
        case ToolEvent() | File():
            return part.call_id
        case _:
            return None


def _is_input(part: StreamPart) -> bool:
    """True for parts that say that the input is complete."""
    if isinstance(part, ToolEvent):
        is_code = part.provider_stage == "done" and "item" not in part.event
        return is_code and "output_content" not in part.event["type"]
    return isinstance(part, ToolInputStart | ToolInputEnd | ToolCall)


def _words(part: StreamPart) -> str | None:
    match part:
        case ToolEvent():
            if part.provider_stage in _EXTRA_STAGES or part.provider_stage == "delta":
                return None
            kind = str(part.event["type"]).removeprefix("response.")
            item = part.event.get("item")
            if not isinstance(item, dict):
                return f"event {part.provider_stage} {kind}"
            failed = (
                " failed" if part.provider_stage == "done" and item.get("status") in ("failed", "incomplete") else ""
            )
            is_call = part.provider_stage == "added" and not item["type"].endswith("_output")
            added = f" {item.get('status')}" if is_call else ""
            return f"event {part.provider_stage} {kind} {item['type']}{added}{failed}"
        case ToolResult():
            return f"tool-result preliminary={part.preliminary} error={part.is_error}"
        case File():
            return f"file {file_kind(part.mime_type)} {'url' if part.data is None else 'data'}"
        case ToolInputStart() | ToolCall():
            return f"{part.type} {part.name}"
        case _:
            return part.type


def _code(part: ToolEvent) -> str:
    delta = part.event.get("delta")
    return delta if part.provider_stage == "delta" and isinstance(delta, str) else ""


def _source(part: Source) -> dict[str, Any]:
    return {"kind": part.kind, "title": part.title, "url": part.url, "end": part.end}


def without(parts: Iterable[str], kinds: tuple[str, ...]) -> list[str]:
    """The parts but for those whose words begin so."""
    return [part for part in parts if not part.startswith(kinds)]
