"""Composes what a server of Chat Completions says, for a fake provider or a decoder.

FakeProvider([ChatScript().reasoning("Hm").tool_call("get_weather", {"city": "Rome"}).reply()])
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from sidestream.jsontext import dumps
from sidestream.stream.parts import Json
from sidestream.testing.script import Event, Reply, json_reply, sse

USAGE: Event = {"prompt_tokens": 25, "completion_tokens": 9, "total_tokens": 34}


class ChatScript:
    """Composes one chat completion.

    `chunks()` and `response()` are two forms of the same answer. Ids follow from the content: the same in every run,
    and different for different answers. Text may be given as a list: its deltas.
    """

    def __init__(
        self,
        *,
        model: str = "gpt-5.6",
        id: str | None = None,
        usage: Mapping[str, Json] | None = USAGE,
        **fields: Json,
    ) -> None:
        self._head: Event = {"created": 1762317021, "model": model, **fields}
        self._id = id
        self._usage = usage
        self._message: Event = {"role": "assistant", "content": None}
        self._deltas: list[Event] = []
        self._reason: str | None = None
        self._error: Event | None = None

    def text(self, text: str | Sequence[str], *, annotations: Sequence[Json] = ()) -> Self:
        """Text; its annotations come after its last delta."""
        self._join("content", text)
        if annotations:
            self._message["annotations"] = [*annotations]
            self._deltas.append({"annotations": [*annotations]})
        return self

    def refusal(self, text: str | Sequence[str]) -> Self:
        """A refusal."""
        return self._join("refusal", text)

    def reasoning(self, text: str | Sequence[str], *, field: str = "reasoning_content") -> Self:
        """Reasoning, in the field that the server uses for it."""
        return self._join(field, text)

    def tool_call(self, name: str, arguments: Json, call_id: str | None = None) -> Self:
        """A call of a function; text, or a list of its deltas, is the arguments' JSON text, broken or not."""
        pieces: Sequence[str] = _words(dumps(arguments).decode())
        if isinstance(arguments, str | list):
            pieces = cast("Sequence[str]", [arguments] if isinstance(arguments, str) else arguments)
        return self._call("function", "arguments", name, pieces, call_id)

    def custom_call(self, name: str, text: str | Sequence[str], call_id: str | None = None) -> Self:
        """A call whose input is plain text."""
        return self._call("custom", "input", name, _words(text), call_id)

    def audio(self, pieces: Sequence[str], transcript: str | Sequence[str], *, id: str = "audio_1") -> Self:
        """Speech: base64 in pieces, and what is said."""
        self._deltas.append({"audio": {"id": id, "transcript": ""}})
        self._deltas += [{"audio": {"transcript": word}} for word in _words(transcript)]
        self._deltas += [{"audio": {"data": piece}} for piece in pieces]
        self._deltas.append({"audio": {"expires_at": 1762320621}})
        said = {"data": "".join(pieces), "transcript": "".join(_words(transcript)), "expires_at": 1762320621}
        self._message["audio"] = {"id": id, **said}
        return self

    def delta(self, **fields: Json) -> Self:
        """Any other fields, in a delta of their own."""
        self._deltas.append(fields)
        self._message |= fields
        return self

    def stop(self, reason: str) -> Self:
        """Ends the answer for this reason, e.g. `length`."""
        self._reason = reason
        return self

    def error(self, code: Json = "server_error", message: str = "The server had an error") -> Self:
        """Breaks the stream off with an error."""
        self._error = {"error": {"message": message, "type": "server_error", "param": None, "code": code}}
        return self

    def response(self) -> Event:
        """The whole answer, or the error in its place."""
        if self._error is not None:
            return self._error
        choice = {"index": 0, "message": self._message, "logprobs": None, "finish_reason": self._ending()}
        usage = {"usage": {**self._usage}} if self._usage is not None else {}
        return {**self._opening(), "object": "chat.completion", "choices": [choice], **usage}

    def chunks(self) -> list[Event]:
        """The stream of the same answer, without its last line."""
        first: Event = {"role": "assistant", "content": None}
        chunks = [self._chunk(delta) for delta in (first, *self._deltas)]
        if self._error is not None:
            return [*chunks, self._error]
        chunks.append(self._chunk({}, self._ending()))
        if self._usage is not None:
            chunks.append({**self._chunk({}), "choices": [], "usage": {**self._usage}})
        return chunks

    def reply(self, **fields: Any) -> Reply:
        """The stream as a reply."""
        return sse([*self.chunks(), "[DONE]"], **fields)

    def whole_reply(self, **fields: Any) -> Reply:
        """The whole answer as a reply."""
        return json_reply(self.response(), **fields)

    def _opening(self) -> Event:
        return {"id": self._id or "chatcmpl-" + _digest(self._head, self._message, self._reason), **self._head}

    def _ending(self) -> str:
        return self._reason or ("tool_calls" if "tool_calls" in self._message else "stop")

    def _chunk(self, delta: Event, reason: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._opening(), "object": "chat.completion.chunk", "choices": [choice]}

    def _join(self, field: str, text: str | Sequence[str]) -> Self:
        self._deltas += [{field: word} for word in _words(text)]
        self._message[field] = (self._message.get(field) or "") + "".join(_words(text))
        return self

    def _call(self, kind: str, field: str, name: str, pieces: Sequence[str], call_id: str | None) -> Self:
        calls: list[Event] = self._message.setdefault("tool_calls", [])
        index, text = len(calls), "".join(pieces)
        call_id = call_id or f"call_{_digest(index, name, text)}"
        calls.append({"id": call_id, "type": kind, kind: {"name": name, field: text}})
        start: Event = {"index": index, "id": call_id, "type": kind, kind: {"name": name, field: ""}}
        rest: list[Event] = [{"index": index, kind: {field: piece}} for piece in pieces]
        self._deltas += [{"tool_calls": [piece]} for piece in (start, *rest)]
        return self


def _words(text: str | Sequence[str]) -> Sequence[str]:
    """Text as it streams: word by word, or as given."""
    return re.findall(r"\s*\S+|\s+", text) if isinstance(text, str) else text


def _digest(*values: Json) -> str:
    return hashlib.sha256(dumps(values)).hexdigest()[:24]
