"""The units of the event log.

A conversation's log is its part stream with the deltas joined: a block is one segment, or, where it took longer, a few
increments and the segment that closes it. Beside the segments stand the facts that no part reports (a message was
added, a tool was started, a person decided). Bytes and very long texts are not in a record: they are blobs, which it
names.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import StoreError
from sidestream.messages.fold import MessageMetadata
from sidestream.messages.message import ChatMessage, TextPart
from sidestream.messages.references import for_log
from sidestream.stream.parts import StepFinish, StepOutcome, StreamPart
from sidestream.tools.approvals import Decision, PendingApproval, Suspended
from sidestream.tools.grants import Grant
from sidestream.tools.interruption import InterruptionPolicy

LONG_TEXT = 16 * 1024
"""A text in provider JSON that is longer becomes a blob: images in base64 above all."""


class _Body(Struct, frozen=True, tag_field="type", omit_defaults=True):
    pass


class MessageAdded(_Body, frozen=True, tag="message"):
    """A message of the user, which opens a turn, or one of a history that the conversation began with."""

    message: ChatMessage
    opens_turn: bool = True


class RunStarted(_Body, frozen=True, tag="run-started"):
    """A run begins, or resumes the open turn."""

    model: str
    """`provider:name`."""
    message_metadata: MessageMetadata = "session"
    resumes: bool = False
    details: jsontext.JsonObject = {}
    """What its program wants to remember of it: `Chat.run_details`."""


class Segment(_Body, frozen=True, tag="segment"):
    """A block of the stream: its parts, with one delta for all.

    The kinds `text-delta` and `reasoning-delta` are increments of a block that is still open, the first of them with
    its start; the segment that closes the block then holds only the rest.
    """

    kind: str
    parts: tuple[StreamPart, ...]
    place: int = 0
    """Where in its step the block began: blocks end in another order than they begin."""


class RequestPrepared(_Body, frozen=True, tag="request-prepared"):
    """A request is about to be sent that differs from the usual one."""

    without: tuple[str, ...] = ()
    """What the provider refused, or cannot do, and the request leaves out."""
    defers_output: bool = False
    """True if the typed answer needs a request of its own."""


class ToolStarted(_Body, frozen=True, tag="tool-started"):
    """A client tool is about to run."""

    call_id: str
    name: str
    key: str = ""
    """Its idempotency key: the same for each attempt."""
    on_interruption: InterruptionPolicy = "ask"
    """What becomes of the call if the log has no result of it."""


class ToolSuspended(_Body, frozen=True, tag="tool-suspended"):
    """A tool waits for a person, or for work that is done elsewhere."""

    call_id: str
    suspended: Suspended


class ApprovalAsked(_Body, frozen=True, tag="approval-asked"):
    """A call waits for a person."""

    approval: PendingApproval


class ApprovalDecided(_Body, frozen=True, tag="approval-decided"):
    """A person has decided."""

    decision: Decision


class ApprovalRefused(_Body, frozen=True, tag="approval-refused"):
    """A decision was refused: it fits nothing that waits, or came too late. It changes nothing."""

    approval_id: str
    reason: str


class GrantsSet(_Body, frozen=True, tag="grants"):
    """These tools are allowed in the conversation from now on, and no others: a grant was withdrawn or carried over."""

    grants: tuple[Grant, ...] = ()


class RunCancelled(_Body, frozen=True, tag="cancelled"):
    """The run was left before its end."""


class TurnDiscarded(_Body, frozen=True, tag="discarded"):
    """The open turn counts no more: the conversation continues from before it."""


class TurnKept(_Body, frozen=True, tag="kept"):
    """What the open turn has said counts, although it did not come to its end."""


class Noted(_Body, frozen=True, tag="noted"):
    """What a program wants to remember of the conversation. It changes nothing in it. No secrets: it is stored."""

    details: jsontext.JsonObject


Body = (
    MessageAdded
    | RunStarted
    | Segment
    | RequestPrepared
    | ToolStarted
    | ToolSuspended
    | ApprovalAsked
    | ApprovalDecided
    | ApprovalRefused
    | GrantsSet
    | RunCancelled
    | TurnDiscarded
    | TurnKept
    | Noted
)


class Row(Struct, frozen=True, kw_only=True):
    """A record as a store keeps it."""

    seq: int
    """Numbers of a conversation begin with 1 and have no gaps."""
    time: float
    """Seconds since 1970, by the clock of the machine that wrote it. Order is by `seq`."""
    run: str
    kind: str
    body: bytes
    """JSON."""
    blobs: tuple[str, ...] = ()
    """SHA-256 digests, in hex, of what the body refers to."""


class Record(Struct, frozen=True, kw_only=True):
    """One thing that happened in a conversation."""

    seq: int
    time: float
    run: str
    body: Body
    blobs: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What it is, in a word: the kind of a segment, else the type of the body."""
        return kind_of(self.body)


