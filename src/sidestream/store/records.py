"""The units of the event log.

A conversation's log is its part stream with the deltas joined. A block is one segment, or, if it took longer, a few
increments and the segment that closes it. Other records hold the state transitions that no part reports, such as an
added message, a started tool or an approval decision. Bytes and very long strings are stored as blobs, which the record
refers to.
"""

import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import StoreError
from sidestream.evidence.verdict import Evidence
from sidestream.messages.fold import MessageMetadata
from sidestream.messages.message import ChatMessage, TextPart
from sidestream.messages.references import for_log
from sidestream.parts import StepFinish, StepOutcome, StreamPart
from sidestream.store import older_names
from sidestream.tools.approvals import Decision, PendingApproval, Suspended
from sidestream.tools.grants import Grant
from sidestream.tools.interruption import InterruptionPolicy

LONG_TEXT = 16 * 1024
"""Maximum length of a string in provider JSON, in characters. Longer ones, mostly images in base64, become blobs."""

SHARED_TEXT = 256
"""Maximum length of a system prompt or tool definition in a request's record. Longer ones become blobs."""
_DATA_URL = r"data:[\w.+/;=-]{1,100};base64,"
CONVERSATION = ("messages", "input", "contents")
"""Fields in which APIs take the conversation. The other fields are the same in many requests."""


class _Body(Struct, frozen=True, tag_field="type", omit_defaults=True):
    pass


class MessageAdded(_Body, frozen=True, tag="message"):
    """A user message that opens a turn, or a message of an imported history."""

    message: ChatMessage
    opens_turn: bool = True


class RunStarted(_Body, frozen=True, tag="run-started"):
    """The start of a run, or its resumption of the open turn."""

    model: str
    """Model as `provider:name`."""
    message_metadata: MessageMetadata = "session"
    resumes: bool = False
    details: jsontext.JsonObject = {}
    """Details that the program attaches to the run with `Chat.run_details`."""


class Segment(_Body, frozen=True, tag="segment"):
    """The parts of one block of the stream, with all deltas joined into one.

    The kinds `text-delta` and `reasoning-delta` are increments of a block that is still open. The first increment
    includes the block's start, and the segment that closes the block then holds only the rest.
    """

    kind: str
    parts: tuple[StreamPart, ...]
    place: int = 0
    """Position in its step at which the block began. Blocks end in another order than they begin."""


class RequestPrepared(_Body, frozen=True, tag="request-prepared"):
    """Records that a request that differs from the usual one is about to be sent."""

    without: tuple[str, ...] = ()
    """Features that the request omits because the provider refused or lacks them."""
    defers_output: bool = False
    """Whether the typed answer needs a separate request."""


class RequestSent(_Body, frozen=True, tag="request-sent"):
    """Records a request that is about to be sent, without its headers, as the change from an earlier one.

    `Conversation.requests` puts the bodies together again.
    """

    model: str
    """Model as `provider:name`."""
    path: str
    """Path of the API, without its query."""
    body: jsontext.JsonObject
    """Fields of the request's JSON that differ from the earlier request. An array holds its items after `kept`."""
    step: int = 0
    """Index in its turn of the step that the response is for."""
    base: int = 0
    """Sequence number of the earlier request. Zero means that `body` is complete."""
    kept: dict[str, int] = {}
    """Leading items that an array shares with the earlier request's, by field."""
    gone: tuple[str, ...] = ()
    """Fields that only the earlier request has."""
    encoder: str = ""
    """Version of Sidestream that encoded the request."""
    texts: tuple[int, ...] = ()
    """Sequence numbers of the records whose text appears in `body` as `{"$of": number}`."""


class ResponseReceived(_Body, frozen=True, tag="response-received"):
    """The provider's own bytes of a response. It has no effect on the history."""

    content: bytes
    """A whole body, or the events of a stream in the format of server-sent events."""
    step: int = 0
    status: int = 200
    is_stream: bool = True


class ToolStarted(_Body, frozen=True, tag="tool-started"):
    """Records that a client tool is about to run."""

    call_id: str
    name: str
    key: str = ""
    """Idempotency key, which is the same for each attempt."""
    on_interruption: InterruptionPolicy = "ask"
    """How to treat the call if the log has no result for it."""


class ToolSuspended(_Body, frozen=True, tag="tool-suspended"):
    """Records that a tool waits for the user or for work in another process."""

    call_id: str
    suspended: Suspended


