"""A script builder for Anthropic's Messages API.

FakeProvider([MessagesScript().thinking("Hm").tool_use("get_weather", {"city": "Rome"}).reply()])
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from sidestream.jsontext import loads
from sidestream.parts import Json
from sidestream.testing.replies import Event, ScriptBuilder, Text, digest, json_deltas, words


class MessagesScript(ScriptBuilder):
    """A builder of one message of the Messages API, block by block.

    `events()` and `response()` are two forms of the same message. Text may be given as a list of its deltas.
    `fields` are set in the message object.
    """

    path = "/v1/messages"

    def __init__(
        self,
        *,
        model: str = "claude-sonnet-5-5",
        id: str | None = None,
        usage: Mapping[str, Json] | None = None,
        container: str | None = None,
        **fields: Json,
    ) -> None:
        super().__init__({"type": "message", "role": "assistant", "model": model, **fields}, id, usage)
        self._container = container
        self._end: Event = {}

    def text(self, text: Text, *, citations: Sequence[Json] = ()) -> Self:
        """Add text, with citations after its last delta."""
        deltas = [{"type": "text_delta", "text": word} for word in words(text)]
        cited: list[Event] = [{"type": "citations_delta", "citation": citation} for citation in citations]
        whole: Event = {"type": "text", "text": "".join(text)}
        empty: Event = {"type": "text", "text": ""}
        if citations:
            whole["citations"], empty["citations"] = [*citations], []
        return self._add(empty, whole, [*deltas, *cited])

    def thinking(self, text: Text, *, signature: str = "EqQBCgIYAhIk") -> Self:
        """Add thinking with its signature."""
        empty: Event = {"type": "thinking", "thinking": "", "signature": ""}
        deltas: list[Event] = [{"type": "thinking_delta", "thinking": word} for word in words(text)]
        deltas.append({"type": "signature_delta", "signature": signature})
        return self._add(empty, {**empty, "thinking": "".join(text), "signature": signature}, deltas)

    def redacted_thinking(self, data: str = "EmwKAhgBEgy3") -> Self:
        """Add thinking that only the provider can read."""
        return self.block({"type": "redacted_thinking", "data": data})

    def tool_use(self, name: str, arguments: Json, call_id: str | None = None, **fields: Json) -> Self:
        """Add a client tool call. A string, or a list of its deltas, is sent as the input's JSON, valid or not."""
        return self._call("tool_use", "toolu", name, arguments, call_id, **fields)

    def server_tool_use(self, name: str, arguments: Json, call_id: str | None = None, **fields: Json) -> Self:
        """Add a call that the provider executes, without its result."""
        return self._call("server_tool_use", "srvtoolu", name, arguments, call_id, **fields)

    def result(self, kind: str, content: Json, call_id: str | None = None, **fields: Json) -> Self:
        """Add the result of the last call, or of the call with this id."""
        last = next((block["id"] for block in reversed(self._whole) if "id" in block), "srvtoolu_unknown")
        return self.block({"type": kind, "tool_use_id": call_id or last, "content": content, **fields})

    def web_search(self, query: str, results: Sequence[Json] | str = ()) -> Self:
        """Add a web search and its results, or its error code."""
        self.server_tool_use("web_search", {"query": query})
        failed = {"type": "web_search_tool_result_error", "error_code": results}
        return self.result("web_search_tool_result", failed if isinstance(results, str) else [*results])

    def web_fetch(
        self, url: str, data: str | None, *, title: str | None = None, mime_type: str = "text/plain", error: str = ""
    ) -> Self:
        """Add a fetched page, as text or a PDF's base64. None adds the error code instead."""
        self.server_tool_use("web_fetch", {"url": url})
        if data is None:
            failed = {"type": "web_fetch_tool_result_error", "error_code": error or "unavailable"}
            return self.result("web_fetch_tool_result", failed)
        source = {"type": "text" if mime_type == "text/plain" else "base64", "media_type": mime_type, "data": data}
        document = {"type": "document", "source": source, "title": title, "citations": None}
        content = {"type": "web_fetch_result", "url": url, "retrieved_at": None, "content": document}
        return self.result("web_fetch_tool_result", content)

    def code_execution(self, code: str, **fields: Any) -> Self:
        """Add a run of code. `fields` are `stdout`, `stderr`, `files` (ids of created files) and `return_code`."""
        return self._ran("code_execution", {"code": code}, **fields)

    def bash(self, command: str, **fields: Any) -> Self:
        """Add a command in the sandbox. `fields` are those of `code_execution`."""
        return self._ran("bash_code_execution", {"command": command}, **fields)

    def text_editor(self, arguments: Json, result: Json) -> Self:
        """Add a call to the sandbox's editor and its result."""
        self.server_tool_use("text_editor_code_execution", arguments)
        return self.result("text_editor_code_execution_tool_result", result)

    def tool_search(self, query: str, tools: Sequence[str], *, kind: str = "bm25") -> Self:
        """Add a search of the deferred tools."""
        self.server_tool_use(f"tool_search_tool_{kind}", {"query": query})
        found = [{"type": "tool_reference", "tool_name": tool} for tool in tools]
        content = {"type": "tool_search_tool_search_result", "tool_references": found}
        return self.result("tool_search_tool_result", content)

    def mcp(self, server: str, name: str, arguments: Json, output: Json, *, is_error: bool = False) -> Self:
        """Add a call to a remote MCP server's tool and its result."""
        self._call("mcp_tool_use", "mcptoolu", name, arguments, None, server_name=server)
        return self.result("mcp_tool_result", output, is_error=is_error)

    def mcp_listing(self, server: str, tools: Sequence[Json]) -> Self:
        """Add a remote MCP server's list of tools."""
        return self.block({"type": "mcp_tool_listing", "mcp_server_name": server, "tools": [*tools]})

    def advisor(self, advice: str) -> Self:
        """Add advice from the advisor tool."""
        self.server_tool_use("advisor", {})
        return self.result("advisor_tool_result", {"type": "advisor_result", "text": advice, "stop_reason": "end_turn"})

    def compaction(self, text: Text, **fields: Json) -> Self:
        """Add a summary of the conversation so far. `fields` are e.g. `signature` and `tool_changes`."""
        empty: Event = {"type": "compaction", "content": None, **fields}
        deltas: list[Event] = [{"type": "compaction_delta", "content": word} for word in words(text)]
        return self._add(empty, {**empty, "content": "".join(text)}, deltas)

    def block(self, block: Event, *deltas: Event, **opening: Json) -> Self:
        """Add any other block. `opening` holds initial fields that differ from the finished block's."""
        return self._add({**block, **opening}, block, [*deltas])

    def stop(self, reason: str, **fields: Json) -> Self:
        """Set the stop reason, e.g. `max_tokens`, and fields beside it, e.g. `stop_details`."""
        self._end = {"stop_reason": reason, **fields}
        return self

    def pause_turn(self) -> Self:
        """End the message with `pause_turn`, which the client must send back to continue."""
        return self.stop("pause_turn")

    def refusal(self, category: str | None = None) -> Self:
        """End the message with a refusal."""
        return self.stop("refusal", stop_details={"type": "refusal", "category": category, "explanation": None})

    def error(
        self, code: str = "overloaded_error", message: str = "Overloaded", *, error_code: str | None = None
    ) -> Self:
        """End the stream with an error. `error_code` is its detail, e.g. `thread_not_found`."""
        error: Event = {"type": code, "message": message}
        if error_code is not None:
            error["details"] = {"error_code": error_code}
        self._error = {"type": "error", "error": error, "request_id": "req_1"}
        return self

    def response(self) -> Event:
        """Return the non-streaming message, or the error."""
        if self._error is not None:
            return self._error
        return {**self._opening(), "content": [*self._whole], **self._ending(), "usage": self._spent()}

    def events(self) -> list[Event]:
        """Return the stream of the same message."""
        usage = {**self._spent(), "output_tokens": 1}
        start: Event = {**self._opening(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        events: list[Event] = [{"type": "message_start", "message": start}, *self._all_events()]
        if self._error is not None:
            return [*events, self._error]
        events.append({"type": "message_delta", "delta": self._ending(), "usage": self._spent()})
        return [*events, {"type": "message_stop"}]

    def _stream(self) -> list[Event]:
        return self.events()

    def _opening(self) -> Event:
        return {"id": self._identity("msg_", 24, self._whole, self._end), **self._head}

    def _ending(self) -> Event:
        called = any(block["type"] == "tool_use" for block in self._whole)
        ending: Event = {"stop_reason": "tool_use" if called else "end_turn", "stop_sequence": None, **self._end}
        if self._container is not None:
            ending["container"] = {"id": self._container, "expires_at": "2026-10-21T12:00:00Z"}
        return ending

    def _spent(self) -> Event:
        count = sum(len(events) - 2 for events in self._streamed)
        cache: Event = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        return {**(self._usage or {"input_tokens": 25, **cache, "output_tokens": count})}

    def _ran(
        self,
        name: str,
        arguments: Json,
        *,
        stdout: str = "",
        stderr: str = "",
        files: Sequence[str] = (),
        return_code: int = 0,
    ) -> Self:
        self.server_tool_use(name, arguments)
        made = [{"type": f"{name}_output", "file_id": file_id} for file_id in files]
        ran = {
            "type": f"{name}_result",
            "stdout": stdout,
            "stderr": stderr,
            "return_code": return_code,
            "content": made,
        }
        return self.result(f"{name}_tool_result", ran)

    def _call(self, kind: str, prefix: str, name: str, arguments: Json, call_id: str | None, **fields: Json) -> Self:
        pieces = json_deltas(arguments)
        text = "".join(pieces)
        block: Event = {"type": kind, "id": call_id or f"{prefix}_{digest(24, len(self._whole), name, text)}"}
        block |= {"name": name, "input": arguments if isinstance(arguments, dict) else _parsed(text), **fields}
        deltas: list[Event] = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]
        return self._add({**block, "input": {}}, block, deltas)

    def _add(self, opening: Event, block: Event, deltas: list[Event]) -> Self:
        index = len(self._whole)
        start: Event = {"type": "content_block_start", "index": index, "content_block": opening}
        middle: list[Event] = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        return self._add_item(block, start, *middle, {"type": "content_block_stop", "index": index})


def _parsed(text: str) -> Json:
    try:
        return loads(text)
    except ValueError:
        return {}
