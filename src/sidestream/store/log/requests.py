"""The requests of a conversation, each recorded as what it changes of the one before."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, count
from operator import ne
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from sidestream import __version__, jsontext
from sidestream.errors import StoreError
from sidestream.messages.message import TextPart
from sidestream.parts import TextDelta, TextEnd, TextStart, ToolCall, ToolResult
from sidestream.store.records import (
    CONVERSATION,
    LONG_TEXT,
    REQUEST,
    Body,
    MessageAdded,
    RequestSent,
    Row,
    Segment,
    body_of,
    stored_field,
    unpack,
)
from sidestream.text.redaction import REDACTED, without_registered

SAYS = frozenset({"message", "text", "tool-call", "tool-result"})
"""Kinds of the records whose text a later request repeats."""
SHORT_TEXT = 48
"""Characters of a string that is stored again rather than referred to."""

_Field = Raw | bytes | list[Raw] | list[bytes]
"""A field of a request in comparable form, the conversation as its items."""

_CREDENTIALS = frozenset({"authorization", "authorization_token", "api_key"})
"""Fields of tools and servers whose strings are secrets."""

_BRACKET = ord("[")
_fields_in = msgspec.json.Decoder(dict[str, Raw]).decode
_items_in = msgspec.json.Decoder(list[Raw]).decode


class ConversationRequest(Struct, frozen=True, kw_only=True):
    """A request of a conversation, as it was sent."""

    seq: int
    """Sequence number of its record."""
    time: float
    run: str
    step: int
    """Index in its turn of the step that the response is for."""
    model: str
    """Model as `provider:name`."""
    path: str
    """Path of the API, without its query."""
    body: jsontext.JsonObject
    encoder: str = ""
    """Version of Sidestream that encoded it."""


class RequestLog:
    """Turns the requests of one conversation into records."""

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self._rows = rows if any(row.kind == REQUEST for row in rows) else ()
        """Records of the conversation so far, until the first request."""
        self._base = 0
        self._last: Mapping[str, _Field] = {}
        """Fields of the last request."""
        self._said: list[tuple[int, Body]] = []
        """Records since the last request whose text the next one may repeat."""

    def note(self, seq: int, body: Body) -> None:
        """Take note of a record of a kind in `SAYS`."""
        self._said.append((seq, body))

    def request(self, body: bytes, seq: int, *, model: str, path: str, step: int) -> RequestSent | None:
        """Return the record of a request with this JSON body, or None if it is not a JSON object."""
        try:
            sent = _fields_in(body)
        except (msgspec.DecodeError, UnicodeError):
            return None
        fields = {name: _compared(name, raw) for name, raw in sent.items()}
        base, before, now = self._base, self._last, fields
        if self._rows:
            base, before = self._earlier()
            now = {name: _stored_form(name, raw) for name, raw in sent.items()}
            self._rows = ()
        kept: dict[str, int] = {}
        changed: jsontext.JsonObject = {}
        for name, value in now.items():
            known = before.get(name)
            if value == known:
                continue
            same = _leading(known, value) if isinstance(known, list) and isinstance(value, list) else 0
            if same:
                kept[name] = same
                own = cast("list[Raw]", fields[name])[same:]
                changed[name] = _plain(name, b"[%b]" % b",".join(map(bytes, own)))
            else:
                changed[name] = _plain(name, bytes(sent[name]))
        gone = tuple(sorted(before.keys() - now.keys()))
        self._base, self._last = seq, fields
        return RequestSent(model, path, changed, step, base, kept, gone, __version__)

    def referring(self, request: RequestSent) -> RequestSent:
        """Return the record with texts that earlier records hold replaced by references to them."""
        said, self._said = self._said, []
        known = {text: seq for seq, body in said if SHORT_TEXT <= len(text := text_of(body)) <= LONG_TEXT}
        if not known:
            return request
        used: set[int] = set()
        fields = {
            name: _with_references(value, known, used) if name in CONVERSATION else value
            for name, value in request.body.items()
        }
        return replace(request, body=fields, texts=tuple(sorted(used))) if used else request

    def forget(self) -> None:
        """Forget the noted texts, since the request that may repeat them has no record."""
        self._said.clear()

    def _earlier(self) -> tuple[int, Mapping[str, _Field]]:
        """Return the sequence number of the last recorded request, and its fields in their stored form."""
        try:
            *_, last = requests_in(self._rows)
        except StoreError:
            return 0, {}
        return last.seq, {name: _comparable(name, value) for name, value in last.body.items()}


def requests_in(rows: Iterable[Row], blobs: Mapping[str, bytes] | None = None) -> list[ConversationRequest]:
    """Return the requests among all rows of a conversation, with the given blobs in place.

    Raises StoreError if a record that a request refers to is missing.
    """
    by_seq = {row.seq: row for row in rows}
    found: dict[int, ConversationRequest] = {}
    for row in by_seq.values():
        if row.kind != REQUEST:
            continue
        record = unpack(row)
        sent = record.body
        assert isinstance(sent, RequestSent)
        try:
            texts = {seq: text_of(unpack(by_seq[seq]).body) for seq in sent.texts}
            base = found[sent.base].body if sent.base else {}
        except KeyError as error:
            message = f"the request {row.seq} refers to the record {error}, which is missing"
            raise StoreError(message) from error
        found[row.seq] = ConversationRequest(
            seq=row.seq,
            time=row.time,
            run=row.run,
            step=sent.step,
            model=sent.model,
            path=sent.path,
            body=_joined(base, sent, _without_references(body_of(record, blobs or {}), texts)),
            encoder=sent.encoder,
        )
    return list(found.values())


def text_of(body: Body) -> str:
    """Return the text that a later request may repeat, or an empty string if a record has no single one."""
    match body:
        case MessageAdded(message) if len(message.parts) == 1 and isinstance(message.parts[0], TextPart):
            return message.parts[0].text
        case Segment(parts=(ToolResult(result=str(text)),)):
            return text
        case Segment(parts=(ToolResult(result=result),)):
            return jsontext.dumps(result).decode()
        case Segment(parts=(ToolCall() as call,)):
            return call.input_text or jsontext.dumps(call.input).decode()
        case Segment(parts=(*_, TextEnd(text=str(final)))) if final:
            return final
        case Segment(parts=(TextStart(), *rest)):
            return "".join(part.delta for part in rest if isinstance(part, TextDelta))
        case _:
            return ""


def _leading(known: Sequence[Raw | bytes], value: Sequence[Raw | bytes]) -> int:
    """Return the number of leading items that two arrays share."""
    return next(compress(count(), map(ne, known, value)), min(len(known), len(value)))


def _joined(base: jsontext.JsonObject, sent: RequestSent, changed: jsontext.JsonObject) -> jsontext.JsonObject:
    whole = {name: value for name, value in base.items() if name not in sent.gone}
    for name, value in changed.items():
        whole[name] = [*base[name][: sent.kept[name]], *value] if name in sent.kept else value
    return whole


def _compared(name: str, raw: Raw) -> _Field:
    """Return a field as it was sent, the conversation as its items."""
    return _items_in(raw) if name in CONVERSATION and memoryview(raw)[0] == _BRACKET else raw


def _stored_form(name: str, raw: Raw) -> _Field:
    return _comparable(name, stored_field(name, _plain(name, bytes(raw)), {}))


def _comparable(name: str, value: Any) -> _Field:
    if name in CONVERSATION and isinstance(value, list):
        return [jsontext.dumps(item) for item in cast("list[Any]", value)]
    return jsontext.dumps(value)


def _plain(name: str, data: bytes) -> Any:
    """Parse a field, without the secrets in it."""
    value = jsontext.loads(without_registered(data.decode("utf-8", "replace")))
    return value if name in CONVERSATION else _without_credentials(value)


def _without_credentials(value: Any, name: str = "") -> Any:
    match value:
        case str() if name in _CREDENTIALS:
            return REDACTED
        case dict():
            fields = cast("jsontext.JsonObject", value)
            if name == "headers":
                return {key: REDACTED if isinstance(inner, str) else inner for key, inner in fields.items()}
            if name == "domain_secrets":
                return {**fields, "value": REDACTED}
            return {key: _without_credentials(inner, key) for key, inner in fields.items()}
        case list():
            return [_without_credentials(inner, name) for inner in cast("list[Any]", value)]
        case _:
            return value


def _with_references(value: Any, known: Mapping[str, int], used: set[int]) -> Any:
    """Replace strings that records hold by `{"$of": number}`."""
    match value:
        case str():
            if value not in known:
                return value
            used.add(known[value])
            return {"$of": known[value]}
        case dict():
            fields = cast("jsontext.JsonObject", value)
            return {key: _with_references(inner, known, used) for key, inner in fields.items()}
        case list():
            return [_with_references(inner, known, used) for inner in cast("list[Any]", value)]
        case _:
            return value


def _without_references(value: Any, texts: Mapping[int, str]) -> Any:
    """Put the texts of records in place. Only those that the request itself lists count."""
    match value:
        case {"$of": int(seq), **others} if not others and seq in texts:
            return texts[seq]
        case dict():
            fields = cast("jsontext.JsonObject", value)
            return {key: _without_references(inner, texts) for key, inner in fields.items()}
        case list():
            return [_without_references(inner, texts) for inner in cast("list[Any]", value)]
        case _:
            return value
