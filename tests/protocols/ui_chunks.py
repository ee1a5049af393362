"""The rules of the UI message stream, version 1, as strictly as its oldest clients take them.

Unknown fields, null and a wrong type are errors, as is a chunk that refers to what is not there. The table is that of
`ai` 7.0: `x?` is optional.
"""

from collections.abc import Callable, Iterable
from typing import Any

Chunk = dict[str, Any]
Test = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _any(value: Any) -> bool:
    return True


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _metadata(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(inner, dict) for inner in value.values())


def _citations(value: Any) -> bool:
    return isinstance(value, list) and all(_citation(entry) for entry in value)


def _citation(value: Any) -> bool:
    extra = value.keys() - {"source", "startIndex", "endIndex", "citedText"}
    indices = [value[name] for name in ("startIndex", "endIndex") if name in value]
    return not extra and all(type(index) is int and index >= 0 for index in indices) and _source(value["source"])


def _source(value: Any) -> bool:
    needed = {"url": {"id", "url"}, "document": {"id", "mediaType", "title"}}[value["sourceType"]]
    texts = [value[name] for name in value if name not in ("providerMetadata",)]
    return value["type"] == "source" and needed <= value.keys() and all(map(_text, texts))


def _steering(value: Any) -> bool:
    return isinstance(value, list) and all(part["type"] in ("text", "file") for part in value)


REASONS = {"stop", "length", "content-filter", "tool-calls", "error", "other"}
FIELDS: dict[str, dict[str, Test]] = {
    "start": {"messageId?": _text, "messageMetadata?": _object},
    "start-step": {},
    "finish-step": {},
    "reset-step": {},
    "finish": {"finishReason?": REASONS.__contains__, "messageMetadata?": _object},
    "abort": {"reason?": _text},
    "error": {"errorText": _text},
    "message-metadata": {"messageMetadata": _object},
    "text-start": {"id": _text, "providerMetadata?": _metadata},
    "text-delta": {"id": _text, "delta": _text, "providerMetadata?": _metadata},
    "text-end": {"id": _text, "citations?": _citations, "providerMetadata?": _metadata},
    "reasoning-start": {"id": _text, "providerMetadata?": _metadata},
    "reasoning-delta": {"id": _text, "delta": _text, "providerMetadata?": _metadata},
    "reasoning-end": {"id": _text, "providerMetadata?": _metadata},
    "tool-input-start": {"toolCallId": _text, "toolName": _text, "providerExecuted?": _flag, "title?": _text},
    "tool-input-delta": {"toolCallId": _text, "inputTextDelta": _text},
    "tool-input-available": {"toolCallId": _text, "toolName": _text, "input": _any, "providerExecuted?": _flag},
    "tool-input-error": {
        "toolCallId": _text,
        "toolName": _text,
        "input": _any,
        "errorText": _text,
        "providerExecuted?": _flag,
    },
    "tool-approval-request": {
        "approvalId": _text,
        "toolCallId": _text,
        "reason?": _text,
        "isAutomatic?": _flag,
        "signature?": _text,
    },
    "tool-approval-response": {"approvalId": _text, "approved": _flag, "reason?": _text},
    "tool-output-available": {"toolCallId": _text, "output": _any, "preliminary?": _flag, "providerExecuted?": _flag},
    "tool-output-error": {"toolCallId": _text, "errorText": _text, "providerExecuted?": _flag},
    "tool-output-denied": {"toolCallId": _text},
    "source-url": {"sourceId": _text, "url": _text, "title?": _text, "providerMetadata?": _metadata},
    "source-document": {
        "sourceId": _text,
        "mediaType": _text,
        "title": _text,
        "filename?": _text,
        "providerMetadata?": _metadata,
    },
    "file": {"url": _text, "mediaType": _text, "providerMetadata?": _metadata},
    "custom": {"kind": _text, "providerMetadata?": _metadata},
    "steering-message": {"id": _text, "parts": _steering},
}
DATA = {"id?": _text, "data": _object, "transient?": _flag}
"""Ours are objects without null on their first level."""
DATA_PARTS = {f"data-{name}" for name in ("run", "step", "tool", "approval", "steer", "notice", "call", "code")}
ENDS = {"finish", "abort", "error"}