class ApprovalAsked(_Body, frozen=True, tag="approval-asked"):
    """Records that a call waits for approval."""

    approval: PendingApproval


class ApprovalDecided(_Body, frozen=True, tag="approval-decided"):
    """Records an approval decision."""

    decision: Decision


class ApprovalRefused(_Body, frozen=True, tag="approval-refused"):
    """Records that a decision was refused, because no call waits for it or it came too late. It has no effect."""

    approval_id: str
    reason: str


class GrantsSet(_Body, frozen=True, tag="grants"):
    """The complete remembered approvals of the conversation, written when one is revoked or carried over."""

    grants: tuple[Grant, ...] = ()


class RunCancelled(_Body, frozen=True, tag="cancelled"):
    """Records that the run was abandoned before its end."""


class TurnDiscarded(_Body, frozen=True, tag="discarded"):
    """Records that the open turn was dropped. The conversation continues from before it."""


class TurnKept(_Body, frozen=True, tag="kept"):
    """Records that the output of the open turn counts, although the turn did not finish."""


class Noted(_Body, frozen=True, tag="noted"):
    """Details that the program attaches to the conversation. They have no effect, and must not contain secrets."""

    details: jsontext.JsonObject


class Forked(_Body, frozen=True, tag="forked"):
    """Records that the conversation was copied from another one, up to here. The rest is its own."""

    conversation: str
    """Id of the other conversation."""
    seq: int
    """Sequence number of the record after which it was forked."""
    changes: jsontext.JsonObject = {}
    """Facts that were changed, by kind."""
    copied: int = 0
    """Records from the other log, including those after `seq` that were replayed."""
    equal: int = 0
    """Replayed requests, each equal to the recorded one."""
    parted: str = ""
    """First field of the first request that differs from the recorded one, with both values."""


