"""The stream: every part that a run can emit, usage and finish reasons.

Parts are frozen values. Their JSON form is stable: `type` is the tag, absent fields are left out, bytes are base64.
What is learnt later comes as a new part with the same id; a part is never changed after it was emitted.
"""

from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ErrorKind
from sidestream.jsontext import Json

FinishReason = Literal["stop", "length", "content-filter", "tool-calls", "approval", "limit", "error", "other"]
SourceKind = Literal["url", "document", "place", "container_file", "file_path"]


class InputUsage(Struct, frozen=True, gc=False):
    """Tokens that went in; `total` is the sum of the three others."""

    total: int = 0
    no_cache: int = 0
    cache_read: int = 0
    cache_write: int = 0


class OutputUsage(Struct, frozen=True, gc=False):
    """Tokens that came out."""

    total: int = 0
    text: int = 0
    reasoning: int = 0


class Usage(Struct, frozen=True):
    """What a step or a run cost. `raw` is the provider's own object; of several steps, `{"steps": [...]}`."""

    input: InputUsage = InputUsage()
    output: OutputUsage = OutputUsage()
    server_tool_use: dict[str, int] = {}
    raw: dict[str, Json] | None = None

    def __add__(self, other: "Usage") -> "Usage":
        """The sum over two steps; `raw` objects are kept side by side."""
        counts = dict(self.server_tool_use)
        for tool, count in other.server_tool_use.items():
            counts[tool] = counts.get(tool, 0) + count
        a, b = self.input, other.input
        c, d = self.output, other.output
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
        )


def _join_raw(first: dict[str, Json] | None, second: dict[str, Json] | None) -> dict[str, Json] | None:
    if first is None or second is None:
        return first or second
    steps = [*first["steps"]] if first.keys() == {"steps"} else [first]
    return {"steps": [*steps, second]}