class Checker:
    """Follows one response. Raises AssertionError at the first chunk that must not come."""

    def __init__(self, message: dict[str, Any] | None = None) -> None:
        """A response that continues a message knows its calls and approvals."""
        parts = message["parts"] if message else []
        self.calls = {part["toolCallId"] for part in parts if "toolCallId" in part}
        self.approvals = {part["approval"]["id"] for part in parts if "approval" in part}
        self.open: set[tuple[str, str]] = set()
        self.inputs: set[str] = set()
        self.is_in_step = False
        self.is_over = False
        self.count = 0

    def feed(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            check_fields(chunk)
            self._order(chunk)
            self.count += 1

    def close(self) -> None:
        assert self.is_over, "the stream has no end"
        assert not self.open, f"blocks are open: {self.open}"

    def _order(self, chunk: Chunk) -> None:
        kind = chunk["type"]
        assert (kind == "start") == (self.count == 0), f"{kind} as chunk {self.count}"
        assert not self.is_over, f"{kind} after the end"
        family, _, action = kind.rpartition("-")
        if family in ("text", "reasoning"):
            assert self.is_in_step, f"{kind} outside a step"
            key = (family, chunk["id"])
            assert (key in self.open) == (action != "start"), f"{kind} for {key}"
            self.open ^= {key} if action != "delta" else set()
        elif kind in ("start-step", "finish-step"):
            assert self.is_in_step == (kind == "finish-step")
            assert not self.open
            self.is_in_step = not self.is_in_step
        elif kind == "reset-step":
            assert self.is_in_step
            self.open.clear()
            self.inputs.clear()
        elif kind.startswith("tool-"):
            self._tool(kind, chunk)
        elif kind == "steering-message":
            assert not self.is_in_step
        elif kind in ENDS:
            assert not self.is_in_step or kind == "error", f"{kind} inside a step"
            self.is_over = True

    def _tool(self, kind: str, chunk: Chunk) -> None:
        if kind == "tool-approval-response":
            assert chunk["approvalId"] in self.approvals
            return
        call = chunk["toolCallId"]
        if kind == "tool-input-start":
            self.inputs.add(call)
            self.calls.add(call)
        elif kind == "tool-input-delta":
            assert call in self.inputs, f"delta for {call}"
        elif kind in ("tool-input-available", "tool-input-error"):
            self.calls.add(call)
            self.inputs.discard(call)
        else:
            assert call in self.calls, f"{kind} for {call}, which was not called"
            if kind == "tool-approval-request":
                self.approvals.add(chunk["approvalId"])


def check_fields(chunk: Chunk) -> None:
    """Raises AssertionError unless a chunk has exactly the fields of its type."""
    kind = chunk["type"]
    assert kind in FIELDS or kind in DATA_PARTS, f"unknown chunk {kind}"
    fields = FIELDS.get(kind, DATA)
    for name, test in fields.items():
        given = chunk.get(name.rstrip("?"))
        if name.rstrip("?") in chunk:
            assert test(given), f"{kind}.{name} is {given!r:.200}"
        else:
            assert name.endswith("?"), f"{kind} has no {name}"
    assert not chunk.keys() - {"type", *(name.rstrip("?") for name in fields)}, f"{kind}: {chunk.keys()}"
    if kind in DATA_PARTS:
        assert None not in chunk["data"].values(), f"{kind}: {chunk['data']}"


def check(chunks: Iterable[Chunk], message: dict[str, Any] | None = None) -> None:
    """Raises AssertionError unless the chunks are one legal, complete response."""
    checker = Checker(message)
    checker.feed(chunks)
    checker.close()
