"""What a fake provider says: replies, and builders that make scripts short to write.

FakeProvider([error_reply(503, "overloaded"), sse(responses_text("Hello"))])
"""

import asyncio
import base64
import hashlib
import itertools
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

from msgspec import Struct

from sidestream.jsontext import dumps, loads
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ChunkSizes
from sidestream.stream.parts import Json

Event = dict[str, Json]
"""One event of a provider's stream."""


class Keepalives(Struct, frozen=True):
    """A frame sent again and again after the body; with an interval of 0 as fast as the client reads."""

    frame: bytes = b": keep-alive\n\n"
    interval_s: float = 0.01
    count: int | None = None
    """None: for ever."""


class Reply(Struct, frozen=True, kw_only=True):
    """One answer. Byte counts are of the body, before it is put into HTTP chunks.

    `body` is bytes, text, a JSON object, or a list: the frames of an event stream. In such a list an object
    is an event, a string the data of one, bytes are sent as they are, and an `asyncio.Event` is waited for.
    """

    status: int = 200
    headers: Mapping[str, str] = {}
    content_type: str | None = None
    """None: what fits the body."""
    body: Any = b""
    chunk_sizes: ChunkSizes = None
    """How the body is cut into HTTP chunks, each written by itself; None: one per frame, or one for all."""
    pace_s: float = 0.0
    """The wait after each chunk."""
    gate: asyncio.Event | None = None
    """Nothing is sent, not even the status, before this is set."""
    cut: Literal["close", "reset", "end"] | None = None
    """How the body ends: the connection closed or reset without the last chunk, or (as usual) properly."""
    cut_after_bytes: int | None = None
    """Ends the body here; with `close` where `cut` says nothing else."""
    stall_after_bytes: int | None = None
    """Sends nothing from here on, until the client leaves. Beyond the body's length: at its end."""
    keepalives: Keepalives | None = None
    """Sent after the body, which then has no end but the client's leaving or their count."""
    garbage: bytes | None = None
    """Sent in place of an HTTP answer; then the connection is closed, or reset with `cut="reset"`."""
    cut_upload_after_bytes: int | None = None
    """Resets the connection when this much of the request's body has come. No answer is sent."""


def encode_event(event: Event | str | bytes) -> bytes:
    """One frame of an event stream; the event's name is the object's type."""
    if isinstance(event, bytes):
        return event
    if isinstance(event, str):
        return b"".join(b"data: %b\n" % line.encode() for line in event.split("\n")) + b"\n"
    name = event.get("type")
    head = f"event: {name}\n".encode() if isinstance(name, str) else b""
    return head + b"data: " + dumps(event) + b"\n\n"


def encode_events(events: Iterable[Event | str | bytes]) -> bytes:
    """The frames as one body, e.g. to find the byte where a stream is to be cut."""
    return b"".join(map(encode_event, events))


def sse(events: Iterable[Event | str | bytes | asyncio.Event], **fields: Any) -> Reply:
    """A stream of these events; `fields` are those of `Reply`, e.g. `cut="reset"`."""
    return Reply(body=[*events], **fields)


def json_reply(value: Json, content_type: str = "application/json", **fields: Any) -> Reply:
    """A whole JSON answer, of any JSON value."""
    return Reply(body=dumps(value), content_type=content_type, **fields)