_decoder = msgspec.json.Decoder(Body)
_PLAIN = frozenset(
    {
        "text",
        "text-delta",
        "reasoning",
        "reasoning-delta",
        "tool-input",
        "stream-start",
        "step-start",
        "response-metadata",
        "source",
        "finish",
        "error",
    }
)
"""Segments that hold no blobs."""
STEP_FINISH = "step-finish"
STARTED = "run-started"
ENDINGS = frozenset({"finish", "cancelled", "discarded", "kept", "message"})
"""Kinds of records after which no run is in progress."""
"""The kind of the segment whose blobs are read only for a replay: the record refers to them, also when it was read."""


def kind_of(body: Body) -> str:
    """What a record is, in a word."""
    return body.kind if isinstance(body, Segment) else str(body.__struct_config__.tag)


def pack(body: Body) -> tuple[bytes, dict[str, bytes]]:
    """The body as JSON, and the blobs that it refers to, by digest.

    Raises StoreError for what `unpack` could not read: a struct holds whatever it was made with, also a value of
    another type than its field has.
    """
    try:
        data, blobs = _packed(body)
        if not blobs or kind_of(body) == STEP_FINISH:
            _whole(_decoded(data))
    except (AttributeError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise StoreError(f"a record ({kind_of(body)}) cannot be stored: {error}") from error
    return data, blobs


def _packed(body: Body) -> tuple[bytes, dict[str, bytes]]:
    if isinstance(body, Segment) and body.kind in _PLAIN:
        return jsontext.dumps(body), {}
    if isinstance(body, Segment) and body.kind == STEP_FINISH:
        return _pack_step(body)
    if _has_only_text(body) and len(data := jsontext.dumps(body)) <= LONG_TEXT:
        return data, {}
    blobs: dict[str, bytes] = {}
    # Events are JSON: bytes in them stand for their base64.
    key = "$base64" if isinstance(body, Segment) and body.kind == "tool-event" else "$bytes"
    plain = msgspec.to_builtins(body, builtin_types=(bytes,))
    try:
        tree = _outside(plain, blobs, key)
    except RecursionError:  # A tool's result can nest to any depth; then it stands in the record as it is.
        return jsontext.dumps(body), {}
    if blobs:
        _whole(msgspec.convert(plain, Body, builtin_types=(bytes,)))
    return jsontext.dumps(tree), blobs


def _has_only_text(body: Body) -> bool:
    """True for the usual beginning of a turn: no bytes can be in it."""
    match body:
        case MessageAdded(message):
            return not message.metadata and all(type(part) is TextPart for part in message.parts)
        case RunStarted():
            return not body.details
        case _:
            return False


def _pack_step(body: Segment) -> tuple[bytes, dict[str, bytes]]:
    """The end of a step; what only a replay needs is a blob unless it is small."""
    (part, *others) = body.parts
    if not isinstance(part, StepFinish) or part.outcome is None:
        return jsontext.dumps(body), {}
    outcome, blobs = for_log(part.outcome)
    return jsontext.dumps(replace(body, parts=(replace(part, outcome=outcome), *others))), blobs


def unpack(row: Row, load: Callable[[str], bytes] | None = None) -> Record:
    """The record of a row. Without `load`, a blob that it refers to stands as an address in its place.

    Raises StoreError for what is no record.
    """
    try:
        body = _body(row, load)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        message = f"the record {row.seq} ({row.kind}) is damaged: {error}; `sidestream logs show` shows the others"
        raise StoreError(message) from error
    return Record(seq=row.seq, time=row.time, run=row.run, body=body, blobs=row.blobs)


def _body(row: Row, load: Callable[[str], bytes] | None) -> Body:
    has_content = row.blobs and row.kind != STEP_FINISH
    if not has_content and not (row.kind == "message" and b'"arguments' in row.body):
        try:
            body = _decoded(row.body)
        except msgspec.ValidationError:
            body = _converted(jsontext.loads(row.body))
    else:
        tree = _inside(jsontext.loads(row.body), frozenset(row.blobs), load)
        body = _converted(_renamed(tree) if row.kind == "message" else tree, builtin_types=(bytes,))
    body = _whole(body)
    return _with_outcome(body) if isinstance(body, Segment) and body.kind == STEP_FINISH else body


def _whole(body: Body) -> Body:
    if isinstance(body, Segment) and not body.parts:
        raise ValueError("a segment without parts")
    return body


def _decoded(data: bytes) -> Body:
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # Half a surrogate pair.
        return msgspec.convert(jsontext.loads(data), Body)


def _converted(tree: Any, builtin_types: tuple[type, ...] = ()) -> Body:
    try:
        return msgspec.convert(tree, Body, builtin_types=builtin_types)
    except msgspec.ValidationError:
        return msgspec.convert(_renamed(tree), Body, builtin_types=builtin_types)


# Records of older versions

_OLD_NAMES = {"file": {"media_type": "mime_type"}, "tool-call": {"arguments": "input", "arguments_text": "input_text"}}
"""Type of a part → fields that had other names."""


def _renamed(tree: Any) -> Any:
    """A body of a message or a segment with today's names of fields."""
    body = jsontext.as_object(tree)
    if "message" in body:
        return {**body, "message": _renamed(body["message"])}
    return {**body, "parts": [_renamed_part(part) for part in jsontext.objects(body.get("parts"))]}


def _renamed_part(part: jsontext.JsonObject) -> jsontext.JsonObject:
    names = _OLD_NAMES.get(str(part.get("type")), {})
    part = {names.get(key, key): value for key, value in part.items()}
    usage = jsontext.as_object(part.get("usage"))
    if counts := jsontext.as_object(usage.get("server_tool_use")):
        # What a provider counted with `true` was stored.
        part["usage"] = usage | {"server_tool_use": {tool: n for tool, n in counts.items() if type(n) is int}}
    return part


def _with_outcome(body: Segment) -> Segment:
    """What the decoder said to the turn used to stand in the provider's metadata."""
    (part, *others) = body.parts
    old = part.provider_metadata if isinstance(part, StepFinish) and part.outcome is None else None
    if old is None or not old.keys() & {"message_metadata", "summaries", "continue", "keep"}:
        return body
    outcome = StepOutcome(
        message_metadata=jsontext.as_object(old.get("message_metadata")),
        summaries=jsontext.as_object(old.get("summaries")),
        is_paused=old.get("continue") is True,
        is_kept=old.get("keep") is True,
    )
    return replace(body, parts=(replace(part, outcome=outcome, provider_metadata=None), *others))


def _outside(value: Any, blobs: dict[str, bytes], key: str) -> Any:
    """The value with bytes and long texts replaced by their addresses; bytes get this key."""
    match value:
        case bytes():
            return {key: _put(value, blobs)}
        case str() if len(value) > LONG_TEXT:
            # A file that a provider sent as base64 is stored as the file, which other records may name too.
            data = _from_base64(value)
            if data is not None:
                return {"$base64": _put(data, blobs)}
            return {"$text": _put(value.encode("utf-8", "surrogatepass"), blobs)}
        case dict():
            return {name: _outside(inner, blobs, key) for name, inner in cast(dict[str, Any], value).items()}
        case list() | tuple():
            return [_outside(inner, blobs, key) for inner in cast(list[Any], value)]
        case _:
            return value


def _from_base64(text: str) -> bytes | None:
    """The bytes whose base64 is exactly this text."""
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return None
    return data if b64encode(data) == text.encode() else None


def _put(data: bytes, blobs: dict[str, bytes]) -> str:
    digest = sha256(data).hexdigest()
    blobs[digest] = data
    return digest


def _inside(value: Any, known: frozenset[str], load: Callable[[str], bytes] | None) -> Any:
    """The value with addresses replaced by what they stand for; only addresses that the record itself lists count."""
    match value:
        case {"$bytes": str(digest), **others} if not others and digest in known:
            return load(digest) if load else f"sha256:{digest}".encode()
        case {"$base64": str(digest), **others} if not others and digest in known:
            return b64encode(load(digest)).decode() if load else f"sha256:{digest}"
        case {"$text": str(digest), **others} if not others and digest in known:
            return load(digest).decode("utf-8", "surrogatepass") if load else f"sha256:{digest}"
        case dict():
            return {key: _inside(inner, known, load) for key, inner in cast(dict[str, Any], value).items()}
        case list():
            return [_inside(inner, known, load) for inner in cast(list[Any], value)]
        case _:
            return value


def open_run(rows: Sequence[Row]) -> Row | None:
    """Return the record with which the run in progress began, or was resumed; None if none is in progress."""
    for row in reversed(rows):
        if row.kind == STARTED:
            return row
        if row.kind in ENDINGS:
            return None
    return None
