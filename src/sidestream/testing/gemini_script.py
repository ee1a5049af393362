"""Answers of Google's two APIs, composed piece by piece, for a fake provider to give.

FakeProvider([GeminiScript().thought("Hm.").text("Hello").reply()], base_path="")
"""

import base64
import hashlib
import itertools
import re
from collections.abc import Sequence
from typing import Any, Self

from sidestream.jsontext import as_object, dumps
from sidestream.stream.parts import Json
from sidestream.testing.script import Event, Reply, json_reply, sse


class GeminiScript:
    """Composes one response of generateContent.

    `chunks()` and `response()` are two forms of the same response. Ids follow from the content: the same in every
    run, and different where the content is.
    """

    def __init__(
        self, *, model: str = "gemini-3-flash-preview", response_id: str | None = None, usage: Event | None = None
    ) -> None:
        self._head: Event = {"modelVersion": model}
        self._id = response_id
        self._usage = usage
        self._pieces: list[list[Event]] = []
        self._whole: list[Event] = []
        self._fields: Event = {}
        self._end: Event = {"finishReason": "STOP"}
        self._feedback: Event | None = None
        self._error: Event | None = None

    def text(self, text: str | Sequence[str], *, signature: str | None = None, **fields: Json) -> Self:
        """Text, word by word or in the pieces given. A signature comes with an empty piece at the end."""
        pieces = [{"text": piece, **fields} for piece in _words(text)]
        if signature is None:
            return self._add(pieces, [{"text": "".join(piece["text"] for piece in pieces), **fields}])
        signed = {"text": "", "thoughtSignature": signature, **fields}
        return self._add([*pieces, signed], [{**signed, "text": "".join(piece["text"] for piece in pieces)}])

    def thought(self, text: str | Sequence[str], *, signature: str | None = None) -> Self:
        """A summary of what the model thinks."""
        return self.text(text, signature=signature, thought=True)

    def function_call(
        self, name: str, args: Json = None, *, call_id: str | None = None, signature: str | None = None
    ) -> Self:
        """A call of a client's function, whole; without `args` the field is left out."""
        call: Event = {"name": name, **({} if args is None else {"args": args}), **_set(id=call_id)}
        return self.part({"functionCall": call, **_set(thoughtSignature=signature)})

    def streamed_call(self, name: str, *pieces: tuple[str, Json], signature: str | None = None) -> Self:
        """A call whose arguments come in pieces, each a JSON path and a value; strings come in two halves."""
        parts: list[Event] = [
            {"functionCall": {"name": name, "willContinue": True}, **_set(thoughtSignature=signature)}
        ]
        arguments = [argument for path, value in pieces for argument in _partial_args(path, value)]
        parts += [{"functionCall": {"partialArgs": [argument], "willContinue": True}} for argument in arguments]
        parts.append({"functionCall": {}})
        return self._add(parts, parts)

    def code(
        self,
        code: str,
        output: str | None = None,
        *,
        outcome: str = "OUTCOME_OK",
        call_id: str | None = None,
        signature: str | None = None,
    ) -> Self:
        """A run of code and, if there is an output, its result."""
        self.part(
            {
                "executableCode": {"language": "PYTHON", "code": code, **_set(id=call_id)},
                **_set(thoughtSignature=signature),
            }
        )
        if output is None:
            return self
        return self.part({"codeExecutionResult": {"outcome": outcome, "output": output, **_set(id=call_id)}})

    def tool_call(self, tool_type: str, args: Json = None, *, call_id: str, signature: str | None = None) -> Self:
        """A call of a hosted tool."""
        call = {"toolType": tool_type, "id": call_id, **_set(args=args)}
        return self.part({"toolCall": call, **_set(thoughtSignature=signature)})

    def tool_response(
        self, tool_type: str, response: Json = None, *, call_id: str, signature: str | None = None
    ) -> Self:
        """What a hosted tool gave back."""
        answer = {"toolType": tool_type, "id": call_id, **_set(response=response)}
        return self.part({"toolResponse": answer, **_set(thoughtSignature=signature)})

    def inline_data(self, data: bytes, mime_type: str = "image/png", **fields: Json) -> Self:
        """A file; `fields` stand beside it in its part."""
        return self.part({"inlineData": {"mimeType": mime_type, "data": _base64(data)}, **fields})

    def part(self, part: Json) -> Self:
        """Any other part, or what should be one."""
        return self._add([part], [part])

    def grounding(
        self, *chunks: Event, supports: Sequence[tuple[int, int, str | None, Sequence[int]]] = (), **fields: Json
    ) -> Self:
        """What the text is grounded in; a support is the first byte, the last, the text and the chunks."""
        segments = [
            {
                "segment": {**({"startIndex": start} if start else {}), "endIndex": end, **_set(text=text)},
                "groundingChunkIndices": [*indices],
            }
            for start, end, text, indices in supports
        ]
        metadata = {"groundingChunks": [*chunks], **({"groundingSupports": segments} if segments else {}), **fields}
        return self.candidate(groundingMetadata=metadata)

    def url_context(self, *urls: str, status: str = "URL_RETRIEVAL_STATUS_SUCCESS") -> Self:
        """The pages that were read."""
        pages = [{"retrievedUrl": url, "urlRetrievalStatus": status} for url in urls]
        return self.candidate(urlContextMetadata={"urlMetadata": pages})

    def candidate(self, **fields: Json) -> Self:
        """Fields of the candidate; they come with its last chunk."""
        self._fields |= fields
        return self

    def finish(self, reason: str | None, message: str | None = None) -> Self:
        """Ends with another reason, or with none."""
        self._end = {**_set(finishReason=reason, finishMessage=message)}
        return self

    def blocked(self, reason: str = "SAFETY") -> Self:
        """The prompt is blocked: there is no candidate."""
        self._feedback = {"blockReason": reason}
        return self

    def error(self, code: int = 503, status: str = "UNAVAILABLE", message: str = "scripted error") -> Self:
        """Ends with an error object."""
        self._error = {"error": {"code": code, "message": message, "status": status}}
        return self

    def response(self) -> Event:
        """The whole response object."""
        if self._error is not None:
            return self._error
        body: Event = {}
        if self._feedback is not None:
            body = {"promptFeedback": self._feedback}
        else:
            content = {"parts": [*self._whole], "role": "model"}
            body = {"candidates": [{"content": content, "index": 0, **self._fields, **self._end}]}
        return {**body, "usageMetadata": self._spent(), **self._head, "responseId": self._response_id()}

    def chunks(self) -> list[Event]:
        """The stream of the same response."""
        tail: Event = {**self._head, "responseId": self._response_id()}
        if self._feedback is not None:
            return [{"promptFeedback": self._feedback, "usageMetadata": self._spent(), **tail}]
        parts = list(itertools.chain.from_iterable(self._pieces))
        candidates: list[Event] = [{"content": {"parts": [part], "role": "model"}, "index": 0} for part in parts]
        if self._error is not None:
            return [*({"candidates": [candidate], **tail} for candidate in candidates), self._error]
        last: Event = candidates.pop() if candidates else {"content": {"role": "model"}, "index": 0}
        last = {**last, **self._fields, **self._end}
        return [
            *({"candidates": [candidate], **tail} for candidate in candidates),
            {"candidates": [last], "usageMetadata": self._spent(), **tail},
        ]

    def reply(self, **fields: Any) -> Reply:
        """The stream as a reply."""
        return sse(self.chunks(), **fields)

    def whole_reply(self, **fields: Any) -> Reply:
        """The whole response as a reply."""
        return json_reply(self.response(), **fields)

    def _add(self, pieces: list[Event], whole: list[Event]) -> Self:
        self._pieces.append(pieces)
        self._whole += whole
        return self

    def _response_id(self) -> str:
        return self._id or _digest(self._head, self._whole, self._fields, self._end)[:22]

    def _spent(self) -> Event:
        if self._usage is not None:
            return self._usage
        parts = list(itertools.chain.from_iterable(self._pieces))
        thoughts = sum(bool(as_object(part).get("thought")) for part in parts)
        usage: Event = {"promptTokenCount": 12, "candidatesTokenCount": len(parts) - thoughts}
        return {**usage, "thoughtsTokenCount": thoughts, "totalTokenCount": 12 + len(parts)}


