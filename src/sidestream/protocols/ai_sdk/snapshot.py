"""UI messages built from the chunks of a UI message stream, as the AI SDK's `readUIMessageStream` builds them.

A UI that opens a conversation loads messages instead of the chunks of its runs.
"""

from collections.abc import Callable, Iterable
from typing import Any

from sidestream.jsontext import JsonObject, as_object, is_object
from sidestream.output.types import partial_json

Part = JsonObject
Chunk = JsonObject


class UIMessageFold:
    """A builder of one assistant message from chunks."""

    def __init__(self, message_id: str = "") -> None:
        self._message: JsonObject = {"id": message_id, "role": "assistant", "parts": []}
        self._parts: list[Part] = self._message["parts"]
        self._open: dict[tuple[str, str], tuple[Part, list[str]]] = {}
        """Open blocks and their deltas, by family and id."""
        self._data: dict[tuple[str, str], Part] = {}
        self._code: dict[str, list[str]] = {}
        """Code of subagents' calls while it is written, by call id."""
        self._calls: dict[str, Part] = {}
        """Newest calls, by call id."""
        self._step_calls: dict[str, Part] = {}
        self._inputs: dict[str, list[str]] = {}
        """Input text so far, by call id."""
        self._step = 0
        """Index of the current step's first part."""

    def feed(self, chunks: Iterable[Chunk]) -> None:
        """Add chunks to the message."""
        for chunk in chunks:
            kind: str = chunk["type"]
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, chunk)
            elif kind.startswith("data-"):
                self.data(chunk)

    def message(self) -> JsonObject:
        """Return the message so far. It is always the same object, which later chunks change."""
        for part, deltas in self._open.values():
            part["text"] = deltas[0] = "".join(deltas)
            del deltas[1:]
        for call, deltas in self._inputs.items():
            if deltas:
                text = "".join(deltas)
                self._calls[call] |= {"rawInput": text, "input": partial_json(text)}
        for call, deltas in self._code.items():
            part = self._data["data-call", call]
            data: JsonObject = part["data"]
            part["data"] = {**data, "part": {**data["part"], "input": {"code": "".join(deltas)}}}
        return self._message

    def call(self, call_id: str) -> Part:
        """Return the newest call with this id, without input that is incomplete."""
        return self._calls[call_id]

    def start(self, chunk: Chunk) -> None:
        if "messageId" in chunk:
            self._message["id"] = chunk["messageId"]
        self.metadata(chunk)

    def metadata(self, chunk: Chunk) -> None:
        if chunk.get("messageMetadata") is not None:
            self._message["metadata"] = _merged(as_object(self._message.get("metadata")), chunk["messageMetadata"])

    def step(self, chunk: Chunk) -> None:
        self._parts.append({"type": "step-start"})
        self._step = len(self._parts)
        self._step_calls = {}

    def reset(self, chunk: Chunk) -> None:
        del self._parts[self._step :]
        for known in (self._open, self._inputs, self._step_calls, self._code):
            known.clear()
        self._data = {(part["type"], part["id"]): part for part in self._parts if "data" in part and "id" in part}
        self._calls = {part["toolCallId"]: part for part in self._parts if "toolCallId" in part}

    def block_start(self, chunk: Chunk) -> None:
        family = chunk["type"].partition("-")[0]
        part: Part = {"type": family, "text": "", "state": "streaming", **_metadata(chunk)}
        if family == "reasoning":
            part["id"] = chunk["id"]
        self._open[family, chunk["id"]] = (part, [""])
        block, is_final = _block(chunk), "text" in _ours(chunk)
        if is_final:
            # The final text of a block, which replaces what was streamed.
            self._parts[:] = [known for known in self._parts if known["type"] != family or _block(known) != block]
        self._parts.append(part)

    def block_delta(self, chunk: Chunk) -> None:
        part, deltas = self._open[chunk["type"].partition("-")[0], chunk["id"]]
        deltas.append(chunk["delta"])
        part |= _metadata(chunk)

    def block_end(self, chunk: Chunk) -> None:
        part, deltas = self._open.pop((chunk["type"].partition("-")[0], chunk["id"]))
        part |= {"text": "".join(deltas), "state": "done", **_metadata(chunk)}
        if "citations" in chunk:
            part["citations"] = chunk["citations"]

    def whole(self, chunk: Chunk) -> None:
        """Add a chunk as a part, unchanged."""
        self._parts.append(dict(chunk))

    def data(self, chunk: Chunk) -> None:
        if chunk.get("transient"):
            self.code(chunk["data"])
            return
        if chunk["type"] == "data-call":
            self._code.pop(chunk["id"], None)
        known = self._data.get((chunk["type"], chunk.get("id", "")))
        if known is not None:
            known["data"] = chunk["data"]
            return
        self._parts.append(part := dict(chunk))
        if "id" in chunk:
            self._data[chunk["type"], chunk["id"]] = part

    def code(self, data: JsonObject) -> None:
        """Add code of a subagent's call; other calls have it in their input."""
        if ("data-call", data["call"]) in self._data:
            written = self._code.setdefault(data["call"], [])
            if data.get("whole"):
                written.clear()
            written.append(data["delta"])

    def input_start(self, chunk: Chunk) -> None:
        self._inputs[chunk["toolCallId"]] = []
        self._called(chunk, state="input-streaming")

    def input_delta(self, chunk: Chunk) -> None:
        self._inputs[chunk["toolCallId"]].append(chunk["inputTextDelta"])

    def input_available(self, chunk: Chunk) -> None:
        self._called(chunk, state="input-available", input=chunk["input"])

    def input_error(self, chunk: Chunk) -> None:
        self._called(chunk, state="output-error", input=chunk["input"], errorText=chunk["errorText"])

    def output(self, chunk: Chunk) -> None:
        part = self._known(chunk)
        _clear(part, "errorText", "preliminary")
        part |= {"state": "output-available", "output": chunk["output"], **_copied(chunk, "preliminary")}
        self._executed(part, chunk)

    def output_error(self, chunk: Chunk) -> None:
        part = self._known(chunk)
        _clear(part, "output", "preliminary")
        part |= {"state": "output-error", "errorText": chunk["errorText"]}
        self._executed(part, chunk)

    def denied(self, chunk: Chunk) -> None:
        self._known(chunk)["state"] = "output-denied"

    def approval_request(self, chunk: Chunk) -> None:
        approval = {"id": chunk["approvalId"], **_copied(chunk, "signature")}
        if chunk.get("isAutomatic") is True:
            approval["isAutomatic"] = True
        if "reason" in chunk:
            approval["requestReason"] = chunk["reason"]
        self._known(chunk).update(state="approval-requested", approval=approval)

    def approval_response(self, chunk: Chunk) -> None:
        for part in self._parts:
            approval = as_object(part.get("approval"))
            if approval.get("id") == chunk["approvalId"]:
                decision = {"approved": chunk["approved"], **_copied(chunk, "reason")}
                part.update(state="approval-responded", approval={**approval, **decision})
                return
        raise LookupError(chunk["approvalId"])

    def _called(self, chunk: Chunk, **fields: Any) -> None:
        """Add or update a call of the current step."""
        call = chunk["toolCallId"]
        if fields["state"] != "input-streaming":
            self._inputs.pop(call, None)
        kind = f"tool-{chunk['toolName']}"
        part = self._step_calls.get(call)
        if part is None:
            part = self._calls[call] = self._step_calls[call] = {"type": kind, "toolCallId": call}
            self._parts.append(part)
        _clear(part, "input", "output", "errorText", "rawInput", "preliminary")
        part |= {"type": kind, **fields}
        self._executed(part, chunk)

    def _executed(self, part: Part, chunk: Chunk) -> None:
        part |= _copied(chunk, "providerExecuted")

    def _known(self, chunk: Chunk) -> Part:
        return self._calls[chunk["toolCallId"]]


