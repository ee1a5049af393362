"""The parts that a run can emit, with usage, finish reasons and image previews.

Parts are frozen values. Their JSON form is stable: `type` is the tag, absent fields are left out, bytes are base64.
A part never changes after it was emitted. Later information comes in a new part with the same id.
"""

from functools import cache
from typing import ClassVar, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ErrorKind
from sidestream.evidence.verdict import UNCHECKED, Evidence
from sidestream.files import Saveable, media_types
from sidestream.jsontext import Json
from sidestream.text.reprs import ShortRepr

__all__ = (  # noqa: SIM905  # pyright: ignore[reportUnsupportedDunderAll]
    "Custom Error File Finish FinishReason InputUsage OutputUsage Preview Raw ReasoningDelta ReasoningEnd "
    "ReasoningStart ResponseMetadata Source SourceKind Stage Steer SteerStatus StepFinish StepStart StreamPart "
    "StreamStart TextDelta TextEnd TextStart ToolApprovalRequest ToolCall ToolEvent ToolInputDelta ToolInputEnd "
    "ToolInputStart ToolResult Usage part_from_json preview_of"
).split()

FinishReason = Literal["stop", "length", "content-filter", "tool-calls", "approval", "limit", "error", "other"]
"""Why a step or run ended: `approval` means that it waits for a decision, `limit` that one of `Limits` was reached."""
SteerStatus = Literal["accepted", "applied", "failed"]
"""What became of a message to a running response."""
SourceKind = Literal["url", "document", "place", "container_file", "file_path"]
"""What a source is: a page, a document, a place, or a file of a container."""
Stage = Literal["started", "input", "running", "delta", "completed", "failed"]
"""Stage of a tool call: it begins, its input streams, it runs, its code, logs or previews stream, and it ends."""


class InputUsage(Struct, frozen=True, gc=False):
    """Input tokens; `total` is the sum of the three others."""

    total: int = 0
    """All input tokens."""
    no_cache: int = 0
    """Tokens that were not read from the cache."""
    cache_read: int = 0
    """Tokens read from the cache."""
    cache_write: int = 0
    """Tokens written to the cache."""


class OutputUsage(Struct, frozen=True, gc=False):
    """Output tokens."""

    total: int = 0
    """All output tokens."""
    text: int = 0
    """Tokens of text and calls."""
    reasoning: int = 0
    """Tokens of reasoning, shown or not."""


