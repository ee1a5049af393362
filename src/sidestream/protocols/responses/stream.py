"""Emission of one response's events, in an order that the code enforces.

An item is added before its content, and a content part before its deltas. A part is done before its item, with the
text of its deltas. Sequence numbers start at 0 and have no gaps. A call that would break this order raises
`EventOrderError`.
"""

from typing import Any, Final, Literal

from sidestream.jsontext import Json, JsonObject
from sidestream.protocols.responses.items import item_id
from sidestream.protocols.responses.object import Dialect, ResponseHead, ResponseOutcome, error_event

PartKind = Literal["output_text", "refusal", "summary_text"]

_TEXTS: Final[dict[str, tuple[str, str, str, str]]] = {
    "output_text": ("content", "response.content_part", "response.output_text", "text"),
    "refusal": ("content", "response.content_part", "response.refusal", "refusal"),
    "summary_text": ("summary", "response.reasoning_summary_part", "response.reasoning_summary_text", "text"),
}
"""Part kind → its list in the item, prefixes of the part's events and of its text's, and the text field."""
_INPUTS: Final = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "mcp_call": ("response.mcp_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
    "code_interpreter_call": ("response.code_interpreter_call_code", "code"),
}
"""Item type → prefix of its input events, and the input field."""
_STAGES: Final = {
    "web_search_call": ("in_progress", "searching", "completed"),
    "file_search_call": ("in_progress", "searching", "completed"),
    "code_interpreter_call": ("in_progress", "interpreting", "completed"),
    "image_generation_call": ("in_progress", "generating", "partial_image", "completed"),
    "mcp_call": ("in_progress", "completed", "failed"),
    "mcp_list_tools": ("in_progress", "completed", "failed"),
}
"""Item type → its stages, in order."""


class EventOrderError(AssertionError):
    """An event was emitted out of order, which is a bug in the caller and never caused by a provider."""


class OpenPart:
    """A content part of an item, while it is streamed."""

    __slots__ = ("annotations", "index", "is_open", "kind", "logprobs", "texts")

    def __init__(self, kind: PartKind, index: int) -> None:
        self.kind: PartKind = kind
        self.index = index
        self.texts: list[str] = []
        self.annotations: list[Json] = []
        self.logprobs: list[Json] = []
        self.is_open = True

    @property
    def text(self) -> str:
        """The text streamed so far."""
        if len(self.texts) > 1:
            self.texts = ["".join(self.texts)]
        return self.texts[0] if self.texts else ""

    @property
    def content(self) -> JsonObject:
        """The part as it appears in the item."""
        field = _TEXTS[self.kind][3]
        if self.kind == "output_text":
            return {
                "type": self.kind,
                "text": self.text,
                "annotations": list(self.annotations),
                "logprobs": list(self.logprobs),
            }
        return {"type": self.kind, field: self.text}


class OpenItem:
    """An output item, while it is streamed."""

    __slots__ = ("fields", "has_input", "index", "input", "is_open", "parts", "stage")

    def __init__(self, index: int, fields: JsonObject) -> None:
        self.index = index
        self.fields = fields
        self.parts: list[OpenPart] = []
        self.input: list[str] = []
        self.has_input = False
        """Whether the input is complete."""
        self.stage = -1
        """Index of the last stage reported; -1 means none."""
        self.is_open = True

    @property
    def id(self) -> str:
        return self.fields["id"]

    @property
    def type(self) -> str:
        return self.fields["type"]

    @property
    def item(self) -> JsonObject:
        """The current item object."""
        if not self.parts:
            return dict(self.fields)
        place = _TEXTS[self.parts[0].kind][0]
        return {**self.fields, place: [part.content for part in self.parts]}


