"""Encoder of a run as chunks of OpenAI's Chat Completions API.

The API has one text, reasoning, and calls of the client's functions. It has no equivalent for tools run by the server
or a provider. Their sources become annotations of the text, and their files links in `files`; the log has the rest.
"""

from collections.abc import Callable, Collection
from typing import Any

from sidestream import jsontext, parts
from sidestream.jsontext import JsonObject, as_object, without_none
from sidestream.results.content import is_hit
from sidestream.tools.approvals import APPROVAL_TOOL, ApprovalCall

_REASONS: dict[parts.FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "content-filter": "content_filter",
    "tool-calls": "tool_calls",
    "approval": "stop",
    "limit": "length",
    "error": "stop",
    "other": "stop",
}


class ChatCompletionsEncoder:
    """An encoder of one run's parts as chunks.

    `functions` are the names of the tools that the client runs. `ask` returns the call that asks the client for an
    approval, or the error if it cannot answer one. `url_of` returns the URL of a file, which the API has no field for;
    files are sent in `files`, a field that SDKs pass on.
    """

    def __init__(
        self,
        *,
        id: str,
        model: str,
        created: int,
        functions: Collection[str] = (),
        include_usage: bool = False,
        ask: Callable[[parts.ToolApprovalRequest], ApprovalCall | parts.Error] | None = None,
        url_of: Callable[[parts.File], str] | None = None,
    ) -> None:
        self._base = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._functions = frozenset(functions)
        self._include_usage = include_usage
        self._ask = ask
        self._url_of = url_of
        self._cited = set[tuple[int, int, str]]()
        """Spans and URLs of the citations so far."""
        self._calls: dict[str, int] = {}
        """Indexes of the client's calls, by call id."""
        self._written: set[str] = set()
        """Ids of calls whose arguments have been sent."""
        self._texts: dict[str, int] = {}
        """Start of text blocks in the content, in characters, by block id."""
        self._refusals: set[str] = set()
        """Ids of text blocks that are refusals."""
        self._length = 0
        """Length of the content so far, in characters."""
        self._has_begun = False
        self._has_text = False
        self._needs_break = False
        self.error: parts.Error | None = None
        """Error that made the run fail, if any. The API has no chunk for it."""

    def feed(self, part: parts.StreamPart) -> list[JsonObject]:
        """Return the chunks of a part."""
        handler = _HANDLERS.get(type(part))
        return handler(self, part) if handler is not None else []

    def text(self, delta: str) -> list[JsonObject]:
        """Return a chunk with text, after an empty line if an earlier step had text too."""
        if not delta:
            return []
        delta = self._break + delta
        self._needs_break, self._has_text = False, True
        self._length += len(delta)
        return [self._chunk({"content": delta})]

    @property
    def _break(self) -> str:
        return "\n\n" if self._needs_break and self._has_text else ""

    def _chunk(self, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
        if not self._has_begun:
            self._has_begun = True
            delta = {"role": "assistant", **delta}
        return {**self._base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}

    def _call_chunk(self, id: str, function: JsonObject, *, is_new: bool) -> JsonObject:
        index = self._calls.setdefault(id, len(self._calls))
        head = {"id": id, "type": "function"} if is_new else {}
        return self._chunk({"tool_calls": [{"index": index, **head, "function": function}]})

    # Handlers

    def step(self, part: parts.StepStart) -> list[JsonObject]:
        """Let the step's text begin a new paragraph."""
        self._needs_break = True
        return []

    def text_start(self, part: parts.TextStart) -> list[JsonObject]:
        """Note whether the text block is a refusal."""
        if any(as_object(fields).get("refusal") is True for fields in (part.provider_metadata or {}).values()):
            self._refusals.add(part.id)
        return []

    def text_delta(self, part: parts.TextDelta) -> list[JsonObject]:
        """Return the chunk of a delta of text."""
        return self._grown(part.id, part.delta)

    def text_end(self, part: parts.TextEnd) -> list[JsonObject]:
        """Send a final text that differs from its deltas as another paragraph, because the API cannot retract text."""
        if not part.text:
            return []
        if part.id in self._texts:
            del self._texts[part.id]
            self._needs_break = True
        return self._grown(part.id, part.text)

    def _grown(self, id: str, text: str) -> list[JsonObject]:
        self._texts.setdefault(id, self._length + len(self._break))
        if id in self._refusals:
            return [self._chunk({"refusal": text})] if text else []
        return self.text(text)

    def reasoning(self, part: parts.ReasoningDelta | parts.ReasoningEnd) -> list[JsonObject]:
        """Return a reasoning delta, in the field that most servers use for it."""
        text = part.delta if isinstance(part, parts.ReasoningDelta) else None
        return [self._chunk({"reasoning_content": text})] if text else []

    def source(self, part: parts.Source) -> list[JsonObject]:
        """Return a citation with offsets into the whole content. It may come before its text."""
        if part.url is None:
            return []
        begin = self._texts.get(part.text_id or "", self._length + len(self._break))
        start = begin + (part.start or 0)
        end = begin + (part.end or part.start or 0)
        if (place := (start, end, part.url)) in self._cited:
            return []  # A checked source is reported again.
        self._cited.add(place)
        citation = {"url": part.url, "title": part.title or part.url, "start_index": start, "end_index": end}
        return [self._chunk({"annotations": [{"type": "url_citation", "url_citation": citation}]})]

    def input_start(self, part: parts.ToolInputStart) -> list[JsonObject]:
        """Begin a call of a client's function."""
        if part.provider_executed or part.name not in self._functions:
            return []
        return [self._call_chunk(part.id, {"name": part.name, "arguments": ""}, is_new=True)]

    def input_delta(self, part: parts.ToolInputDelta) -> list[JsonObject]:
        """Return a delta of a call's arguments."""
        if part.id not in self._calls or not part.delta:
            return []
        self._written.add(part.id)
        return [self._call_chunk(part.id, {"arguments": part.delta}, is_new=False)]

    def call(self, part: parts.ToolCall) -> list[JsonObject]:
        """Return a call whose arguments were not streamed."""
        if part.provider_executed or part.name not in self._functions or part.id in self._written:
            return []
        is_new = part.id not in self._calls
        text = part.input_text if part.input_text is not None else jsontext.dumps(part.input).decode()
        name: JsonObject = {"name": part.name} if is_new else {}
        return [self._call_chunk(part.id, {**name, "arguments": text}, is_new=is_new)]

    def file(self, part: parts.File) -> list[JsonObject]:
        """Return a file that a tool made, as a link."""
        if self._url_of is None or is_hit(part):
            return []
        return [self._chunk({"files": [file_link(part, self._url_of(part))]})]

    def approval(self, part: parts.ToolApprovalRequest) -> list[JsonObject]:
        """Ask the client for an approval with a call, or fail if it cannot answer."""
        if self._ask is None or part.is_external:
            return []
        asked = self._ask(part)
        if isinstance(asked, parts.Error):
            return self.failed(asked)
        arguments = jsontext.dumps(asked.input).decode()
        return [self._call_chunk(asked.id, {"name": APPROVAL_TOOL, "arguments": arguments}, is_new=True)]

    def failed(self, part: parts.Error) -> list[JsonObject]:
        """Keep the run's error; tool errors do not fail a run."""
        self.error = part if part.kind != "tool" else self.error
        return []

    def finish(self, part: parts.Finish) -> list[JsonObject]:
        """Return the last chunks, or none if the run failed."""
        if self.error is not None:
            return []
        reason = "tool_calls" if self._calls and part.reason in _WAITING else _REASONS[part.reason]
        if self._refusals and reason == "content_filter":
            reason = "stop"  # A refusal is a complete answer.
        chunks = [self._chunk({}, reason)]
        if self._include_usage:
            chunks.append({**self._base, "choices": [], "usage": usage_object(part.usage)})
        return chunks


_WAITING = frozenset({"tool-calls", "approval", "stop"})
_HANDLERS: dict[type, Callable[[ChatCompletionsEncoder, Any], list[JsonObject]]] = {
    parts.StepStart: ChatCompletionsEncoder.step,
    parts.TextStart: ChatCompletionsEncoder.text_start,
    parts.TextDelta: ChatCompletionsEncoder.text_delta,
    parts.TextEnd: ChatCompletionsEncoder.text_end,
    parts.ReasoningDelta: ChatCompletionsEncoder.reasoning,
    parts.Source: ChatCompletionsEncoder.source,
    parts.ToolInputStart: ChatCompletionsEncoder.input_start,
    parts.ToolInputDelta: ChatCompletionsEncoder.input_delta,
    parts.ToolCall: ChatCompletionsEncoder.call,
    parts.File: ChatCompletionsEncoder.file,
    parts.ToolApprovalRequest: ChatCompletionsEncoder.approval,
    parts.Error: ChatCompletionsEncoder.failed,
    parts.Finish: ChatCompletionsEncoder.finish,
}
"""Part type → handler. Other parts are contained in later ones, or have no equivalent in the API."""


def completion(chunks: list[JsonObject]) -> JsonObject:
    """Return the completion of a run's chunks, for a non-streaming response."""
    message: JsonObject = {"role": "assistant", "content": None, "refusal": None}
    calls: list[JsonObject] = []
    reason, usage = "stop", None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            reason = choice["finish_reason"] or reason
            for name in ("content", "reasoning_content", "refusal"):
                if name in delta:
                    message[name] = (message.get(name) or "") + delta[name]
            message.setdefault("annotations", []).extend(delta.get("annotations", ()))
            if "files" in delta:
                message.setdefault("files", []).extend(delta["files"])
            for piece in delta.get("tool_calls", ()):
                if piece["index"] == len(calls):
                    calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
                else:
                    calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    if calls:
        message["tool_calls"] = calls
    head = {name: chunks[0][name] for name in ("id", "created", "model")} if chunks else {}
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


def file_link(file: parts.File, url: str) -> JsonObject:
    """Return an entry of `files`."""
    return without_none({"id": file.id, "name": file.name, "mime_type": file.mime_type, "url": url})


def usage_object(usage: parts.Usage) -> JsonObject:
    """Convert usage to the API's usage object."""
    return {
        "prompt_tokens": usage.input.total,
        "completion_tokens": usage.output.total,
        "total_tokens": usage.input.total + usage.output.total,
        "prompt_tokens_details": {"cached_tokens": usage.input.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.output.reasoning},
    }