class Usage(ShortRepr, Struct, frozen=True):
    """The usage of a step or a run. `raw` is the provider's own object; for several steps, it is `{"steps": [...]}`."""

    input: InputUsage = InputUsage()
    """Input tokens."""
    output: OutputUsage = OutputUsage()
    """Output tokens."""
    server_tool_use: dict[str, int] = {}
    """Calls that the provider counts, by tool."""
    raw: dict[str, Json] | None = None
    """Provider's own object, or those of several steps."""
    cost: float | None = None
    """Cost in US dollars, at list prices. None means that a price is unknown."""
    unpriced: tuple[str, ...] = ()
    """Items without a known price, if that is why `cost` is None."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was used or reported."""
        return not (self.input.total or self.output.total or self.server_tool_use or self.raw)

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum of two steps. `raw` objects are kept side by side, and the cost is known if both are."""
        counts = dict(self.server_tool_use)
        for tool, count in other.server_tool_use.items():
            counts[tool] = counts.get(tool, 0) + count
        a, b = self.input, other.input
        c, d = self.output, other.output
        unpriced = self.unpriced + other.unpriced
        return Usage(
            input=InputUsage(
                a.total + b.total,
                a.no_cache + b.no_cache,
                a.cache_read + b.cache_read,
                a.cache_write + b.cache_write,
            ),
            output=OutputUsage(c.total + d.total, c.text + d.text, c.reasoning + d.reasoning),
            server_tool_use=counts,
            raw=_join_raw(self.raw, other.raw),
            cost=_add_costs(self, other),
            unpriced=tuple(dict.fromkeys(unpriced)) if unpriced else (),
        )


def _add_costs(first: Usage, second: Usage) -> float | None:
    costs: list[float] = []
    for usage in (first, second):
        if usage.is_empty and not usage.unpriced:
            continue
        if usage.cost is None:
            return None
        costs.append(usage.cost)
    # Rates have few decimals, so rounding removes only the error of binary fractions.
    return round(sum(costs), 12) if costs else None


def _join_raw(first: dict[str, Json] | None, second: dict[str, Json] | None) -> dict[str, Json] | None:
    if first is None or second is None:
        return first or second
    steps = [*first["steps"]] if first.keys() == {"steps"} else [first]
    return {"steps": [*steps, second]}


class _Part(ShortRepr, Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    provider_metadata: dict[str, Json] | None = None

    def to_json(self) -> str:
        """Return the part as one line of JSON, which `part_from_json` parses."""
        return jsontext.dumps(self).decode()


class StreamStart(_Part, frozen=True, tag="stream-start"):
    """The first part of every stream."""

    type: ClassVar[Literal["stream-start"]] = "stream-start"
    warnings: tuple[str, ...]
    """What the first request leaves out or changes, known before it is sent."""


class ResponseMetadata(_Part, frozen=True, tag="response-metadata"):
    """Identifies the response and its model."""

    type: ClassVar[Literal["response-metadata"]] = "response-metadata"
    id: str | None = None
    model: str | None = None
    """Model that answers, which may be more specific than the requested one."""
    created: float | None = None
    """Time at which the provider began, in seconds since 1970."""
    provider: str | None = None


class TextStart(_Part, frozen=True, tag="text-start"):
    """The start of a block of text."""

    type: ClassVar[Literal["text-start"]] = "text-start"
    id: str


class TextDelta(_Part, frozen=True, tag="text-delta"):
    """A delta of a block of text."""

    type: ClassVar[Literal["text-delta"]] = "text-delta"
    id: str
    delta: str


TEXT_CORRECTED: Final = "sidestream.text-corrected"
"""Kind of the custom part that reports a final text that differs from the streamed text."""


class TextEnd(_Part, frozen=True, tag="text-end"):
    """The end of a block of text. `text` is set only if the final text differs from the deltas, which it replaces."""

    type: ClassVar[Literal["text-end"]] = "text-end"
    id: str
    annotations: tuple[Json, ...] = ()
    """Provider's annotations of the block, unchanged."""
    text: str | None = None
    """Final text, if it differs from the deltas."""


class ReasoningStart(_Part, frozen=True, tag="reasoning-start"):
    """The start of a block of reasoning."""

    type: ClassVar[Literal["reasoning-start"]] = "reasoning-start"
    id: str


class ReasoningDelta(_Part, frozen=True, tag="reasoning-delta"):
    """A delta of a block of reasoning."""

    type: ClassVar[Literal["reasoning-delta"]] = "reasoning-delta"
    id: str
    delta: str


class ReasoningEnd(_Part, frozen=True, tag="reasoning-end"):
    """The end of a block of reasoning, with opaque data that must go back to the provider."""

    type: ClassVar[Literal["reasoning-end"]] = "reasoning-end"
    id: str
    signature: str | None = None
    """Provider's signature of the text, to send back."""
    encrypted_content: str | None = None
    """Reasoning in a form that only the provider can read, to send back."""
    text: str | None = None
    """Final text, if it differs from the deltas."""


class ToolInputStart(_Part, frozen=True, tag="tool-input-start"):
    """The start of a tool call's input."""

    type: ClassVar[Literal["tool-input-start"]] = "tool-input-start"
    id: str
    name: str
    provider_executed: bool
    tool: str | None = None
    """Tool of the call that the client executes, as in `tool-call`. None means `name`, or that it is not known yet."""


class ToolInputDelta(_Part, frozen=True, tag="tool-input-delta"):
    """A delta of a tool input's JSON text."""

    type: ClassVar[Literal["tool-input-delta"]] = "tool-input-delta"
    id: str
    delta: str


