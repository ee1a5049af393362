"""Cassettes: the recorded requests, answers, tool results and decisions of one logged turn, without secrets.

A cassette is a JSON file beside the test that replays it. Its answers are the parts of the log, so that any provider's
run can be replayed, whatever its events looked like.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ConfigurationError, StoreError
from sidestream.files.media_types import digest
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import blob_of, blobs_of
from sidestream.messages.sessions import DIGEST, is_session_key
from sidestream.messages.steering import steered_message
from sidestream.parts import (
    Custom,
    File,
    Finish,
    Json,
    Source,
    Steer,
    StepFinish,
    StepStart,
    StreamPart,
    ToolCall,
    ToolEvent,
    ToolResult,
)
from sidestream.replay.comparison import BASE64, EMAIL, HIDDEN_HOST, is_opaque, text_in_base64, without_secrets
from sidestream.run.preparation import REQUEST_DELAYED, TRANSPORT_FALLBACK
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.fold import fold, stream_of
from sidestream.store.records import STEP_FINISH, ApprovalDecided, MessageAdded, Record, RunStarted, TurnDiscarded
from sidestream.text.redaction import REDACTED, is_secret_header

if TYPE_CHECKING:
    from sidestream.store.protocol import Store

_OF_RUN = frozenset({REQUEST_DELAYED, TRANSPORT_FALLBACK})
"""Kinds of custom parts in a step that the run itself adds."""
_VERSION = 1


class RecordedStep(Struct, frozen=True):
    """One model call: the request's body, and the parts of its answer."""

    request: Json
    parts: list[Any]


class RecordedResult(Struct, frozen=True, omit_defaults=True):
    """What a client tool returned for one call."""

    call_id: str
    name: str
    input: Json
    result: Json
    is_error: bool = False
    parts: list[Any] = []
    """Files, sources and events that the tool emitted."""


class RecordedDecision(Struct, frozen=True, omit_defaults=True):
    """A person's answer to a pending approval."""

    call_id: str
    is_approved: bool
    reason: str | None = None
    output: Json = None
    is_error: bool = False
    is_external: bool = False
    answers: dict[str, Any] | None = None


class RecordedSteer(Struct, frozen=True):
    """A message that the user sent during the run."""

    request: int
    """Index of the request that took it."""
    message: Json


class RedactedValue(Struct, frozen=True):
    """A value that was replaced in a cassette: its kind, its replacement, and where it stood."""

    kind: str
    replacement: str
    paths: list[str]


class Cassette(Struct, kw_only=True):
    """A recorded turn, as `sidestream logs test` writes it."""

    run: str
    model: str
    prompt: Json
    """The user's message."""
    steps: list[RecordedStep]
    history: list[Any] = field(default_factory=list[Any])
    """Messages before the turn."""
    results: list[RecordedResult] = field(default_factory=list[RecordedResult])
    decisions: list[RecordedDecision] = field(default_factory=list[RecordedDecision])
    steers: list[RecordedSteer] = field(default_factory=list[RecordedSteer])
    agent: str | None = None
    """The tested agent as `module:name`. None means one that is rebuilt from the first request."""
    finish_reason: str = ""
    redacted: list[RedactedValue] = field(default_factory=list[RedactedValue])
    version: int = _VERSION

    @staticmethod
    def load(path: str | Path) -> "Cassette":
        """Load a cassette. Raises ConfigurationError if the file cannot be read or is not one."""
        try:
            found = msgspec.convert(jsontext.loads(Path(path).read_bytes()), Cassette)
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigurationError(f"{path} is not a cassette: {error}") from error
        if found.version > _VERSION:
            raise ConfigurationError(f"{path} was written by a newer version of Sidestream; upgrade this one")
        return found

    def save(self, path: str | Path) -> None:
        """Save the cassette to a file that `load` can read."""
        Path(path).write_text(json.dumps(msgspec.to_builtins(self), indent=1, ensure_ascii=False) + "\n", "utf-8")

    def message(self) -> ChatMessage:
        """Return the user's message."""
        return msgspec.convert(self.prompt, ChatMessage)

    def messages(self) -> list[ChatMessage]:
        """Return the messages before the turn."""
        return msgspec.convert(self.history, list[ChatMessage])


