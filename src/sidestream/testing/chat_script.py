"""A script builder for the OpenAI Chat Completions API.

FakeProvider([ChatScript().reasoning("Hm").tool_call("get_weather", {"city": "Rome"}).reply()])
"""

from collections.abc import Mapping, Sequence
from typing import Self

from sidestream.parts import Json
from sidestream.testing.replies import Event, ScriptBuilder, Text, digest, json_deltas, words

USAGE: Event = {"prompt_tokens": 25, "completion_tokens": 9, "total_tokens": 34}


class ChatScript(ScriptBuilder):
    """A builder of one chat completion.

    `chunks()` and `response()` are two forms of the same completion. Text may be given as a list of its deltas.
    `fields` are set in the completion and in every chunk.
    """

    path = "/v1/chat/completions"
    _sentinel = ("[DONE]",)

    def __init__(
        self,
        *,
        model: str = "gpt-5.6",
        id: str | None = None,
        usage: Mapping[str, Json] | None = USAGE,
        **fields: Json,
    ) -> None:
        super().__init__({"created": 1762317021, "model": model, **fields}, id, usage)
        self._message: Event = {"role": "assistant", "content": None}
        self._deltas: list[Event] = []
        self._reason: str | None = None

    def text(self, text: Text, *, annotations: Sequence[Json] = ()) -> Self:
        """Add text, with annotations after its last delta."""
        self._join("content", text)
        if annotations:
            self._message["annotations"] = [*annotations]
            self._deltas.append({"annotations": [*annotations]})
        return self

    def refusal(self, text: Text) -> Self:
        """Add a refusal."""
        return self._join("refusal", text)

    def reasoning(self, text: Text, *, field: str = "reasoning_content") -> Self:
        """Add reasoning, in the field that the server uses for it."""
        return self._join(field, text)

    def tool_call(self, name: str, arguments: Json, call_id: str | None = None) -> Self:
        """Add a function call. A string, or a list of its deltas, is sent as the arguments' JSON, valid or not."""
        return self._call("function", "arguments", name, json_deltas(arguments), call_id)

    def custom_call(self, name: str, text: Text, call_id: str | None = None) -> Self:
        """Add a call whose input is plain text."""
        return self._call("custom", "input", name, words(text), call_id)

    def executed_tool(
        self,
        type: str,
        arguments: Json,
        *,
        output: str = "",
        name: str | None = None,
        results: Sequence[Json] = (),
        **found: Json,
    ) -> Self:
        """Add a call that the server runs, as Groq reports it: when it starts, and again with its output.

        `results` are what a search found. `found` are other results, e.g. `code_results` and `browser_results`.
        Arguments that are not a string are sent as JSON.
        """
        calls: list[Event] = self._message.setdefault("executed_tools", [])
        text = arguments if isinstance(arguments, str) else "".join(json_deltas(arguments))
        start: Event = {"index": len(calls), "type": type, "arguments": text, "search_results": {"results": []}}
        start |= {"name": name} if name is not None else {}
        end = start | {"output": output, "search_results": {"results": [*results]}, **found}
        calls.append(end)
        self._deltas += [{"executed_tools": [start]}, {"executed_tools": [end]}]
        return self

    def audio(self, pieces: Sequence[str], transcript: Text, *, id: str = "audio_1") -> Self:
        """Add speech, as pieces of base64 and a transcript."""
        self._deltas.append({"audio": {"id": id, "transcript": ""}})
        self._deltas += [{"audio": {"transcript": word}} for word in words(transcript)]
        self._deltas += [{"audio": {"data": piece}} for piece in pieces]
        self._deltas.append({"audio": {"expires_at": 1762320621}})
        whole = {"data": "".join(pieces), "transcript": "".join(transcript), "expires_at": 1762320621}
        self._message["audio"] = {"id": id, **whole}
        return self

    def delta(self, **fields: Json) -> Self:
        """Add any other fields, in one delta."""
        self._deltas.append(fields)
        self._message |= fields
        return self

    def stop(self, reason: str) -> Self:
        """Set the finish reason, e.g. `length`."""
        self._reason = reason
        return self

    def error(self, code: Json = "server_error", message: str = "The server had an error") -> Self:
        """End the stream with an error."""
        self._error = {"error": {"message": message, "type": "server_error", "param": None, "code": code}}
        return self

    def response(self) -> Event:
        """Return the non-streaming completion, or the error."""
        if self._error is not None:
            return self._error
        choice = {"index": 0, "message": self._message, "logprobs": None, "finish_reason": self._ending()}
        usage = {"usage": {**self._usage}} if self._usage is not None else {}
        return {**self._opening(), "object": "chat.completion", "choices": [choice], **usage}

    def chunks(self) -> list[Event]:
        """Return the stream of the same completion, without `[DONE]`."""
        first: Event = {"role": "assistant", "content": None}
        chunks = [self._chunk(delta) for delta in (first, *self._deltas)]
        if self._error is not None:
            return [*chunks, self._error]
        chunks.append(self._chunk({}, self._ending()))
        if self._usage is not None:
            chunks.append({**self._chunk({}), "choices": [], "usage": {**self._usage}})
        return chunks

    def _stream(self) -> list[Event]:
        return self.chunks()

    def _opening(self) -> Event:
        return {"id": self._identity("chatcmpl-", 24, self._message, self._reason), **self._head}

    def _ending(self) -> str:
        return self._reason or ("tool_calls" if "tool_calls" in self._message else "stop")

    def _chunk(self, delta: Event, reason: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._opening(), "object": "chat.completion.chunk", "choices": [choice]}

    def _join(self, field: str, text: Text) -> Self:
        self._deltas += [{field: word} for word in words(text)]
        self._message[field] = (self._message.get(field) or "") + "".join(text)
        return self

    def _call(self, kind: str, field: str, name: str, pieces: Sequence[str], call_id: str | None) -> Self:
        calls: list[Event] = self._message.setdefault("tool_calls", [])
        index, text = len(calls), "".join(pieces)
        call_id = call_id or "call_" + digest(24, index, name, text)
        calls.append({"id": call_id, "type": kind, kind: {"name": name, field: text}})
        start: Event = {"index": index, "id": call_id, "type": kind, kind: {"name": name, field: ""}}
        rest: list[Event] = [{"index": index, kind: {field: piece}} for piece in pieces]
        self._deltas += [{"tool_calls": [piece]} for piece in (start, *rest)]
        return self