class ToolInputEnd(_Part, frozen=True, tag="tool-input-end"):
    """The end of a tool input's JSON text."""

    type: ClassVar[Literal["tool-input-end"]] = "tool-input-end"
    id: str


class ToolCall(_Part, frozen=True, tag="tool-call"):
    """A tool call, with parsed `input`, or with `input_error` and `input_text` if the text was not a JSON object."""

    type: ClassVar[Literal["tool-call"]] = "tool-call"
    id: str
    name: str
    tool: str
    provider_executed: bool
    input: Json = None
    """Input as JSON."""
    input_error: str | None = None
    """Reason why the text of the input could not be parsed."""
    input_text: str | None = None
    """Text of the input, if it could not be parsed."""
    action: dict[str, Json] | None = None
    """Input in the terms of `sidestream.actions`, for a call of the provider's own kind that the function named `tool`
    answers; empty if the provider's input is in these terms already."""
    provider_tool: str | None = None
    """Provider's name of the tool. None means that the provider does not know it as one of its own."""


class ToolEvent(_Part, frozen=True, tag="tool-event"):
    """An event of a tool; `event` is the provider's JSON, unchanged.

    `tool` and `stage` are the same for every provider. Several events of a call may have the same stage.
    """

    type: ClassVar[Literal["tool-event"]] = "tool-event"
    tool: str
    stage: Stage
    """Portable stage of the call."""
    event: Json
    """Provider's event, unchanged."""
    call_id: str | None = None
    output_index: int | None = None
    """Position of the call in the provider's response."""
    provider_tool: str | None = None
    """Provider's name of the tool, which is the key of the event in `metadata`. None means `tool`."""
    provider_stage: str | None = None
    """Provider's name of the stage."""

    @property
    def key(self) -> str:
        """The key of the event in `metadata`."""
        return self.provider_tool or self.tool


class ToolResult(_Part, frozen=True, tag="tool-result"):
    """The result of a tool. A `preliminary` one is a preview that a later one replaces."""

    type: ClassVar[Literal["tool-result"]] = "tool-result"
    id: str
    name: str
    tool: str
    result: Json
    """Result as JSON, as the model sees it."""
    is_error: bool
    """Whether the call failed."""
    provider_executed: bool
    preliminary: bool = False
    """Whether a later result replaces this one."""
    error_type: str | None = None
    """Type of the exception that a client tool raised, such as `KeyError`."""
    error_message: str | None = None
    """Its message, without secrets. The model sees only that of a `ToolError`."""


class ToolApprovalRequest(_Part, frozen=True, tag="tool-approval-request"):
    """A call that waits for the user's decision or, if it is executed externally, for its result."""

    type: ClassVar[Literal["tool-approval-request"]] = "tool-approval-request"
    approval_id: str
    """Id of the approval, for the decision."""
    id: str
    name: str
    input: Json
    """Input of the call as JSON."""
    server_label: str | None = None
    """Label of the MCP server, if the tool is one of its."""
    is_external: bool = False
    """Whether the call is of an `ExternalTool`, which needs a result rather than an approval."""


class Source(_Part, frozen=True, tag="source"):
    """The source of a span of text; `start` and `end` are character offsets in the text block `text_id`."""

    type: ClassVar[Literal["source"]] = "source"
    id: str
    kind: SourceKind
    """What the source is."""
    url: str | None = None
    """Address of the page or place."""
    file_id: str | None = None
    """Provider's id of the file."""
    title: str | None = None
    """Title of the page or file."""
    start: int | None = None
    """Start of the span. None means that the source supports no particular span."""
    end: int | None = None
    """End of the span."""
    cited_text: str | None = None
    """Passage of the source that is cited."""
    text_id: str | None = None
    """Id of the block of text."""
    evidence: Evidence = UNCHECKED
    """What a comparison with the source established. Hosted citations are `unchecked`."""
    marker_start: int | None = None
    """Start of the link to the source that the model wrote, if `start` and `end` are those of that link."""
    marker_end: int | None = None
    """End of that link."""
    claim_start: int | None = None
    """Start of the sentence before that link. None means that `start` and `end` span the supported text."""
    claim_end: int | None = None
    """End of that sentence."""


