"""A script builder for the OpenAI Responses API.

FakeProvider([sse(responses_text("Hello")), ResponsesScript().web_search("news").text("Today").reply()])
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from sidestream.jsontext import loads
from sidestream.parts import Json
from sidestream.testing import replies


def responses_text(text: replies.Text, **fields: Any) -> list[replies.Event]:
    """Return the events of a response with one message. `fields` are those of `ResponsesScript`."""
    return ResponsesScript(**fields).text(text).events()


def responses_function_call(
    name: str, arguments: Json, call_id: str | None = None, **fields: Any
) -> list[replies.Event]:
    """Return the events of a response that calls a function. `fields` are those of `ResponsesScript`."""
    return ResponsesScript(**fields).function_call(name, arguments, call_id).events()


def steer_report(status: str, steer_id: str, response_id: str, **fields: Json) -> replies.Event:
    """Return a `response.steer.*` event (`accepted`, `pending` or `failed`) to put after an `AwaitedSteer`."""
    steer = {"id": steer_id, "previous_response_id": response_id}
    return _event(f"steer.{status}", sequence_number=0, steer=steer, **fields)


class ResponsesScript(replies.ScriptBuilder):
    """A builder of one response of the OpenAI Responses API, item by item.

    ```python
    script = ResponsesScript().code_interpreter(["print(6", " * 7)"], logs="42").text("It is 42.")
    agent = Agent(ScriptedModel([script]))  # or FakeProvider([script.reply()]), over HTTP
    assert (await agent.send("What is 6 * 7?")).output == "It is 42."
    ```

    `events()` and `response()` are two forms of the same response. Text may be given as a list of its deltas.
    `fields` are set in the response object, e.g. `previous_response_id`. With `dialect="xai"`, the answer is like one
    of xAI: reasoning items share an id, searches have no query until they are done, code has no container, and the
    usage has a cost.
    """

    path = "/v1/responses"

    def __init__(
        self,
        *,
        model: str | None = None,
        id: str | None = None,
        usage: Mapping[str, Json] | None = None,
        dialect: Literal["openai", "xai"] = "openai",
        **fields: Json,
    ) -> None:
        self._is_xai = dialect == "xai"
        model = model or ("grok-4.3" if self._is_xai else "gpt-5.6")
        super().__init__({**_RESPONSE, "model": model, **fields}, id, usage)
        self._end: tuple[str, replies.Event] = ("completed", {})

    def text(self, text: replies.Text, *, annotations: Sequence[Json] = (), phase: str | None = None) -> Self:
        """Add a message, with annotations after its last delta."""
        empty: replies.Event = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
        part = {**empty, "annotations": [*annotations], "text": "".join(text)}
        events = _deltas("output_text", "text", text, logprobs=[])
        events[-1:-1] = [
            _event("output_text.annotation.added", annotation_index=index, annotation=annotation)
            for index, annotation in enumerate(annotations)
        ]
        return self._message(empty, part, events, **replies.present(phase=phase))

    def refusal(self, text: replies.Text) -> Self:
        """Add a refusal."""
        part = {"type": "refusal", "refusal": "".join(text)}
        return self._message({**part, "refusal": ""}, part, _deltas("refusal", "refusal", text))

    def reasoning(self, *summaries: replies.Text, encrypted_content: str | None = None) -> Self:
        """Add reasoning, with any number of summaries."""
        parts = [{"type": "summary_text", "text": "".join(summary)} for summary in summaries]
        events: list[replies.Event] = []
        for index, (summary, part) in enumerate(zip(summaries, parts, strict=True)):
            added = _event("reasoning_summary_part.added", summary_index=index, part={**part, "text": ""})
            done = _event("reasoning_summary_part.done", summary_index=index, part=part)
            events += [added, *_deltas("reasoning_summary_text", "text", summary, summary_index=index), done]
        item: replies.Event = {"type": "reasoning", "summary": parts}
        if self._is_xai:
            known = (other["id"] for other in self._whole if str(other.get("id")).startswith("rs_"))
            item |= replies.present(id=next(known, None), status="completed")
        return self._add("rs", item | replies.present(encrypted_content=encrypted_content), events, summary=[])

    def tool_output(self, encrypted_content: str) -> Self:
        """Add the encrypted output of a hosted tool, which xAI sends as reasoning if the answer is not stored."""
        item: replies.Event = {"type": "reasoning", "status": "completed", "summary": []}
        return self._add("tco", {**item, "encrypted_content": encrypted_content}, [])

    def function_call(self, name: str, arguments: Json, call_id: str | None = None) -> Self:
        """Add a client tool call. A string is sent as the arguments' JSON, valid or not."""
        text = replies.json_text(arguments)
        call_id = call_id or "call_" + replies.digest(24, len(self._whole), name, text)
        item: replies.Event = {"type": "function_call", "status": "completed", "arguments": text}
        item |= {"call_id": call_id, "name": name}
        events = _deltas("function_call_arguments", "arguments", text)
        return self._add("fc", item, events, arguments="")

    def web_search(self, query: str, *, sources: Sequence[str] = ()) -> Self:
        """Add a web search. `sources` are URLs."""
        found = {"sources": [{"type": "url", "url": url} for url in sources]} if sources else {}
        action = {"type": "search", "query": query, **found}
        stages = _stages("web_search_call", "in_progress", "searching", "completed")
        item: replies.Event = {"type": "web_search_call", "status": "completed", "action": action}
        empty: replies.Event = {"type": "search", "query": "", "sources": []}
        return self._add("ws", item, stages, action=empty if self._is_xai else None)

    def x_search(self, arguments: Json, *, name: str = "x_keyword_search") -> Self:
        """Add a search of X, which xAI sends as the call of a custom tool that the request does not declare."""
        text = replies.json_text(arguments)
        call_id = "xs_call_" + replies.digest(8, len(self._whole), name, text)
        item: replies.Event = {"type": "custom_tool_call", "status": "completed", "call_id": call_id}
        events = _deltas("custom_tool_call_input", "input", [text])
        self._head["tools"] = [{"type": "x_search"}]
        return self._add("ctc", {**item, "name": name, "input": text}, events, input="")

    def file_search(self, *queries: str, results: Sequence[Json] | None = None) -> Self:
        """Add a search of the user's files."""
        item: replies.Event = {"type": "file_search_call", "status": "completed", "queries": [*queries]}
        item["results"] = None if results is None else [*results]
        stages = _stages("file_search_call", "in_progress", "searching", "completed")
        return self._add("fs", item, stages, queries=[], results=None)

    def code_interpreter(
        self,
        code: replies.Text,
        *,
        logs: str | None = None,
        images: Sequence[str] = (),
        container_id: str = "cntr_" + "0" * 48,
    ) -> Self:
        """Add a run of code, with its printed output and the URLs of its images."""
        outputs: list[replies.Event] = [] if logs is None else [{"type": "logs", "logs": logs}]
        outputs += [{"type": "image", "url": url} for url in images]
        events = _stages("code_interpreter_call", "in_progress")
        events += _deltas("code_interpreter_call_code", "code", code)
        events += _stages("code_interpreter_call", "interpreting", "completed")
        item: replies.Event = {"type": "code_interpreter_call", "status": "completed", "code": "".join(code)}
        item |= {"outputs": outputs} if self._is_xai else {"container_id": container_id, "outputs": outputs}
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
        """Add an image and its previews. By default, each is a single pixel."""
        previews = [replies.pixel_png(red=n) for n in range(partials)] if isinstance(partials, int) else partials
        settings = {"background": "opaque", "output_format": output_format, "quality": "low", "size": "1024x1024"}
        events = _stages("image_generation_call", "in_progress", "generating")
        for index, preview in enumerate(previews):
            fields: replies.Event = {
                "partial_image_index": index,
                "partial_image_b64": replies.base64_text(preview),
                **settings,
            }
            events.append(_event("image_generation_call.partial_image", **fields))
        events += _stages("image_generation_call", "completed")
        result = replies.base64_text(replies.pixel_png(blue=255) if data is None else data)
        made = {**settings, "result": result, "revised_prompt": revised_prompt}
        item = {"type": "image_generation_call", "status": status, **made}
        return self._add("ig", item, events, **dict.fromkeys(made))

    def mcp_list_tools(self, server_label: str, *tools: Json) -> Self:
        """Add a remote MCP server's list of tools."""
        item = {"type": "mcp_list_tools", "server_label": server_label, "tools": [*tools]}
        return self._add("mcpl", item, _stages("mcp_list_tools", "in_progress", "completed"), tools=[])

    def mcp_call(
        self, server_label: str, name: str, arguments: Json, *, output: str | None = None, error: Json = None
    ) -> Self:
        """Add a call to a remote MCP server's tool."""
        text = replies.json_text(arguments)
        status = "completed" if error is None else "failed"
        item: replies.Event = {"type": "mcp_call", "status": status, "approval_request_id": None, "arguments": text}
        item |= {"error": error, "name": name, "output": output, "server_label": server_label}
        events = _deltas("mcp_call_arguments", "arguments", [text])
        events = [*_stages("mcp_call", "in_progress"), *events, *_stages("mcp_call", status)]
        return self._add("mcp", item, events, arguments="", output=None, error=None)

    def mcp_approval_request(self, server_label: str, name: str, arguments: Json) -> Self:
        """Add a call to a remote MCP tool that needs approval."""
        item = {"type": "mcp_approval_request", "arguments": replies.json_text(arguments), "name": name}
        return self._add("mcpr", {**item, "server_label": server_label}, [])

    def item(self, item: replies.Event, *events: replies.Event, prefix: str = "item", **opening: Json) -> Self:
        """Add any other item, with the events between `added` and `done`. Ids and indexes are filled in.

        `opening` holds the fields that differ at `added`, with None for those not sent yet.
        """
        return self._add(prefix, item, [*events], **opening)

    def incomplete(self, reason: str = "max_output_tokens") -> Self:
        """End the response as incomplete."""
        self._end = ("incomplete", {"incomplete_details": {"reason": reason}})
        return self

    def failed(self, code: str = "server_error", message: str = "scripted error") -> Self:
        """End the response with a failure."""
        self._end = ("failed", {"error": {"code": code, "message": message}})
        return self

    def response(self) -> replies.Event:
        """Return the non-streaming response."""
        status, fields = self._end
        end = {"status": status, "output": [*self._whole], "usage": self._usage or self._spent()}
        return {**self._opening(), **end, **fields}

    def events(self, *, interleaved: bool = False) -> list[replies.Event]:
        """Return the stream of the same response. `interleaved` alternates the events of all items."""
        events = [
            _event("created", response=self._opening()),
            _event("in_progress", response=self._opening()),
            *self._all_events(interleaved=interleaved),
            _event(self._end[0], response=self.response()),
        ]
        return [{"type": event["type"], "sequence_number": n, **event} for n, event in enumerate(events)]

    def _stream(self) -> list[replies.Event]:
        return self.events()

    def _opening(self) -> replies.Event:
        return {**self._head, "id": self._identity("resp_", 48, self._whole, self._end)}

    def _spent(self) -> replies.Event:
        deltas = [event for event in self._all_events() if "delta" in event]
        thoughts = sum("summary_index" in event for event in deltas)
        usage: replies.Event = {"input_tokens": 36, "input_tokens_details": {"cached_tokens": 0}}
        usage |= {"output_tokens": len(deltas), "output_tokens_details": {"reasoning_tokens": thoughts}}
        if self._is_xai:
            usage["cost_in_usd_ticks"] = 52_410_500
        return {**usage, "total_tokens": 36 + len(deltas)}

    def _message(self, empty: replies.Event, part: replies.Event, events: list[replies.Event], **fields: Json) -> Self:
        added, done = _event("content_part.added", part=empty), _event("content_part.done", part=part)
        events = [{"content_index": 0, **event} for event in (added, *events, done)]
        item: replies.Event = {"type": "message", "status": "completed", "content": [part], "role": "assistant"}
        return self._add("msg", {**item, **fields}, events, content=[])

    def _add(self, prefix: str, item: replies.Event, events: list[replies.Event], **opening: Json) -> Self:
        """Append an item. `opening` holds the fields that differ at `added`, with None for those not sent yet."""
        index = len(self._whole)
        item_id = item.get("id") or f"{prefix}_{replies.digest(48, index, item)}"
        done = {"id": item_id, **item}
        begun = {**done, **({"status": "in_progress"} if "status" in item else {}), **opening}
        first = _event("output_item.added", output_index=index, item=replies.present(**begun))
        last = _event("output_item.done", output_index=index, item=done)
        middle = ({"output_index": index, "item_id": item_id, **event} for event in events)
        return self._add_item(done, first, *middle, last)


_RESPONSE: replies.Event = loads(
    """{"id": "", "object": "response", "created_at": 1764964102, "status": "in_progress", "store": true,
    "error": null, "incomplete_details": null, "instructions": null, "max_output_tokens": null, "model": "",
    "output": [], "parallel_tool_calls": true, "previous_response_id": null, "service_tier": "default",
    "reasoning": {"effort": "medium", "summary": null}, "background": false, "temperature": 1, "top_p": 1,
    "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto", "tools": [],
    "truncation": "disabled", "usage": null, "metadata": {}}"""
)


def _event(name: str, **fields: Json) -> replies.Event:
    return {"type": f"response.{name}", **fields}


def _stages(tool: str, *stages: str) -> list[replies.Event]:
    return [_event(f"{tool}.{stage}") for stage in stages]


def _deltas(kind: str, whole: str, text: replies.Text, **fields: Json) -> list[replies.Event]:
    """Return the deltas of a string, and the `done` event with all of it."""
    deltas = [_event(f"{kind}.delta", delta=word, **fields) for word in replies.words(text)]
    return [*deltas, _event(f"{kind}.done", **{whole: "".join(replies.words(text))}, **fields)]
