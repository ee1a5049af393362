"""The requests that continue a recorded conversation, for every way in which it can be continued."""

import json
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sidestream import ChatMessage, CodeInterpreter, ConfigurationError, jsontext
from sidestream.messages.fold import MessageFold
from sidestream.messages.message import ApprovalPart, ToolResultPart
from sidestream.messages.references import for_log
from sidestream.parts import Custom, Finish, StepFinish, StreamPart, ToolApprovalRequest, ToolCall
from sidestream.providers.google.interactions.options import GoogleInteractionsOptions
from sidestream.providers.openai.responses.options import OpenAIResponsesOptions
from sidestream.providers.protocol import ChatModel, Encoded, ModelRequest, Settings
from sidestream.providers.registry import find_provider
from sidestream.replay.provider import decoder_of
from sidestream.replay.recording import Exchange, Recording
from sidestream.tools.spec import ToolSpec
from sidestream.wire.sse import Splitter
from support.places import RECORDINGS, TESTS

MODELS = {
    "openai-responses": ("openai-responses", "gpt-5.6"),
    "open-responses": ("openai-responses", "gpt-5.6"),
    "openai-chat": ("openai-chat", "gpt-5.6"),
    "anthropic": ("anthropic", "claude-sonnet-5"),
    "google": ("google", "gemini-3-pro"),
    "google-interactions": ("google", "interactions/gemini-3-pro"),
}
"""Folder of recordings → provider and model that the conversation continues with."""
UNSTORED: dict[str, Any] = {
    "openai-responses": OpenAIResponsesOptions(store=False),
    "open-responses": OpenAIResponsesOptions(store=False),
    "google-interactions": GoogleInteractionsOptions(store=False),
}
"""Folders whose provider can keep the answers, or not."""
QUESTION, NEXT = ChatMessage.user("What?"), ChatMessage.user("And then?")
TOOL = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})
NewFold = Callable[[], MessageFold]


def model_of(folder: str, *, is_other: bool = False) -> ChatModel:
    """The model that a conversation of this folder continues with, or another one of the same provider."""
    name, model = MODELS[folder]
    other = {"claude-sonnet-5": "claude-opus-5"}.get(model, f"{model}-mini")
    return find_provider(name).chat_model(other if is_other else model, Settings(api_key="k"))


def history_of(path: Path, *, store: bool, fold: NewFold) -> tuple[ChatMessage, ...]:
    """The conversation of a recording: every call is answered, every request for approval approved."""
    model, history = model_of(path.parent.name), [QUESTION]
    for exchange in Recording.load(path).exchanges:
        parts = decoded(exchange, model, history, store=store)
        folding = fold()
        for part in parts:
            history += folding.feed(part)
        calls = [part for part in parts if isinstance(part, ToolCall) and not part.provider_executed]
        requests = [part for part in parts if isinstance(part, ToolApprovalRequest)]
        results = [ToolResultPart(call.id, call.name, "done") for call in calls]
        answers = (*(ApprovalPart(request.approval_id, True) for request in requests), *results)
        history += [ChatMessage("tool", answers)] if answers else []
    return tuple(history)


def decoded(exchange: Exchange, model: Any, history: list[ChatMessage], *, store: bool) -> list[StreamPart]:
    """The parts of a recorded answer, as if this model had given it to this history."""
    found = decoder_of(exchange) if exchange.response.status < 400 else None
    if found is None:
        return []
    recorded: Any = found[1]
    asked = {
        "model": model.name.removeprefix("interactions/"),
        "base_url": model.base_url,
        "messages": tuple(history),
        "store": store,
    }
    context = recorded._state.context
    decoder: Any = type(recorded)(replace(context, **{k: v for k, v in asked.items() if hasattr(context, k)}))
    data = exchange.body_bytes()
    if exchange.is_stream:
        splitter = Splitter(1 << 26)
        parts = [part for event in (*splitter.feed(data), *splitter.flush()) for part in decoder.feed(event)]
    else:
        parts = decoder.whole(data)
    return [step_end(part) for part in (*parts, *decoder.close())]


