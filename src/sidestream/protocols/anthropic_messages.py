"""Encoder of a run as events of Anthropic's Messages API.

Text, thinking, calls of the client's tools, searches, fetched pages and executed code become content blocks, one after
another, and citations become part of their text. Files become links in a last block of text. The API has no equivalent
for other tools that the server or a provider runs; the log has those.
"""

import re
from collections.abc import Callable, Collection
from typing import Any

from sidestream import jsontext, parts
from sidestream.jsontext import JsonObject
from sidestream.messages.message import ThinkingPart
from sidestream.protocols.chat_completions import file_link
from sidestream.protocols.server_tool_blocks import call_block, result_block
from sidestream.results.content import is_hit
from sidestream.stream.errors import public
from sidestream.text.html import link_target
from sidestream.tools.approvals import APPROVAL_TOOL, ApprovalCall
from sidestream.tools.server_side import WebFetch

_REASONS: dict[parts.FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content-filter": "refusal",
    "tool-calls": "tool_use",
    "approval": "end_turn",
    "limit": "max_tokens",
    "error": "end_turn",
    "other": "end_turn",
}
_LABEL = re.compile(r"[\[\]\\`*_<>]")
"""Characters that would end or change the label of a link."""
_ENCRYPTED = "sse1_"
"""Prefix of a signature that is a provider's encrypted reasoning, beside a summary of it."""


def thinking_of(text: str, signature: str | None) -> ThinkingPart:
    """Return the reasoning of a thinking block that a client sends back."""
    if signature is not None and signature.startswith(_ENCRYPTED):
        return ThinkingPart(text, encrypted_content=signature.removeprefix(_ENCRYPTED))
    return ThinkingPart(text, signature=signature or None)


class _Block:
    """A content block whose events are held back while an earlier block is open."""

    def __init__(self, start: JsonObject) -> None:
        self.start = start
        self.deltas: list[JsonObject] = []
        self.has_content = False
        self.is_closed = False