class File(Saveable, _Part, frozen=True, tag="file"):
    """A deliverable, never a preview, with its bytes or a URL."""

    type: ClassVar[Literal["file"]] = "file"
    id: str
    mime_type: str
    name: str | None = None
    """Name of the file."""
    data: bytes | None = None
    """Bytes. None means that there is only a URL."""
    url: str | None = None
    """Address, which may expire."""
    tool: str | None = None
    call_id: str | None = None

    def _contents(self) -> tuple[bytes | None, str | None, str, str | None]:
        return self.data, self.name or self.id, self.mime_type, self.url


class Custom(_Part, frozen=True, tag="custom"):
    """A provider-specific part (`openai.compaction`), or a notice of ours (`sidestream.session-fallback`)."""

    type: ClassVar[Literal["custom"]] = "custom"
    kind: str
    """Name, which begins with the provider's or with `sidestream.`."""
    data: Json
    """Content. A notice of ours has a `message`."""


class Raw(_Part, frozen=True, tag="raw"):
    """A provider event that could not be parsed, complete."""

    type: ClassVar[Literal["raw"]] = "raw"
    provider: str
    event: Json
    """The event."""


class Steer(_Part, frozen=True, tag="steer"):
    """A message that the user sent during the run, which is accepted, then applied by a request or failed.

    Each status is reported by one part, with the same id. A stream that resumes a run reports pending messages again.
    """

    type: ClassVar[Literal["steer"]] = "steer"
    id: str
    status: SteerStatus
    """What became of it."""
    text: str
    """Text of the message."""
    content: tuple[Json, ...] = ()
    """Parts of the message, as JSON, unless it is a single text part."""
    reason: str | None = None
    """Reason for the failure."""


class StepOutcome(ShortRepr, Struct, frozen=True, omit_defaults=True, gc=False):
    """The outcome of a complete response for the rest of the turn.

    Decoders set it, the turn and the message fold read it, and the log keeps it. It is not part of the public JSON.
    """

    message_metadata: dict[str, Json] = {}
    """Metadata for the model's message, mainly sessions."""
    replay: dict[str, str] = {}
    """Session key → its field that only a full replay of the message needs; see `messages/references.py`."""
    is_held: bool = False
    """Whether the provider stores the answer, so that it is replayed only if the provider refuses to continue it."""
    summaries: dict[str, list[Json]] = {}
    """Summaries of finished calls, by tool."""
    is_paused: bool = False
    """Whether the provider paused, so that the same conversation must be sent again."""
    is_kept: bool = False
    """Whether to keep the message even without parts."""
    raw_reason: str | None = None
    """Provider's own finish reason."""
    metadata: dict[str, Json] = {}
    """Metadata for the run's `finish` if this is the last response."""
    listed: dict[str, dict[str, str]] = {}
    """Digests of the definitions of tools that the provider listed, by label of the remote MCP server and tool."""


class StepStart(_Part, frozen=True, tag="step-start"):
    """The start of a step, which is one model call of a run."""

    type: ClassVar[Literal["step-start"]] = "step-start"
    step: int


class StepFinish(_Part, frozen=True, tag="step-finish"):
    """The end of a step."""

    type: ClassVar[Literal["step-finish"]] = "step-finish"
    step: int
    reason: FinishReason
    """Reason why the response ended."""
    usage: Usage
    """Usage of the step."""
    outcome: StepOutcome | None = None
    """Internal; see `StepOutcome`."""

    def to_json(self) -> str:
        """Return the part as one line of JSON, without internal fields."""
        return jsontext.dumps(self if self.outcome is None else replace(self, outcome=None)).decode()