class InteractionScript:
    """Composes one interaction, step by step. `chunks()` and `response()` are two forms of the same one."""

    def __init__(
        self,
        *,
        model: str = "gemini-3-flash-preview",
        interaction_id: str | None = None,
        usage: Event | None = None,
        stored: bool = True,
    ) -> None:
        self._head: Event = {"object": "interaction", "model": model}
        self._id = interaction_id
        self._usage = usage
        self._stored = stored
        self._steps: list[Event] = []
        self._events: list[list[Event]] = []
        self._end: Event = {"status": "completed"}
        self._error: Event | None = None

    def text(self, text: str | Sequence[str], *, annotations: Sequence[Event] = ()) -> Self:
        """Text of the model, word by word or in the pieces given."""
        pieces = _words(text)
        deltas: list[Event] = [{"type": "text", "text": piece} for piece in pieces]
        content: Event = {"type": "text", "text": "".join(pieces)}
        if annotations:
            deltas.append({"type": "text_annotation_delta", "annotations": [*annotations]})
            content["annotations"] = [*annotations]
        return self.step({"type": "model_output"}, *deltas, content=[content])

    def thought(self, text: str | Sequence[str] = (), *, signature: str | None = None) -> Self:
        """A thought: its summary, its signature, or both."""
        pieces = _words(text)
        summaries: list[Event] = [{"type": "text", "text": piece} for piece in pieces]
        deltas: list[Event] = [{"type": "thought_summary", "content": summary} for summary in summaries]
        if signature is not None:
            deltas.append({"type": "thought_signature", "signature": signature})
        whole = {"summary": [{"type": "text", "text": "".join(pieces)}]} if pieces else {}
        return self.step({"type": "thought"}, *deltas, **whole, **_set(signature=signature))

    def function_call(self, name: str, args: Json, *, call_id: str | None = None) -> Self:
        """A call of a client's function; its arguments come as JSON text in two halves."""
        text = args if isinstance(args, str) else dumps(args).decode()
        middle = len(text) // 2
        halves = [{"type": "arguments_delta", "arguments": half} for half in (text[:middle], text[middle:]) if half]
        identity = call_id or _digest(name, args)[:8]
        start: Event = {"type": "function_call", "id": identity, "name": name, "arguments": {}}
        self._end = {"status": "requires_action"}
        return self.step(start, *halves, arguments=args)

    def hosted(self, tool: str, arguments: Json, result: Json, *, call_id: str = "tool1", **fields: Json) -> Self:
        """A hosted tool's call and its result, e.g. `code_execution`; `fields` are those of the result."""
        call = f"{tool}_call"
        self.step({"type": call, "id": call_id}, {"type": call, "arguments": arguments}, arguments=arguments)
        answer = {"type": f"{tool}_result", "result": result, **fields}
        return self.step({"type": f"{tool}_result", "call_id": call_id}, answer, result=result, **fields)

    def file(self, data: bytes, mime_type: str = "image/png") -> Self:
        """A file that the model made."""
        kind = mime_type.partition("/")[0]
        content = {"type": kind, "mime_type": mime_type, "data": _base64(data)}
        return self.step({"type": "model_output"}, content, content=[content])

    def step(self, start: Event, *deltas: Event, **whole: Json) -> Self:
        """Any step: as it starts, its deltas, and the fields that it has at its end."""
        index = len(self._steps)
        self._events.append(
            [
                {"event_type": "step.start", "index": index, "step": start},
                *({"event_type": "step.delta", "index": index, "delta": delta} for delta in deltas),
                {"event_type": "step.stop", "index": index},
            ]
        )
        self._steps.append({**start, **whole})
        return self

    def finish(self, status: str, **fields: Json) -> Self:
        """Ends with another status."""
        self._end = {"status": status, **fields}
        return self

    def error(self, code: str = "internal", message: str = "scripted error") -> Self:
        """Ends the stream with an error event."""
        self._error = {"event_type": "error", "error": {"code": code, "message": message}}
        return self

    def response(self) -> Event:
        """The whole interaction."""
        return {**self._identity(), **self._end, "usage": self._spent(), "steps": [*self._steps]}

    def chunks(self, *, interleaved: bool = False) -> list[Event]:
        """The stream of the same interaction; `interleaved`: one event of each step in turn."""
        opening = {**self._identity(), "status": "in_progress"}
        rows = itertools.zip_longest(*self._events) if interleaved else self._events
        events: list[Event] = [
            {"event_type": "interaction.created", "interaction": opening},
            *filter(None, itertools.chain.from_iterable(rows)),
        ]
        if self._error is not None:
            events.append(self._error)
        else:
            whole = {**self._identity(), **self._end, "usage": self._spent()}
            events.append({"event_type": "interaction.completed", "interaction": whole})
        return [{**event, "event_id": f"event_{number}"} for number, event in enumerate(events)]

    def reply(self, **fields: Any) -> Reply:
        """The stream as a reply, with its sentinel."""
        return sse([*self.chunks(), "[DONE]"], **fields)

    def whole_reply(self, **fields: Any) -> Reply:
        """The whole interaction as a reply."""
        return json_reply(self.response(), **fields)

    def _identity(self) -> Event:
        if not self._stored:
            return self._head
        return {**self._head, "id": self._id or "v1_" + _digest(self._head, self._steps, self._end)[:40]}

    def _spent(self) -> Event:
        if self._usage is not None:
            return self._usage
        deltas = sum(len(events) - 2 for events in self._events)
        counts = {"total_input_tokens": 10, "total_output_tokens": deltas, "total_thought_tokens": 0}
        return {**counts, "total_cached_tokens": 0, "total_tool_use_tokens": 0, "total_tokens": 10 + deltas}


def _partial_args(path: str, value: Json) -> list[Event]:
    if isinstance(value, str):
        middle = len(value) // 2
        return [
            {"jsonPath": path, "stringValue": value[:middle], "willContinue": True},
            {"jsonPath": path, "stringValue": value[middle:], "willContinue": True},
            {"jsonPath": path, "stringValue": ""},
        ]
    if value is None:
        return [{"jsonPath": path, "nullValue": "NULL_VALUE"}]
    return [{"jsonPath": path, "boolValue" if isinstance(value, bool) else "numberValue": value}]


def _words(text: str | Sequence[str]) -> list[str]:
    return re.findall(r"\s*\S+|\s+", text) if isinstance(text, str) else [*text]


def _set(**fields: Json) -> Event:
    return {name: value for name, value in fields.items() if value is not None}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _digest(*values: Json) -> str:
    return hashlib.sha256(dumps(values)).hexdigest()