def step_parts(step: RecordedStep) -> list[StreamPart]:
    """Return the parts that a model's answer is replayed as, the last of which is its `finish`."""
    return [msgspec.convert(part, StreamPart) for part in step.parts]


async def cassette_of(store: "Store", conversation: str, run: str | None = None) -> Cassette:
    """Build the cassette of the turn of a run, or of a conversation's last turn. It still has its secrets.

    Raises StoreError if the log has no requests of it, as logs of older versions do.
    """
    log = Conversation(store, conversation)
    records = await log.records()
    start, end = _turn_of(records, run)
    opening = records[start].body
    assert isinstance(opening, MessageAdded)
    turn = records[start + 1 : end]
    history = list(fold(records[:start]).messages)
    digests = {digest for record in turn if record.kind == STEP_FINISH for digest in record.blobs}
    digests.update(digest for message in history for digest in blobs_of(message))
    blobs = {digest: await store.blob(digest) for digest in digests}
    first, last = records[start].seq, turn[-1].seq if turn else 0
    sent = await log.requests()
    requests = {request.step: request.body for request in sent if first < request.seq <= last}
    parts = stream_of(turn)
    answers = _answers(parts, blobs)
    if not answers or any(step not in requests for step in answers):
        raise StoreError("the log has no requests of this run: it was written by an older version, or left early")
    finish = next((part for part in reversed(parts) if isinstance(part, Finish)), None)
    started = next(record.body for record in turn if isinstance(record.body, RunStarted))
    return Cassette(
        run=next(record.run for record in turn if isinstance(record.body, RunStarted)),
        model=started.model,
        prompt=_plain(_inlined(opening.message, blobs)),
        history=[_plain(_inlined(message, blobs)) for message in history],
        steps=[RecordedStep(requests[step], [_plain(part) for part in answers[step]]) for step in sorted(answers)],
        results=results_of(parts),
        decisions=[_decision(record.body) for record in turn if isinstance(record.body, ApprovalDecided)],
        steers=_steers(parts, sorted(answers)),
        finish_reason="" if finish is None else finish.reason,
    )


def _turn_of(records: Sequence[Record], run: str | None) -> tuple[int, int]:
    """Return the indices of the record that opens a run's turn and of the one after its end."""
    bodies = [record.body for record in records]
    openings = [at for at, body in enumerate(bodies) if isinstance(body, MessageAdded) and body.opens_turn]
    starts = [
        at for at, record in enumerate(records) if isinstance(bodies[at], RunStarted) and run in (None, record.run)
    ]
    before = [at for at in openings if starts and at < starts[-1]]
    if not before:
        raise StoreError("the log has no such run")
    later = range(before[-1] + 1, len(bodies))
    end = next((at for at in later if isinstance(bodies[at], MessageAdded | TurnDiscarded)), len(bodies))
    return before[-1], end


def _answers(parts: Sequence[StreamPart], blobs: Mapping[str, bytes]) -> dict[int, list[StreamPart]]:
    """Return the parts of each complete answer, by step, without those that the run itself added.

    An answer that failed counts only if the turn ended with it.
    """
    found: dict[int, list[StreamPart]] = {}
    failed: set[int] = set()
    for at, part in enumerate(parts):
        if not isinstance(part, StepStart):
            continue
        answer: list[StreamPart] = []
        for inner in takewhile(lambda each: not isinstance(each, StepStart), parts[at + 1 :]):
            if isinstance(inner, StepFinish):
                outcome = inner.outcome
                if outcome is not None:
                    outcome = replace(outcome, message_metadata=_loaded(outcome.message_metadata, blobs))
                metadata = {} if outcome is None else outcome.metadata
                answer.append(Finish(inner.reason, inner.usage, metadata=metadata, outcome=outcome))
                found[part.step] = answer
                if inner.reason == "error":
                    failed.add(part.step)
                break
            if not (isinstance(inner, Steer) or (isinstance(inner, Custom) and inner.kind in _OF_RUN)):
                answer.append(inner)
    last = max(found, default=0)
    return {step: answer for step, answer in found.items() if step == last or step not in failed}