class Error(_Part, frozen=True, tag="error"):
    """An error. All kinds except `tool` end the run with `finish(error)`."""

    type: ClassVar[Literal["error"]] = "error"
    kind: ErrorKind
    """Kind, which selects the exception."""
    message: str
    """What happened, without secrets."""
    code: str | None = None
    """Provider's code."""
    status: int | None = None
    """HTTP status."""
    retryable: bool = False
    """Whether the same request may succeed later."""
    param: str | None = None
    """Request field that the provider rejected, if it names one."""
    retry_after: float | None = None
    """Wait that the provider requests, in seconds, if any."""


class Finish(_Part, frozen=True, tag="finish"):
    """The last part of every stream."""

    type: ClassVar[Literal["finish"]] = "finish"
    reason: FinishReason
    """Reason why the run ended."""
    usage: Usage
    """Usage of all steps."""
    raw_reason: str | None = None
    """Provider's own reason."""
    metadata: dict[str, Json] = {}
    """Facts about the last response and the end: `response_id`, `model`, `status`, `limit` and others."""
    outcome: StepOutcome | None = None
    """Internal, and set only by decoders; see `StepOutcome`."""

    def to_json(self) -> str:
        """Return the part as one line of JSON, without internal fields."""
        return jsontext.dumps(self if self.outcome is None else replace(self, outcome=None)).decode()


StreamPart = (
    StreamStart
    | ResponseMetadata
    | TextStart
    | TextDelta
    | TextEnd
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ToolInputStart
    | ToolInputDelta
    | ToolInputEnd
    | ToolCall
    | ToolEvent
    | ToolResult
    | ToolApprovalRequest
    | Source
    | File
    | Custom
    | Raw
    | Steer
    | StepStart
    | StepFinish
    | Error
    | Finish
)
"""Any part of a stream: `match part: case TextDelta(): …`."""


@cache
def _decoder() -> msgspec.json.Decoder[StreamPart]:
    return msgspec.json.Decoder(StreamPart)


def part_from_json(text: str | bytes) -> StreamPart:
    """Parse a part that `to_json` or `sidestream --json` wrote.

    Raises msgspec.ValidationError if the JSON is not a part.

    ```python
    print(part_from_json('{"type": "text-delta", "id": "t1", "delta": "Hi"}'))
    ```
    """
    try:
        return _decoder().decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.convert(jsontext.loads(text), StreamPart)


def program_of(part: ToolCall | ToolResult) -> str | None:
    """Return the id of the local call whose program made this call, or None if the model made it.

    Such a call runs between two steps, and its result goes to the program. A hosted program's call is like the model's.
    """
    if part.provider_metadata is None:
        return None
    marks = jsontext.as_object(part.provider_metadata.get("sidestream"))
    return jsontext.text_in(jsontext.as_object(marks.get("caller")), "caller_id")


THOUGHT_IMAGE = ".thought-image"
"""Suffix of the kind of custom parts that hold an image of the model's reasoning."""


class Preview(Saveable, ShortRepr, Struct, frozen=True, kw_only=True):
    """An intermediate image; the final one is a `File`."""

    index: int
    """Index among the previews of its call, from 0."""
    data: bytes
    mime_type: str
    tool: str | None = None
    call_id: str | None = None

    def _contents(self) -> tuple[bytes | None, str | None, str, str | None]:
        return self.data, f"preview-{self.index}", self.mime_type, None


def preview_of(part: StreamPart) -> Preview | None:
    """Return the preview in a part, or None if it has none."""
    if isinstance(part, ToolResult) and part.preliminary:
        fields = jsontext.as_object(part.result)
        return _preview(fields.get("partial_image_b64"), fields.get("partial_image_index"), part.tool, part.id)
    if isinstance(part, Custom) and part.kind.endswith(THOUGHT_IMAGE):
        fields = jsontext.as_object(part.data)
        return _preview(fields.get("data"), fields.get("index"), None, None)
    return None


def _preview(encoded: object, index: object, tool: str | None, call_id: str | None) -> Preview | None:
    data = media_types.from_base64(encoded) if isinstance(encoded, str) else None
    if data is None:
        return None
    number = index if type(index) is int else 0
    return Preview(index=number, data=data, mime_type=media_types.sniff(data), tool=tool, call_id=call_id)