def _metadata(chunk: Chunk) -> JsonObject:
    return _copied(chunk, "providerMetadata")


def _copied(chunk: Chunk, name: str) -> JsonObject:
    return {name: chunk[name]} if name in chunk else {}


def _clear(part: Part, *names: str) -> None:
    for name in names:
        part.pop(name, None)


def _merged(base: JsonObject, more: JsonObject) -> JsonObject:
    merged = dict(base)
    for key, value in more.items():
        known = as_object(merged.get(key))
        merged[key] = _merged(known, as_object(value)) if known and is_object(value) else value
    return merged


_HANDLERS: dict[str, Callable[[UIMessageFold, Chunk], None]] = {
    "start": UIMessageFold.start,
    "finish": UIMessageFold.metadata,
    "message-metadata": UIMessageFold.metadata,
    "start-step": UIMessageFold.step,
    "reset-step": UIMessageFold.reset,
    "text-start": UIMessageFold.block_start,
    "text-delta": UIMessageFold.block_delta,
    "text-end": UIMessageFold.block_end,
    "reasoning-start": UIMessageFold.block_start,
    "reasoning-delta": UIMessageFold.block_delta,
    "reasoning-end": UIMessageFold.block_end,
    "tool-input-start": UIMessageFold.input_start,
    "tool-input-delta": UIMessageFold.input_delta,
    "tool-input-available": UIMessageFold.input_available,
    "tool-input-error": UIMessageFold.input_error,
    "tool-output-available": UIMessageFold.output,
    "tool-output-error": UIMessageFold.output_error,
    "tool-output-denied": UIMessageFold.denied,
    "tool-approval-request": UIMessageFold.approval_request,
    "tool-approval-response": UIMessageFold.approval_response,
    "source-url": UIMessageFold.whole,
    "source-document": UIMessageFold.whole,
    "file": UIMessageFold.whole,
    "reasoning-file": UIMessageFold.whole,
    "custom": UIMessageFold.whole,
    "steering-message": UIMessageFold.whole,
}
"""Chunk type → handler. Other chunks are ignored."""


def _ours(chunk: Chunk) -> JsonObject:
    return as_object(as_object(chunk.get("providerMetadata")).get("sidestream"))


def _block(chunk: Chunk) -> Any:
    """Return the name of the block that a chunk or a part belongs to."""
    return _ours(chunk).get("block")