class ResponseStream:
    """An emitter of one response's events, which collects them until `take` is called."""

    def __init__(self, head: ResponseHead, dialect: Dialect = "openai") -> None:
        self.head = head
        self.dialect: Dialect = dialect
        self.items: list[OpenItem] = []
        self.sequence = 0
        self.is_begun = False
        self.is_cut = False
        """Whether the response ended early, so that its last item may be incomplete."""
        self.outcome: ResponseOutcome | None = None
        """Outcome of the response; None means it has not ended."""
        self._out: list[JsonObject] = []

    def take(self) -> list[JsonObject]:
        """Return the events emitted since the last call."""
        out, self._out = self._out, []
        return out

    @property
    def output(self) -> list[JsonObject]:
        """The items so far."""
        return [item.item for item in self.items]

    @property
    def response(self) -> JsonObject:
        """The current response object."""
        return self.head.response(self.outcome or ResponseOutcome("in_progress"), self.output, self.dialect)

    # The response

    def begin(self) -> None:
        """Emit `response.created` and `response.in_progress`, with `response.queued` between them in the background."""
        self._check(not self.is_begun, "begin")
        self.is_begun = True
        first = "queued" if self.head.is_background else "in_progress"
        self._event("response.created", response=self._response(first))
        if first == "queued":
            self._event("response.queued", response=self._response(first))
        self._event("response.in_progress", response=self._response("in_progress"))

    def end(self, outcome: ResponseOutcome) -> None:
        """Emit the last event, preceded by an `error` event if the response failed."""
        self._check(self.is_begun and self.outcome is None, "end")
        self._check(not any(item.is_open for item in self.items), "end with open items")
        self.outcome = outcome
        if outcome.error is not None:
            self._out.append(error_event(outcome.error, self._next(), self.dialect))
        self._event(f"response.{outcome.event}", response=self.response)

    def _response(self, status: Literal["queued", "in_progress"]) -> JsonObject:
        return self.head.response(ResponseOutcome(status), [], self.dialect)

    # Items

    def next_id(self, type: str) -> str:
        """Return the id for the next item, given its type."""
        return item_id(type, self.head.id, len(self.items), self.dialect)

    def add(self, fields: JsonObject) -> OpenItem:
        """Emit `response.output_item.added` and return the open item."""
        self._check(self.is_begun and self.outcome is None, "add an item")
        if self.dialect == "open-responses":
            fields = {**fields, "status": fields.get("status", "in_progress")}  # The specification requires it.
        item = OpenItem(len(self.items), fields)
        self.items.append(item)
        self._event("response.output_item.added", output_index=item.index, item=item.item)
        return item

    def done(self, item: OpenItem, **changes: Any) -> None:
        """Emit `response.output_item.done` with the changed fields."""
        self._check(item.is_open and not any(part.is_open for part in item.parts), "end an item")
        if self.dialect == "open-responses" and item.fields.get("status") == "in_progress":
            changes.setdefault("status", "completed")
        if changes.get("status") == "incomplete" and not self._may_be_incomplete(item):
            changes["status"] = "completed"
        item.is_open = False
        item.fields = {**item.fields, **changes}
        self._event("response.output_item.done", output_index=item.index, item=item.item)

    def _may_be_incomplete(self, item: OpenItem) -> bool:
        """Return whether the item may be incomplete; the specification allows it only at the end of a cut response."""
        return self.dialect == "openai" or (self.is_cut and item is self.items[-1])

    def stage(self, item: OpenItem, stage: str, **fields: Any) -> None:
        """Emit a stage of a tool, unless its item type lacks the stage or the item is past it."""
        self._check(item.is_open, "report a stage")
        stages = _STAGES.get(item.type, ())
        if stage not in stages or stages.index(stage) < item.stage:
            return
        item.stage = stages.index(stage)
        self._of(item, f"response.{item.type}.{stage}", **fields)

    def other(self, item: OpenItem, type: str, **fields: Any) -> None:
        """Emit an event that is not subject to an order, such as a shell command."""
        self._check(item.is_open, "send an event")
        self._of(item, type, **fields)

    # Content

    def add_part(self, item: OpenItem, kind: PartKind) -> OpenPart:
        """Begin a content part."""
        self._check(item.is_open and not any(part.is_open for part in item.parts), "add a part")
        part = OpenPart(kind, len(item.parts))
        item.parts.append(part)
        self._of_part(item, part, f"{_TEXTS[kind][1]}.added", part=part.content)
        return part

    def delta(self, item: OpenItem, part: OpenPart, text: str, logprobs: list[Json] | None = None) -> None:
        """Emit a delta of a part's text."""
        self._check(part.is_open, "add text")
        part.texts.append(text)
        more: JsonObject = {"logprobs": logprobs or []} if part.kind == "output_text" else {}
        part.logprobs += logprobs or ()
        self._of_part(item, part, f"{_TEXTS[part.kind][2]}.delta", delta=text, **more)

    def annotate(self, item: OpenItem, part: OpenPart, annotation: Json) -> None:
        """Emit an annotation of a part's text."""
        self._check(part.is_open and part.kind == "output_text", "annotate")
        place = len(part.annotations)
        part.annotations.append(annotation)
        name = "response.output_text.annotation.added"
        self._of_part(item, part, name, annotation_index=place, annotation=annotation)

    def end_part(self, item: OpenItem, part: OpenPart) -> None:
        """End a part by emitting its text and then the part."""
        self._check(part.is_open, "end a part")
        part.is_open = False
        _, of_part, of_text, field = _TEXTS[part.kind]
        more: JsonObject = {"logprobs": list(part.logprobs)} if part.kind == "output_text" else {}
        self._of_part(item, part, f"{of_text}.done", **{field: part.text}, **more)
        self._of_part(item, part, f"{of_part}.done", part=part.content)

    # Inputs of calls

    def input_delta(self, item: OpenItem, text: str) -> None:
        """Emit a delta of a call's input."""
        self._check(item.is_open and not item.has_input and item.type in _INPUTS, "add input")
        item.input.append(text)
        self._of(item, f"{_INPUTS[item.type][0]}.delta", delta=text)

    def end_input(self, item: OpenItem, text: str | None = None) -> None:
        """End a call's input, emitting a last delta if `text` extends what was streamed.

        A `text` that contradicts the streamed input is ignored.
        """
        self._check(item.is_open and not item.has_input and item.type in _INPUTS, "end input")
        streamed = "".join(item.input)
        if text is not None and text.startswith(streamed) and len(text) > len(streamed):
            self.input_delta(item, text[len(streamed) :])
            streamed = text
        item.has_input = True
        name, field = _INPUTS[item.type]
        item.fields = {**item.fields, field: streamed}
        self._of(item, f"{name}.done", **{field: streamed})

    # Events

    def _of(self, item: OpenItem, type: str, **fields: Any) -> None:
        self._event(type, output_index=item.index, item_id=item.id, **fields)

    def _of_part(self, item: OpenItem, at: OpenPart, type: str, **fields: Any) -> None:
        place = "summary_index" if at.kind == "summary_text" else "content_index"
        self._of(item, type, **{place: at.index}, **fields)

    def _event(self, type: str, **fields: Any) -> None:
        self._out.append({"type": type, "sequence_number": self._next(), **fields})

    def _next(self) -> int:
        number, self.sequence = self.sequence, self.sequence + 1
        return number

    def _check(self, is_allowed: bool, what: str) -> None:
        if not is_allowed:
            raise EventOrderError(f"cannot {what} in the current state of the response")


def input_field(type: str) -> str | None:
    """Return the field with the streamed input of this item type, or None if it has none."""
    return _INPUTS[type][1] if type in _INPUTS else None