class CheckedClaim(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the claims in an answer, and what its cited page proves."""

    step: int
    source: str
    """Id of the source in its step."""
    text: str
    evidence: Evidence
    url: str | None = None
    title: str | None = None
    snapshot: str | None = None
    """Digest of the page that it was compared with. None means that the page could not be read."""
    passage: str = ""
    """Words or sentence of the page that decided."""


class PageSnapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page or a file as it was when a claim was compared with it."""

    sha256: str
    """Digest of its bytes, which the store has as a blob."""
    url: str
    """URL that answered, after redirects, or the id or name of the file."""
    retrieved_at: str
    """Time at which its server last confirmed it, in RFC 3339 format."""
    mime_type: str = ""
    size: int = 0
    """Bytes of the page."""


class EvidenceChecked(_Body, frozen=True, tag="evidence-checked"):
    """Records that cited pages and files were read and compared with an answer. It has no effect on the history."""

    claims: tuple[CheckedClaim, ...]
    snapshots: tuple[PageSnapshot, ...] = ()


Body = (
    MessageAdded
    | RunStarted
    | Segment
    | RequestPrepared
    | RequestSent
    | ResponseReceived
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
    | Forked
    | EvidenceChecked
)


class Row(Struct, frozen=True, kw_only=True):
    """A record in its stored form."""

    seq: int
    """Sequence number in the conversation, starting at 1 without gaps."""
    time: float
    """Seconds since 1970 by the clock of the machine that wrote the record. Records are ordered by `seq`."""
    run: str
    kind: str
    body: bytes
    """Body as JSON."""
    blobs: tuple[str, ...] = ()
    """SHA-256 digests, in hex, of the blobs that the body refers to."""


class Record(Struct, frozen=True, kw_only=True):
    """One event of a conversation."""

    seq: int
    time: float
    run: str
    body: Body
    blobs: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Kind of the record, which is the kind of a segment or else the type of the body."""
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
"""Segments that refer to no blobs."""
STEP_FINISH = "step-finish"
"""Kind of the segment whose blobs are read only to resend the step."""
CHECKED = "evidence-checked"
"""Kind of the record whose blobs are mostly pages. They are read only by those who ask for them."""
STARTED = "run-started"
REQUEST = "request-sent"
RESPONSE = "response-received"
_UNREAD = frozenset({STEP_FINISH, REQUEST, RESPONSE})
"""Kinds of records whose blobs are read only by those who ask for them."""
INCREMENT = "text-delta"
"""Kind of the increments of an open text block."""
TEXT_KINDS = ("message", "text", INCREMENT)
"""Kinds of the records with the text of messages and answers."""
FORKED = "forked"
ENDINGS = frozenset({"finish", "cancelled", "discarded", "kept", "message", FORKED})
"""Kinds of records after which no run is in progress."""


def kind_of(body: Body) -> str:
    """Return the kind of a record's body."""
    return body.kind if isinstance(body, Segment) else str(body.__struct_config__.tag)


def content_of(row: Row) -> tuple[str, ...]:
    """Return the digests of the blobs that hold a part of the record itself."""
    if row.kind in _UNREAD:
        return ()
    if row.kind == CHECKED:
        return tuple(digest for digest in row.blobs if re.search(rf'"\$\w+":\s*"{digest}"'.encode(), row.body))
    return row.blobs


def pack(body: Body) -> tuple[bytes, dict[str, bytes]]:
    """Serialize a body to JSON, and return it with the blobs that it refers to, by digest.

    Raises StoreError if `unpack` could not read the result, since a struct may hold values that do not match the types
    of its fields.
    """
    try:
        data, blobs = _packed(body)
        if not blobs or kind_of(body) in (STEP_FINISH, REQUEST):
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
    if isinstance(body, RequestSent):
        return _pack_request(body)
    blobs: dict[str, bytes] = {}
    # Events are JSON, so bytes in them represent base64.
    key = "$base64" if isinstance(body, Segment) and body.kind == "tool-event" else "$bytes"
    plain = msgspec.to_builtins(body, builtin_types=(bytes,))
    if isinstance(body, ResponseReceived):
        _whole(msgspec.convert(plain, Body, builtin_types=(bytes,)))
        return jsontext.dumps({**plain, "content": {"$zlib": _put(zlib.compress(body.content), blobs)}}), blobs
    try:
        tree = _outside(plain, blobs, key)
    except RecursionError:  # A tool result may nest to any depth; keep it inline.
        return jsontext.dumps(body), {}
    if blobs:
        _whole(msgspec.convert(plain, Body, builtin_types=(bytes,)))
    return jsontext.dumps(tree), blobs


def _has_only_text(body: Body) -> bool:
    """Return whether the body cannot contain bytes, as is usual at the start of a turn."""
    match body:
        case MessageAdded(message):
            return not message.metadata and all(type(part) is TextPart for part in message.parts)
        case RunStarted():
            return not body.details
        case _:
            return False


def _pack_step(body: Segment) -> tuple[bytes, dict[str, bytes]]:
    """Serialize the end of a step, moving what only a resend needs to a blob unless it is small."""
    (part, *others) = body.parts
    if not isinstance(part, StepFinish) or part.outcome is None:
        return jsontext.dumps(body), {}
    outcome, blobs = for_log(part.outcome)
    return jsontext.dumps(replace(body, parts=(replace(part, outcome=outcome), *others))), blobs


def _pack_request(body: RequestSent) -> tuple[bytes, dict[str, bytes]]:
    """Serialize a request, moving what many requests have in common to blobs."""
    blobs: dict[str, bytes] = {}
    try:
        fields = {name: stored_field(name, value, blobs) for name, value in body.body.items()}
    except RecursionError:
        return jsontext.dumps(body), {}
    return jsontext.dumps(replace(body, body=fields)), blobs


def stored_field(name: str, value: Any, blobs: dict[str, bytes]) -> Any:
    """Return a request's field with blob addresses in place of what is long or common to many requests."""
    if name in CONVERSATION and isinstance(value, list):
        return [
            _outside(item, blobs, "$url", SHARED_TEXT if _is_instruction(item) else LONG_TEXT)
            for item in cast(list[Any], value)
        ]
    if isinstance(value, dict | list) and len(data := jsontext.dumps(value)) >= SHARED_TEXT:
        return {"$json": _put(data, blobs)}
    return _outside(value, blobs, "$url", SHARED_TEXT)


def _is_instruction(item: Any) -> bool:
    return jsontext.as_object(item).get("role") in ("system", "developer")


def unpack(row: Row, load: Callable[[str], bytes] | None = None) -> Record:
    """Decode the record of a row.

    Without `load`, blobs are replaced by their addresses. Raises StoreError if the row is not a valid record.
    """
    try:
        body = _body(row, load)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        message = f"the record {row.seq} ({row.kind}) is damaged: {error}; `sidestream logs show` shows the others"
        raise StoreError(message) from error
    return Record(seq=row.seq, time=row.time, run=row.run, body=body, blobs=row.blobs)


def _body(row: Row, load: Callable[[str], bytes] | None) -> Body:
    has_content = row.blobs and row.kind not in (STEP_FINISH, REQUEST)
    if older_names.is_used(row.kind, row.body):
        return _whole(_of_older_names(row, load))
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


def _of_older_names(row: Row, load: Callable[[str], bytes] | None) -> Body:
    """Decode a segment that an older version may have written, with its own names of tools and stages."""
    tree = jsontext.as_object(jsontext.loads(row.body))
    given = older_names.all_renamed(jsontext.objects(tree.get("parts")))
    return _converted(_inside({**tree, "parts": given}, frozenset(row.blobs), load), builtin_types=(bytes,))


def _whole(body: Body) -> Body:
    if isinstance(body, Segment) and not body.parts:
        raise ValueError("the segment has no parts")
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
"""Old names of fields, by part type."""


def _renamed(tree: Any) -> Any:
    """Rename the fields of a message or segment body that an older version wrote."""
    body = jsontext.as_object(tree)
    if "message" in body:
        return {**body, "message": _renamed(body["message"])}
    return {**body, "parts": [_renamed_part(part) for part in jsontext.objects(body.get("parts"))]}


def _renamed_part(part: jsontext.JsonObject) -> jsontext.JsonObject:
    names = _OLD_NAMES.get(str(part.get("type")), {})
    part = {names.get(key, key): value for key, value in part.items()}
    usage = jsontext.as_object(part.get("usage"))
    if counts := jsontext.as_object(usage.get("server_tool_use")):
        # Older versions stored a provider's `true` as a count.
        part["usage"] = usage | {"server_tool_use": {tool: n for tool, n in counts.items() if type(n) is int}}
    return part


def _with_outcome(body: Segment) -> Segment:
    """Move the decoder's outcome out of the provider's metadata, where older versions stored it."""
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


def _outside(value: Any, blobs: dict[str, bytes], key: str, limit: int = LONG_TEXT) -> Any:
    """Replace bytes and strings longer than `limit` by blob addresses. Bytes get this key.

    With the key `$url`, for JSON without bytes, files in data: URLs are stored in binary.
    """
    match value:
        case bytes():
            return {key: _put(value, blobs)}
        case str() if len(value) > limit:
            if key == "$url" and (url := re.match(_DATA_URL, value)):
                data = _from_base64(value[url.end() :])
                if data is not None:
                    return {"$url": url[0], "$base64": _put(data, blobs)}
            # Store a file that the provider sent as base64 in binary, so that other records can share it.
            data = _from_base64(value)
            if data is not None:
                return {"$base64": _put(data, blobs)}
            return {"$text": _put(value.encode("utf-8", "surrogatepass"), blobs)}
        case dict():
            return {name: _outside(inner, blobs, key, limit) for name, inner in cast(dict[str, Any], value).items()}
        case list() | tuple():
            return [_outside(inner, blobs, key, limit) for inner in cast(list[Any], value)]
        case _:
            return value


def _from_base64(text: str) -> bytes | None:
    """Return the bytes whose base64 is exactly this string, or None."""
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return None
    return data if b64encode(data) == text.encode() else None


def _put(data: bytes, blobs: dict[str, bytes]) -> str:
    digest = sha256(data).hexdigest()
    blobs[digest] = data
    return digest


def body_of(request: Record, blobs: Mapping[str, bytes]) -> jsontext.JsonObject:
    """Return the `body` of a `RequestSent` with its blobs in place. Those that are not given stay addresses."""
    assert isinstance(request.body, RequestSent)
    return _inside(request.body.body, frozenset(request.blobs) & blobs.keys(), blobs.__getitem__)


def _inside(value: Any, known: frozenset[str], load: Callable[[str], bytes] | None) -> Any:
    """Replace blob addresses by the content. Only addresses that the record itself lists count."""
    match value:
        case {"$url": str(start), "$base64": str(digest), **others} if not others and digest in known:
            return start + b64encode(load(digest)).decode() if load else f"{start}sha256:{digest}"
        case {"$json": str(digest), **others} if not others and digest in known:
            return jsontext.loads(load(digest)) if load else f"sha256:{digest}"
        case {"$zlib": str(digest), **others} if not others and digest in known:
            return zlib.decompress(load(digest)) if load else f"sha256:{digest}".encode()
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
    """Return the record that started or resumed the run in progress, or None."""
    for row in reversed(rows):
        if row.kind == STARTED:
            return row
        if row.kind in ENDINGS:
            return None
    return None