class MessagesEncoder:
    """An encoder of one run's parts as events.

    `functions` are the names of the tools that the client runs. `ask` returns the call that asks the client for an
    approval, or the error if it cannot answer one. `url_of` returns the URL of a file; without it, files are left out.
    """

    def __init__(
        self,
        *,
        id: str,
        model: str,
        functions: Collection[str] = (),
        ask: Callable[[parts.ToolApprovalRequest], ApprovalCall | parts.Error] | None = None,
        url_of: Callable[[parts.File], str] | None = None,
    ) -> None:
        self._id = id
        self._model = model
        self._functions = frozenset(functions)
        self._ask = ask
        self._url_of = url_of
        self._files: list[JsonObject] = []
        """Files so far. They come last, because clients take the first block of text for the answer."""
        self._blocks: dict[str, _Block] = {}
        """Blocks not sent completely, by part id, in order. Only the first is being sent."""
        self._is_sending = False
        """Whether the start of the first block was sent."""
        self._early: dict[str, list[JsonObject]] = {}
        """Citations of blocks that have not begun, by part id. Logs store a block where it ends, after its sources."""
        self._cited = set[tuple[str, str, int | None]]()
        """Block, URL and start of the citations so far."""
        self._ran: set[str] = set()
        """Ids of calls that the client does not run, whose result has not come."""
        self._index = 0
        self._has_calls = False
        self._has_begun = False
        self.error: parts.Error | None = None
        """Error that made the run fail, if any."""

    def feed(self, part: parts.StreamPart) -> list[JsonObject]:
        """Return the events of a part."""
        handler = _HANDLERS.get(type(part))
        if handler is None:
            return []
        ending = handler(self, part)
        return [*self._begun(), *self._sent(), *ending]

    def _begun(self) -> list[JsonObject]:
        if self._has_begun:
            return []
        self._has_begun = True
        message: JsonObject = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_object(parts.Usage()),
        }
        return [{"type": "message_start", "message": message}]

    def _sent(self) -> list[JsonObject]:
        """Return the events that can be sent now, from the first block up to the first open one."""
        events: list[JsonObject] = []
        while self._blocks:
            name, block = next(iter(self._blocks.items()))
            if not self._is_sending:
                if block.start["type"] == "thinking" and not block.deltas and not block.is_closed:
                    break  # Reasoning without text may turn out to be encrypted.
                events.append({"type": "content_block_start", "index": self._index, "content_block": block.start})
                self._is_sending = True
            events += [{"type": "content_block_delta", "index": self._index, "delta": delta} for delta in block.deltas]
            block.deltas = []
            if not block.is_closed:
                break
            events.append({"type": "content_block_stop", "index": self._index})
            del self._blocks[name]
            self._is_sending = False
            self._index += 1
        return events

    def _delta(self, id: str, delta: JsonObject) -> None:
        block = self._blocks.get(id)
        if block is not None and not block.is_closed:
            block.deltas.append(delta)
            block.has_content = True

    def _close(self, id: str) -> None:
        if id in self._blocks:
            self._blocks[id].is_closed = True

    # Handlers change the blocks, and return the events that come after them.

    def text_start(self, part: parts.TextStart) -> list[JsonObject]:
        """Begin a block of text."""
        self._blocks[part.id] = _Block({"type": "text", "text": ""})
        return []

    def _cite(self, id: str) -> None:
        """Emit the citations held back for a block of text."""
        for citation in self._early.pop(id, ()):
            self._delta(id, {"type": "citations_delta", "citation": citation})

    def text_delta(self, part: parts.TextDelta) -> list[JsonObject]:
        """Emit a delta of text, then the citations held back."""
        self._delta(part.id, {"type": "text_delta", "text": part.delta})
        self._cite(part.id)
        return []

    def text_end(self, part: parts.TextEnd) -> list[JsonObject]:
        """End a block of text, sending final text that had no deltas or differs from them."""
        block, name = self._blocks.get(part.id), part.id
        if part.text and block is not None and block.has_content:
            # The API cannot retract text, so the final text becomes the next block.
            self._close(name)
            name = f"{part.id} "
            self._blocks[name] = _Block({"type": "text", "text": ""})
        if part.text and block is not None:
            self._delta(name, {"type": "text_delta", "text": part.text})
        self._cite(part.id)
        self._close(name)
        return []

    def reasoning_start(self, part: parts.ReasoningStart) -> list[JsonObject]:
        """Begin a thinking block."""
        self._blocks[part.id] = _Block({"type": "thinking", "thinking": "", "signature": ""})
        return []

    def reasoning_delta(self, part: parts.ReasoningDelta) -> list[JsonObject]:
        """Emit a delta of thinking."""
        self._delta(part.id, {"type": "thinking_delta", "thinking": part.delta})
        return []

    def reasoning_end(self, part: parts.ReasoningEnd) -> list[JsonObject]:
        """End a thinking block, with its signature."""
        block = self._blocks.get(part.id)
        if part.text and block is not None and not block.has_content:
            self._delta(part.id, {"type": "thinking_delta", "thinking": part.text})
        signature = part.signature or (f"{_ENCRYPTED}{part.encrypted_content}" if part.encrypted_content else None)
        if part.encrypted_content and block is not None and not block.has_content:
            block.start = {"type": "redacted_thinking", "data": part.encrypted_content}
        elif signature:
            self._delta(part.id, {"type": "signature_delta", "signature": signature})
        self._close(part.id)
        return []

    def source(self, part: parts.Source) -> list[JsonObject]:
        """Cite a source in its text block, which may not have begun."""
        text = part.text_id if part.text_id is not None else self._open_text()
        if part.url is not None and text is not None and (place := (text, part.url, part.start)) not in self._cited:
            self._cited.add(place)  # A checked source is reported again.
            citation = {
                "type": "web_search_result_location",
                "url": part.url,
                "title": part.title,
                "cited_text": part.cited_text or "",
                "encrypted_index": "",
            }
            self._early.setdefault(text, []).append(citation)
            if text in self._blocks:
                self._cite(text)
        return []

    def _open_text(self) -> str | None:
        texts = [id for id, block in self._blocks.items() if block.start["type"] == "text" and not block.is_closed]
        return texts[-1] if texts else None

    def input_start(self, part: parts.ToolInputStart) -> list[JsonObject]:
        """Begin a call of a client's tool."""
        if not part.provider_executed and part.name in self._functions:
            self._blocks[part.id] = _Block({"type": "tool_use", "id": part.id, "name": part.name, "input": {}})
            self._has_calls = True
        return []

    def input_delta(self, part: parts.ToolInputDelta) -> list[JsonObject]:
        """Emit a delta of a call's input."""
        self._delta(part.id, {"type": "input_json_delta", "partial_json": part.delta})
        return []

    def call(self, part: parts.ToolCall) -> list[JsonObject]:
        """End a call, sending its input if it was not streamed."""
        if part.provider_executed or part.name not in self._functions:
            self._called(part)
            return []
        if part.id not in self._blocks:
            self.input_start(parts.ToolInputStart(part.id, part.name, False))
        if not self._blocks[part.id].has_content:
            text = part.input_text if part.input_text is not None else jsontext.dumps(part.input).decode()
            self._delta(part.id, {"type": "input_json_delta", "partial_json": text})
        self._close(part.id)
        return []

    def approval(self, part: parts.ToolApprovalRequest) -> list[JsonObject]:
        """Ask the client for an approval with a call, or fail if it cannot answer."""
        if self._ask is None or part.is_external:
            return []
        asked = self._ask(part)
        if isinstance(asked, parts.Error):
            return self.failed(asked)
        self._blocks[asked.id] = _Block({"type": "tool_use", "id": asked.id, "name": APPROVAL_TOOL, "input": {}})
        self._delta(asked.id, {"type": "input_json_delta", "partial_json": jsontext.dumps(asked.input).decode()})
        self._close(asked.id)
        self._has_calls = True
        return []

    def _called(self, part: parts.ToolCall) -> None:
        """Add the block of a call that the client does not run."""
        block = call_block(part)
        if block is not None:
            name = f"{part.id} call"
            self._blocks[name] = _Block({**block, "input": {}})
            text = jsontext.dumps(block["input"]).decode()
            self._delta(name, {"type": "input_json_delta", "partial_json": text})
            self._close(name)
            self._ran.add(part.id)

    def result(self, part: parts.ToolResult) -> list[JsonObject]:
        """Add the block of a result, if the block of its call was sent."""
        block = result_block(part)
        if block is not None and part.id in self._ran and not part.preliminary:
            self._ran.discard(part.id)
            name = f"{part.id} result"
            self._blocks[name] = _Block(block)
            self._close(name)
        return []

    def file(self, part: parts.File) -> list[JsonObject]:
        """Keep a file that a tool made, as a link. Fetched pages have a block of their own."""
        if self._url_of is not None and not is_hit(part) and part.tool != WebFetch.key:
            self._files.append(file_link(part, self._url_of(part)))
        return []

    def _linked(self) -> None:
        """Add the block that links to the files. SDKs pass on its field `files`."""
        block = _Block({"type": "text", "text": "", "files": self._files})
        block.deltas = [{"type": "text_delta", "text": "\n".join(map(_markdown_link, self._files))}]
        self._blocks["files"] = block

    def failed(self, part: parts.Error) -> list[JsonObject]:
        """Keep the run's error; tool errors do not fail a run."""
        self.error = part if part.kind != "tool" else self.error
        return []

    def finish(self, part: parts.Finish) -> list[JsonObject]:
        """Return the last events."""
        if self._files and self.error is None:
            self._linked()
        for block in self._blocks.values():
            block.is_closed = True
        if self.error is not None:
            return [{"type": "error", "error": error_object(self.error)}]
        reason = "tool_use" if self._has_calls and part.reason in _WAITING else _REASONS[part.reason]
        delta = {"stop_reason": reason, "stop_sequence": None}
        return [
            {"type": "message_delta", "delta": delta, "usage": usage_object(part.usage)},
            {"type": "message_stop"},
        ]