def results_of(parts: Sequence[StreamPart]) -> list[RecordedResult]:
    """Return the results of the client tools, in the order in which they came."""
    calls = {part.id: part for part in parts if isinstance(part, ToolCall) and not part.provider_executed}
    found: list[RecordedResult] = []
    for part in parts:
        if isinstance(part, ToolResult) and part.id in calls and not part.preliminary:
            emitted = [
                _plain(other)
                for other in parts
                if isinstance(other, File | Source | ToolEvent) and getattr(other, "call_id", None) == part.id
            ]
            call = calls[part.id]
            found.append(RecordedResult(part.id, part.name, call.input, part.result, part.is_error, emitted))
    return found


def _steers(parts: Sequence[StreamPart], steps: Sequence[int]) -> list[RecordedSteer]:
    """Return the messages that requests took during the turn."""
    found: list[RecordedSteer] = []
    taken: list[Steer] = []
    for part in parts:
        if isinstance(part, Steer) and part.status == "applied":
            taken.append(part)
        elif isinstance(part, StepStart):
            at = sum(step < part.step for step in steps)
            found += [RecordedSteer(at, _plain(steered_message(steer))) for steer in taken]
            taken = []
    return found


def _decision(body: ApprovalDecided) -> RecordedDecision:
    decision = body.decision
    output = decision.output
    return RecordedDecision(
        decision.call_id,
        decision.is_approved,
        decision.reason,
        None if output is None else output.value,
        is_error=output is not None and output.is_error,
        is_external=output is not None,
        answers=decision.answers,
    )


def _inlined(message: ChatMessage, blobs: Mapping[str, bytes]) -> ChatMessage:
    return replace(message, metadata=_loaded(message.metadata, blobs))


def _loaded(metadata: Mapping[str, Json], blobs: Mapping[str, bytes]) -> dict[str, Json]:
    """Return the metadata of a message with the contents of blobs in its sessions, which then fit any base URL."""

    def value(inner: Json) -> Json:
        digest = blob_of(inner)
        return jsontext.loads(blobs[digest]) if digest is not None and digest in blobs else inner

    return {
        key: {name: value(inner) for name, inner in cast("dict[str, Json]", session).items() if name != "base_url"}
        if key.startswith("_") and isinstance(session, dict)
        else session
        for key, session in metadata.items()
    }


def _plain(value: object) -> Any:
    """Convert to what JSON can hold, with bytes as base64."""
    return msgspec.to_builtins(value)


# Redaction

_SECRET = re.compile(re.escape(REDACTED))
_SECRET_FIELD = re.compile(
    r"(?i)token|.*(?:passw(?:or)?d|secret|credentials?|(?:api|private|secret|secret_?access)_?key"
    r"|(?:access|auth|refresh)_?token)"
)