class _Part(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    provider_metadata: dict[str, Json] | None = None


class StreamStart(_Part, frozen=True, tag="stream-start"):
    """First part of every stream."""

    warnings: tuple[str, ...]


class ResponseMetadata(_Part, frozen=True, tag="response-metadata"):
    """Which response of which model this is."""

    id: str | None = None
    model: str | None = None
    created: float | None = None
    provider: str | None = None


class TextStart(_Part, frozen=True, tag="text-start"):
    """A text block begins."""

    id: str


class TextDelta(_Part, frozen=True, tag="text-delta"):
    """More text of a block."""

    id: str
    delta: str


class TextEnd(_Part, frozen=True, tag="text-end"):
    """A text block is complete. `text` is set only where the final text is another than the deltas'; it supersedes."""

    id: str
    annotations: tuple[Json, ...] = ()
    text: str | None = None


class ReasoningStart(_Part, frozen=True, tag="reasoning-start"):
    """A block of reasoning begins."""

    id: str


class ReasoningDelta(_Part, frozen=True, tag="reasoning-delta"):
    """More reasoning of a block."""

    id: str
    delta: str


class ReasoningEnd(_Part, frozen=True, tag="reasoning-end"):
    """A block of reasoning is complete, with what must go back to the provider unread."""

    id: str
    signature: str | None = None
    encrypted_content: str | None = None
    text: str | None = None


class ToolInputStart(_Part, frozen=True, tag="tool-input-start"):
    """The input of a tool call begins to stream."""

    id: str
    name: str
    provider_executed: bool


class ToolInputDelta(_Part, frozen=True, tag="tool-input-delta"):
    """More of the JSON text of a tool's input."""

    id: str
    delta: str


class ToolInputEnd(_Part, frozen=True, tag="tool-input-end"):
    """The JSON text of a tool's input is complete."""

    id: str


class ToolCall(_Part, frozen=True, tag="tool-call"):
    """A tool is called: `input` parsed, or `input_error` and `input_text` where the text was no JSON object."""

    id: str
    name: str
    tool: str
    provider_executed: bool
    input: Json = None
    input_error: str | None = None
    input_text: str | None = None


class ToolEvent(_Part, frozen=True, tag="tool-event"):
    """One event of a tool on its way; `event` is the provider's JSON, unchanged."""

    tool: str
    stage: str
    event: Json
    call_id: str | None = None
    output_index: int | None = None


class ToolResult(_Part, frozen=True, tag="tool-result"):
    """What a tool gave back. A `preliminary` one is a preview that a later one supersedes."""

    id: str
    name: str
    tool: str
    result: Json
    is_error: bool
    provider_executed: bool
    preliminary: bool = False


class ToolApprovalRequest(_Part, frozen=True, tag="tool-approval-request"):
    """A call waits for a person's decision."""

    approval_id: str
    id: str
    name: str
    input: Json
    server_label: str | None = None


class Source(_Part, frozen=True, tag="source"):
    """Where a span of text comes from; `start` and `end` are characters of the text block `text_id`."""

    id: str
    kind: SourceKind
    url: str | None = None
    file_id: str | None = None
    title: str | None = None
    start: int | None = None
    end: int | None = None
    cited_text: str | None = None
    text_id: str | None = None


class File(_Part, frozen=True, tag="file"):
    """A deliverable, never a preview: its bytes, or the URL where they are."""

    id: str
    mime_type: str
    name: str | None = None
    data: bytes | None = None
    url: str | None = None
    tool: str | None = None
    call_id: str | None = None


class Custom(_Part, frozen=True, tag="custom"):
    """Something that only one provider has (`openai.compaction`), or a note of ours (`sidestream.session-fallback`)."""

    kind: str
    data: Json


class Raw(_Part, frozen=True, tag="raw"):
    """A provider event that could not be understood, whole."""

    provider: str
    event: Json


class StepOutcome(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a complete response means for the rest of the turn.

    Decoders set it, the turn and the message fold read it, and the log keeps it. It is no part of the public JSON.
    """

    message_metadata: dict[str, Json] = {}
    """What the model's message keeps; sessions above all."""
    replay: dict[str, str] = {}
    """Key of a session → its field that only a full replay of the message needs; see `messages/replays.py`."""
    is_held: bool = False
    """True if the provider's server holds the answer: it is replayed only where the server refuses to continue it."""
    summaries: dict[str, list[Json]] = {}
    """Summaries of finished calls, by tool."""
    is_paused: bool = False
    """True if the provider paused and the same conversation must be sent again."""
    is_kept: bool = False
    """True if the message is kept even without parts."""
    raw_reason: str | None = None
    """The provider's own word for the finish reason."""
    metadata: dict[str, Json] = {}
    """What the run's `finish` says of this response if it is the last one."""


class StepStart(_Part, frozen=True, tag="step-start"):
    """One model call of a run begins."""

    step: int


class StepFinish(_Part, frozen=True, tag="step-finish"):
    """One model call of a run is over."""

    step: int
    reason: FinishReason
    usage: Usage
    outcome: StepOutcome | None = None
    """Internal; see `StepOutcome`."""


class Error(_Part, frozen=True, tag="error"):
    """Something went wrong. All kinds but `tool` end the run with `finish(error)`."""

    kind: ErrorKind
    message: str
    code: str | None = None
    status: int | None = None
    retryable: bool = False


class Finish(_Part, frozen=True, tag="finish"):
    """Last part of every stream."""

    reason: FinishReason
    usage: Usage
    raw_reason: str | None = None
    metadata: dict[str, Json] = {}
    outcome: StepOutcome | None = None
    """Internal, and set only by decoders; see `StepOutcome`."""


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
    | StepStart
    | StepFinish
    | Error
    | Finish
)

_decoder: msgspec.json.Decoder[StreamPart] = msgspec.json.Decoder(StreamPart)


def part_type(part: StreamPart) -> str:
    """The part's `type` in JSON."""
    return str(part.__struct_config__.tag)


def encode_part(part: StreamPart) -> bytes:
    """The part as one line of JSON."""
    if isinstance(part, StepFinish | Finish) and part.outcome is not None:
        part = replace(part, outcome=None)
    return jsontext.dumps(part)


def decode_part(line: bytes | str) -> StreamPart:
    """The part that `encode_part` wrote."""
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.convert(jsontext.loads(line), StreamPart)