_WAITING = frozenset({"tool-calls", "approval", "stop"})
_HANDLERS: dict[type, Callable[[MessagesEncoder, Any], list[JsonObject]]] = {
    parts.TextStart: MessagesEncoder.text_start,
    parts.TextDelta: MessagesEncoder.text_delta,
    parts.TextEnd: MessagesEncoder.text_end,
    parts.ReasoningStart: MessagesEncoder.reasoning_start,
    parts.ReasoningDelta: MessagesEncoder.reasoning_delta,
    parts.ReasoningEnd: MessagesEncoder.reasoning_end,
    parts.Source: MessagesEncoder.source,
    parts.ToolInputStart: MessagesEncoder.input_start,
    parts.ToolInputDelta: MessagesEncoder.input_delta,
    parts.ToolCall: MessagesEncoder.call,
    parts.ToolApprovalRequest: MessagesEncoder.approval,
    parts.ToolResult: MessagesEncoder.result,
    parts.File: MessagesEncoder.file,
    parts.Error: MessagesEncoder.failed,
    parts.Finish: MessagesEncoder.finish,
}
"""Part type → handler. Other parts have no equivalent in the API."""
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def message_of(events: list[JsonObject]) -> JsonObject:
    """Return the message of a run's events, for a non-streaming response."""
    message: JsonObject = {}
    content: list[JsonObject] = []
    inputs: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = dict(event["message"])
            case "content_block_start":
                content.append(dict(event["content_block"]))
            case "content_block_delta":
                _grow(content[-1], event["delta"], event["index"], inputs)
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
            case _:
                pass
    for index, text in inputs.items():
        content[index]["input"] = jsontext.loads(text or "{}")
    return message | {"content": content}


def _markdown_link(file: JsonObject) -> str:
    label = _LABEL.sub(r"\\\g<0>", " ".join((file.get("name") or file["id"]).split()))
    return f"[{label}]({link_target(file['url'])})"


def _grow(block: JsonObject, delta: JsonObject, index: int, inputs: dict[int, str]) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "citations_delta":
            block.setdefault("citations", []).append(delta["citation"])
        case _:
            inputs[index] = inputs.get(index, "") + delta["partial_json"]


def error_object(error: parts.Error) -> JsonObject:
    """Convert an error to the API's error object."""
    error = public(error)
    return {"type": error_type(error.status or 500), "message": error.message}


def error_type(status: int) -> str:
    """Return the API's error type for a status."""
    return _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def usage_object(usage: parts.Usage) -> JsonObject:
    """Convert usage to the API's usage object."""
    counts = {f"{tool}_requests": usage.server_tool_use.get(tool, 0) for tool in ("web_search", "web_fetch")}
    return {
        "input_tokens": usage.input.no_cache or usage.input.total - usage.input.cache_read - usage.input.cache_write,
        "output_tokens": usage.output.total,
        "cache_read_input_tokens": usage.input.cache_read,
        "cache_creation_input_tokens": usage.input.cache_write,
        **({"server_tool_use": counts} if any(counts.values()) else {}),
    }