class CassetteRedaction:
    """Replaces secrets and e-mail addresses, also in names, URLs, and JSON or base64 in strings.

    The same address has the same replacement everywhere.
    """

    def __init__(self, known: Iterable[RedactedValue] = ()) -> None:
        self.digests: dict[str, str] = {}
        """Digests of changed bytes → of what replaces them."""
        self._emails: dict[str, str] = {}
        self._count = sum(value.kind == "e-mail address" for value in known)
        self._paths: dict[tuple[str, str], list[str]] = {
            (value.kind, value.replacement): [*value.paths] for value in known
        }

    @property
    def report(self) -> list[RedactedValue]:
        """Replaced values, and where they stood."""
        return [RedactedValue(kind, new, paths) for (kind, new), paths in self._paths.items()]

    def clean(self, value: Json, path: str = "", name: str = "") -> Any:
        """Return a JSON value without secrets and e-mail addresses."""
        match value:
            case dict():
                found: dict[str, Any] = {}
                for key, inner in cast("dict[str, Json]", value).items():
                    new = self._plain_text(key, path)
                    found[new] = self.clean(inner, f"{path}.{new}" if path else new, key)
                return found
            case list() | tuple():
                return [
                    self.clean(inner, f"{path}[{at}]", name) for at, inner in enumerate(cast("Sequence[Json]", value))
                ]
            case str() if is_opaque(name):
                return value
            case str() if is_secret_header(name.replace("_", "-")) or _SECRET_FIELD.fullmatch(name):
                return value if value == REDACTED else self._noted("secret", REDACTED, path)
            case str():
                return self._text(value, path)
            case _:
                return value

    def _text(self, text: str, path: str) -> str:
        if text[:1] in ("{", "["):
            with suppress(ValueError, RecursionError):
                value = jsontext.loads(text)
                clean = self.clean(value, path)
                return text if clean == value else jsontext.dumps(clean).decode()
        return self._plain_text(BASE64.sub(lambda found: self._base64(found.group(), path), text), path)

    def _plain_text(self, text: str, path: str) -> str:
        clean = without_secrets(text)
        if clean != text and len(_SECRET.findall(clean)) > len(_SECRET.findall(text)):
            self._noted("secret", REDACTED, path)
        return EMAIL.sub(lambda found: self._hidden(found.group(), path), clean)

    def _hidden(self, written: str, path: str) -> str:
        """Return what replaces an e-mail address, which may be escaped for a URL."""
        address = written.replace("%40", "@")
        if address.endswith(f"@{HIDDEN_HOST}"):
            return written
        if address not in self._emails:
            self._count += 1
            self._emails[address] = f"person{self._count}@{HIDDEN_HOST}"
        hidden = self._noted("e-mail address", self._emails[address], path)
        return hidden if address == written else hidden.replace("@", "%40")

    def _base64(self, data: str, path: str) -> str:
        """Return base64 of the same text without secrets and e-mail addresses."""
        text = text_in_base64(data)
        clean = None if text is None else self._text(text, path)
        if text is None or clean is None or clean == text:
            return data
        new = clean.encode()
        self.digests[digest(text.encode())] = digest(new)
        encoded = b64encode(new).decode()
        return encoded if "=" in data or len(data) % 4 == 0 else encoded.rstrip("=")

    def _noted(self, kind: str, replacement: str, path: str) -> str:
        paths = self._paths.setdefault((kind, replacement), [])
        if path not in paths:
            paths.append(path)
        return replacement


def redacted(cassette: Cassette) -> Cassette:
    """Return a cassette without secrets and e-mail addresses, which lists what was replaced."""
    redaction = CassetteRedaction()
    plain = _plain(cassette)
    clean = {
        key: value if key in ("run", "model") else redaction.clean(value, key, key) for key, value in plain.items()
    }
    if redaction.report:
        clean = {key: _without_digests(value, redaction.digests) for key, value in clean.items()}
    return replace(msgspec.convert(clean, Cassette), redacted=redaction.report)


def _without_digests(value: Any, changed: Mapping[str, str], name: str = "") -> Any:
    """Return a value with the new digests of changed bytes, and without those of its sessions' messages."""
    match value:
        case str():
            return changed.get(value, value)
        case dict():
            fields = cast("dict[str, Any]", value)
            dropped = (DIGEST, "history") if is_session_key(name) else ()
            return {key: _without_digests(inner, changed, key) for key, inner in fields.items() if key not in dropped}
        case list() | tuple():
            return [_without_digests(inner, changed) for inner in cast("Sequence[Any]", value)]
        case _:
            return value