def step_end(part: StreamPart) -> StreamPart:
    """The end of an answer, as the turn emits it."""
    return StepFinish(0, part.reason, part.usage, outcome=part.outcome) if isinstance(part, Finish) else part


def follow_ups(
    path: Path, fold: NewFold, encode: Callable[[ChatModel, ModelRequest], Encoded]
) -> Iterator[tuple[str, Encoded]]:
    """Each way to continue a recorded conversation, and its request; ways that a provider does not have are left out."""
    folder = path.parent.name
    model, other = model_of(folder), model_of(folder, is_other=True)
    history = (*history_of(path, store=True, fold=fold), NEXT)
    plain = ModelRequest(messages=history, tools=(TOOL,))
    code = (CodeInterpreter(reuse_container=True),)
    ways: dict[str, tuple[ChatModel, ModelRequest]] = {
        "anchor": (model, plain),
        "container": (model, replace(plain, server_side_tools=code)),
        "refused": (model, replace(plain, without=frozenset({"session"}))),
        "other-model": (other, plain),
        "edited": (model, replace(plain, messages=(ChatMessage.user("Which?"), *history[1:]))),
    }
    if folder in UNSTORED:
        unstored = replace(plain, messages=(*history_of(path, store=False, fold=fold), NEXT), options=UNSTORED[folder])
        ways["unstored"] = (model, unstored)
        ways["unstored-container"] = (model, replace(unstored, server_side_tools=code))
        ways["unstored-other-model"] = (other, unstored)
        ways["stored-then-unstored"] = (model, replace(plain, options=UNSTORED[folder]))
        ways["unstored-then-stored"] = (model, replace(unstored, options=None))
    ways |= {f"to-{name}": (model_of(name), plain) for name in MODELS if name != folder and name != "open-responses"}
    for way, (target, request) in ways.items():
        try:
            encoded = encode(target, request)
        except ConfigurationError:
            continue
        yield way, encoded


def digest(encoded: Encoded) -> str:
    """A digest of the request's body."""
    return blake2b(encoded.call.body or b"", digest_size=4).hexdigest()


GOLDEN = TESTS / "golden" / "follow_ups.json"


class LoggedFolds:
    """Folds messages as in a conversation with a log, and encodes requests with what that log holds."""

    def __init__(self) -> None:
        self.is_reduced = False
        self._blobs: dict[str, bytes] = {}

    def fold(self) -> MessageFold:
        """A fold whose messages refer to the log."""
        log = self

        class Recorded(MessageFold):
            def feed(self, part: StreamPart) -> list[ChatMessage]:
                if isinstance(part, StepFinish) and part.outcome is not None:
                    log._blobs |= for_log(part.outcome)[1]
                return super().feed(part)

        return Recorded(is_logged=True)

    @property
    def replays(self) -> dict[str, Any]:
        """All that the log holds for replays."""
        return {digest: jsontext.loads(data) for digest, data in self._blobs.items()}

    def encode(self, model: ChatModel, request: ModelRequest) -> Encoded:
        """The request, made again where it needs more of the log."""
        encoded = model.encode(request)
        if encoded.needs:
            found = {digest: self.replays[digest] for digest in encoded.needs}
            encoded = model.encode(replace(request, replays=found))
        notices = [part.data for part in encoded.notices if isinstance(part, Custom)]
        self.is_reduced |= any("is_reduced" in data for data in notices)
        assert not encoded.needs
        return encoded


def recordings_of(folder: Path) -> list[Path]:
    """The recordings in a folder; none if it is not there."""
    return sorted(folder.rglob("*.json"))


def write_golden(folder: Path) -> None:
    """Pins the requests as they are now."""
    lines: list[str] = []
    for path in recordings_of(folder):
        log = LoggedFolds()
        bodies = {way: digest(encoded) for way, encoded in follow_ups(path, log.fold, log.encode)}
        name, body = json.dumps(f"{path.parent.name}/{path.stem}"), json.dumps(bodies, separators=(",", ":"))
        lines.append(f"{name}: {body}")
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write_golden(RECORDINGS)