def error_reply(
    status: int,
    code: str = "error",
    message: str = "scripted error",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """An HTTP error with a JSON body."""
    error = {"message": message, "type": code, "param": None, "code": code}
    return json_reply({"error": error}, status=status, headers=headers or {})


def html_page(title: str = "Sign in", status: int = 200) -> Reply:
    """A page for people where an API should be, as proxies and portals serve it."""
    page = f"<!doctype html><html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>"
    return Reply(status=status, content_type="text/html; charset=utf-8", body=page)


def dropped(cut: Literal["close", "reset"] = "reset") -> Reply:
    """The connection ends before any answer."""
    return Reply(garbage=b"", cut=cut)


def recorded(recording: Recording) -> list[Reply]:
    """The answers of a recording, in order, for a server to give."""
    answers = [(exchange.response, exchange.body_bytes()) for exchange in recording.exchanges]
    return [Reply(status=head.status, content_type=head.content_type, body=body) for head, body in answers]


def pixel_png(red: int = 0, green: int = 0, blue: int = 0) -> bytes:
    """A picture of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes((0, red, green, blue))))
    return b"\x89PNG\r\n\x1a\n" + head + pixels + chunk(b"IEND", b"")


def responses_text(text: str | Sequence[str], **fields: Any) -> list[Event]:
    """The events of an OpenAI response that says this; `fields` are those of `ResponsesScript`."""
    return ResponsesScript(**fields).text(text).events()


def responses_function_call(name: str, arguments: Json, call_id: str | None = None, **fields: Any) -> list[Event]:
    """The events of an OpenAI response that calls a function."""
    return ResponsesScript(**fields).function_call(name, arguments, call_id).events()


class ResponsesScript:
    """Composes one response of the OpenAI Responses API, item by item.

    `events()` and `response()` are two forms of the same response. Ids follow from the content: the same in
    every run, and different for different responses. Text may be given as a list: its deltas. `fields` are
    set in the response object, e.g. `previous_response_id`.
    """

    def __init__(
        self,
        *,
        model: str = "gpt-5.6",
        id: str | None = None,
        usage: Mapping[str, Json] | None = None,
        **fields: Json,
    ) -> None:
        self._head: Event = {**_RESPONSE, "model": model, **fields}
        self._id = id
        self._usage = usage
        self._end: tuple[str, Event] = ("completed", {})
        self._output: list[Event] = []
        self._events: list[list[Event]] = []

    def text(self, text: str | Sequence[str], *, annotations: Sequence[Json] = (), phase: str | None = None) -> Self:
        """A message; its annotations come after its last delta."""
        empty: Event = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
        part = {**empty, "annotations": [*annotations], "text": "".join(text)}
        events = _deltas("output_text", "text", text, logprobs=[])
        events[-1:-1] = [
            _event("output_text.annotation.added", annotation_index=index, annotation=annotation)
            for index, annotation in enumerate(annotations)
        ]
        return self._message(empty, part, events, **({} if phase is None else {"phase": phase}))

    def refusal(self, text: str | Sequence[str]) -> Self:
        """A message that refuses."""
        part = {"type": "refusal", "refusal": "".join(text)}
        return self._message({**part, "refusal": ""}, part, _deltas("refusal", "refusal", text))

    def reasoning(self, *summaries: str | Sequence[str], encrypted_content: str | None = None) -> Self:
        """Reasoning, with any number of summaries."""
        parts = [{"type": "summary_text", "text": "".join(summary)} for summary in summaries]
        events: list[Event] = []
        for index, (summary, part) in enumerate(zip(summaries, parts, strict=True)):
            added = _event("reasoning_summary_part.added", summary_index=index, part={**part, "text": ""})
            done = _event("reasoning_summary_part.done", summary_index=index, part=part)
            events += [added, *_deltas("reasoning_summary_text", "text", summary, summary_index=index), done]
        sealed = {} if encrypted_content is None else {"encrypted_content": encrypted_content}
        return self._add("rs", {"type": "reasoning", "summary": parts, **sealed}, events, summary=[])

    def function_call(self, name: str, arguments: Json, call_id: str | None = None) -> Self:
        """A call of the client's function; a string is the arguments' JSON text, broken or not."""
        text = _json_text(arguments)
        call_id = call_id or "call_" + _digest(len(self._output), name, text)[:24]
        item: Event = {"type": "function_call", "status": "completed", "arguments": text}
        item |= {"call_id": call_id, "name": name}
        events = _deltas("function_call_arguments", "arguments", text)
        return self._add("fc", item, events, arguments="")

    def web_search(self, query: str, *, sources: Sequence[str] = ()) -> Self:
        """A search of the web; `sources` are URLs."""
        found = {"sources": [{"type": "url", "url": url} for url in sources]} if sources else {}
        action = {"type": "search", "query": query, **found}
        stages = _stages("web_search_call", "in_progress", "searching", "completed")
        return self._add(
            "ws", {"type": "web_search_call", "status": "completed", "action": action}, stages, action=None
        )

    def file_search(self, *queries: str, results: Sequence[Json] | None = None) -> Self:
        """A search of the user's files."""
        item: Event = {"type": "file_search_call", "status": "completed", "queries": [*queries]}
        item["results"] = None if results is None else [*results]
        stages = _stages("file_search_call", "in_progress", "searching", "completed")
        return self._add("fs", item, stages, queries=[], results=None)

    def code_interpreter(
        self,
        code: str | Sequence[str],
        *,
        logs: str | None = None,
        images: Sequence[str] = (),
        container_id: str = "cntr_" + "0" * 48,
    ) -> Self:
        """A run of code, with what it printed and the URLs of what it drew."""
        outputs: list[Event] = [] if logs is None else [{"type": "logs", "logs": logs}]
        outputs += [{"type": "image", "url": url} for url in images]
        events = _stages("code_interpreter_call", "in_progress")
        events += _deltas("code_interpreter_call_code", "code", code)
        events += _stages("code_interpreter_call", "interpreting", "completed")
        item: Event = {"type": "code_interpreter_call", "status": "completed", "code": "".join(code)}
        item |= {"container_id": container_id, "outputs": outputs}
        return self._add("ci", item, events, code="", outputs=[])

    def image(
        self,
        data: bytes | None = None,
        *,
        partials: int | Sequence[bytes] = 0,
        output_format: str = "png",
        revised_prompt: str | None = None,
        status: str = "completed",
    ) -> Self:
        """A picture and its previews; a pixel is drawn for each that is not given."""
        previews = [pixel_png(red=n) for n in range(partials)] if isinstance(partials, int) else partials
        look = {"background": "opaque", "output_format": output_format, "quality": "low", "size": "1024x1024"}
        events = _stages("image_generation_call", "in_progress", "generating")
        for index, preview in enumerate(previews):
            fields: Event = {"partial_image_index": index, "partial_image_b64": _base64(preview), **look}
            events.append(_event("image_generation_call.partial_image", **fields))
        events += _stages("image_generation_call", "completed")
        result = _base64(pixel_png(blue=255) if data is None else data)
        made = {**look, "result": result, "revised_prompt": revised_prompt}
        item = {"type": "image_generation_call", "status": status, **made}
        return self._add("ig", item, events, **dict.fromkeys(made))

    def mcp_list_tools(self, server_label: str, *tools: Json) -> Self:
        """The tools that a remote MCP server has, as it describes them."""
        item = {"type": "mcp_list_tools", "server_label": server_label, "tools": [*tools]}
        return self._add("mcpl", item, _stages("mcp_list_tools", "in_progress", "completed"), tools=[])

    def mcp_call(
        self, server_label: str, name: str, arguments: Json, *, output: str | None = None, error: Json = None
    ) -> Self:
        """A call of a remote MCP server's tool."""
        text = _json_text(arguments)
        status = "completed" if error is None else "failed"
        item: Event = {"type": "mcp_call", "status": status, "approval_request_id": None, "arguments": text}
        item |= {"error": error, "name": name, "output": output, "server_label": server_label}
        events = _deltas("mcp_call_arguments", "arguments", [text])
        events = [*_stages("mcp_call", "in_progress"), *events, *_stages("mcp_call", status)]
        return self._add("mcp", item, events, arguments="", output=None, error=None)

    def mcp_approval_request(self, server_label: str, name: str, arguments: Json) -> Self:
        """A remote MCP tool that waits to be allowed."""
        item = {"type": "mcp_approval_request", "arguments": _json_text(arguments), "name": name}
        return self._add("mcpr", {**item, "server_label": server_label}, [])

    def item(self, item: Event, *events: Event, prefix: str = "item") -> Self:
        """Any other item, with the events between `added` and `done`; ids and indices are filled in."""
        return self._add(prefix, item, [*events])

    def incomplete(self, reason: str = "max_output_tokens") -> Self:
        """Ends the response before it is whole."""
        self._end = ("incomplete", {"incomplete_details": {"reason": reason}})
        return self

    def failed(self, code: str = "server_error", message: str = "scripted error") -> Self:
        """Ends the response with a failure."""
        self._end = ("failed", {"error": {"code": code, "message": message}})
        return self

    def response(self) -> Event:
        """The whole response object."""
        status, fields = self._end
        end = {"status": status, "output": [*self._output], "usage": self._usage or self._spent()}
        return {**self._opening(), **end, **fields}

    def events(self, *, interleaved: bool = False) -> list[Event]:
        """The stream of the same response; `interleaved`: one event of each item in turn."""
        rows = itertools.zip_longest(*self._events) if interleaved else self._events
        events = [
            _event("created", response=self._opening()),
            _event("in_progress", response=self._opening()),
            *filter(None, itertools.chain.from_iterable(rows)),
            _event(self._end[0], response=self.response()),
        ]
        return [{"type": event["type"], "sequence_number": n, **event} for n, event in enumerate(events)]

    def reply(self, **fields: Any) -> Reply:
        """The stream as a reply."""
        return sse(self.events(), **fields)

    def whole_reply(self, **fields: Any) -> Reply:
        """The whole response as a reply."""
        return json_reply(self.response(), **fields)

    def _opening(self) -> Event:
        return {**self._head, "id": self._id or "resp_" + _digest(self._head, self._output, self._end)}

    def _spent(self) -> Event:
        deltas = [event for events in self._events for event in events if "delta" in event]
        thoughts = sum("summary_index" in event for event in deltas)
        usage: Event = {"input_tokens": 36, "input_tokens_details": {"cached_tokens": 0}}
        usage |= {"output_tokens": len(deltas), "output_tokens_details": {"reasoning_tokens": thoughts}}
        return {**usage, "total_tokens": 36 + len(deltas)}

    def _message(self, empty: Event, part: Event, events: list[Event], **fields: Json) -> Self:
        added, done = _event("content_part.added", part=empty), _event("content_part.done", part=part)
        events = [{"content_index": 0, **event} for event in (added, *events, done)]
        item: Event = {"type": "message", "status": "completed", "content": [part], "role": "assistant"}
        return self._add("msg", {**item, **fields}, events, content=[])

    def _add(self, prefix: str, item: Event, events: list[Event], **opening: Json) -> Self:
        """Appends an item; `opening` is what it has instead when it is added, None what it has not yet."""
        index = len(self._output)
        item_id = item.get("id") or f"{prefix}_{_digest(index, item)}"
        done = {"id": item_id, **item}
        begun = {**done, **({"status": "in_progress"} if "status" in item else {}), **opening}
        added = {key: value for key, value in begun.items() if value is not None}
        first = _event("output_item.added", output_index=index, item=added)
        last = _event("output_item.done", output_index=index, item=done)
        middle = ({"output_index": index, "item_id": item_id, **event} for event in events)
        self._output.append(done)
        self._events.append([first, *middle, last])
        return self


_RESPONSE: Event = loads(
    """{"id": "", "object": "response", "created_at": 1764964102, "status": "in_progress", "store": true,
    "error": null, "incomplete_details": null, "instructions": null, "max_output_tokens": null, "model": "",
    "output": [], "parallel_tool_calls": true, "previous_response_id": null, "service_tier": "default",
    "reasoning": {"effort": "medium", "summary": null}, "background": false, "temperature": 1, "top_p": 1,
    "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto", "tools": [],
    "truncation": "disabled", "usage": null, "metadata": {}}"""
)


def _event(name: str, **fields: Json) -> Event:
    return {"type": f"response.{name}", **fields}


def _stages(tool: str, *stages: str) -> list[Event]:
    return [_event(f"{tool}.{stage}") for stage in stages]


def _deltas(kind: str, whole: str, text: str | Sequence[str], **fields: Json) -> list[Event]:
    """Text as it streams: word by word, or as given, then its `done` with the whole of it."""
    words: Sequence[str] = re.findall(r"\s*\S+|\s+", text) if isinstance(text, str) else text
    deltas = [_event(f"{kind}.delta", delta=word, **fields) for word in words]
    return [*deltas, _event(f"{kind}.done", **{whole: "".join(words)}, **fields)]


def _json_text(value: Json) -> str:
    return value if isinstance(value, str) else dumps(value).decode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _digest(*values: Json) -> str:
    return hashlib.sha256(dumps(values)).hexdigest()[:48]
