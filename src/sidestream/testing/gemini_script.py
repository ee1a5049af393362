"""Script builders for Google's two APIs, generateContent and Interactions.

FakeProvider([GeminiScript().thought("Hm.").text("Hello").reply()], base_path="")
"""

from collections.abc import Sequence
from typing import Self

from sidestream.jsontext import as_object
from sidestream.parts import Json
from sidestream.testing.replies import Event, ScriptBuilder, Text, base64_text, digest, json_text, present, words


class GeminiScript(ScriptBuilder):
    """A builder of one generateContent response.

    `chunks()` and `response()` are two forms of the same response. Text may be given as a list of its deltas.
    """

    path = "/v1beta/models/gemini:generateContent"

    def __init__(
        self, *, model: str = "gemini-3-flash-preview", response_id: str | None = None, usage: Event | None = None
    ) -> None:
        super().__init__({"modelVersion": model}, response_id, usage)
        self._fields: Event = {}
        self._end: Event = {"finishReason": "STOP"}
        self._feedback: Event | None = None

    def text(self, text: Text, *, signature: str | None = None, **fields: Json) -> Self:
        """Add text. A signature is sent in an empty part at its end."""
        parts = [{"text": word, **fields} for word in words(text)]
        if signature is None:
            return self._add(parts, [{"text": "".join(text), **fields}])
        signed = {"text": "", "thoughtSignature": signature, **fields}
        return self._add([*parts, signed], [{**signed, "text": "".join(text)}])

    def thought(self, text: Text, *, signature: str | None = None) -> Self:
        """Add a thought summary."""
        return self.text(text, signature=signature, thought=True)

    def function_call(
        self, name: str, args: Json = None, *, call_id: str | None = None, signature: str | None = None
    ) -> Self:
        """Add a client tool call in one part. Without `args`, the field is omitted."""
        return self._signed({"functionCall": {"name": name, **present(args=args, id=call_id)}}, signature)

    def streamed_call(self, name: str, *pieces: tuple[str, Json], signature: str | None = None) -> Self:
        """Add a call with streamed arguments, each a JSON path and a value. Strings are sent in two halves."""
        parts: list[Event] = [
            {"functionCall": {"name": name, "willContinue": True}, **present(thoughtSignature=signature)}
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
        """Add a run of code, and its result if there is an output."""
        self._signed({"executableCode": {"language": "PYTHON", "code": code, **present(id=call_id)}}, signature)
        if output is None:
            return self
        return self.part({"codeExecutionResult": {"outcome": outcome, "output": output, **present(id=call_id)}})

    def tool_call(self, tool_type: str, args: Json = None, *, call_id: str, signature: str | None = None) -> Self:
        """Add a hosted tool's call."""
        return self._signed({"toolCall": {"toolType": tool_type, "id": call_id, **present(args=args)}}, signature)

    def tool_response(
        self, tool_type: str, response: Json = None, *, call_id: str, signature: str | None = None
    ) -> Self:
        """Add a hosted tool's result."""
        result = {"toolType": tool_type, "id": call_id, **present(response=response)}
        return self._signed({"toolResponse": result}, signature)

    def inline_data(self, data: bytes, mime_type: str = "image/png", **fields: Json) -> Self:
        """Add a file. `fields` are set in its part."""
        return self.part({"inlineData": {"mimeType": mime_type, "data": base64_text(data)}, **fields})

    def part(self, part: Json) -> Self:
        """Add any other part, valid or not."""
        return self._add([part], [part])

    def grounding(
        self, *chunks: Event, supports: Sequence[tuple[int, int, str | None, Sequence[int]]] = (), **fields: Json
    ) -> Self:
        """Add grounding metadata. A support is its start and end byte, its text and the indices of its chunks."""
        segments = [
            {
                "segment": {**({"startIndex": start} if start else {}), "endIndex": end, **present(text=text)},
                "groundingChunkIndices": [*indices],
            }
            for start, end, text, indices in supports
        ]
        metadata = {"groundingChunks": [*chunks], **({"groundingSupports": segments} if segments else {}), **fields}
        return self.candidate(groundingMetadata=metadata)

    def url_context(self, *urls: str, status: str = "URL_RETRIEVAL_STATUS_SUCCESS") -> Self:
        """Add metadata on fetched pages."""
        pages = [{"retrievedUrl": url, "urlRetrievalStatus": status} for url in urls]
        return self.candidate(urlContextMetadata={"urlMetadata": pages})

    def candidate(self, **fields: Json) -> Self:
        """Set fields of the candidate, sent with its last chunk."""
        self._fields |= fields
        return self

    def finish(self, reason: str | None, message: str | None = None) -> Self:
        """Set the finish reason, or remove it."""
        self._end = {**present(finishReason=reason, finishMessage=message)}
        return self

    def blocked(self, reason: str = "SAFETY") -> Self:
        """Block the prompt, so that the response has no candidate."""
        self._feedback = {"blockReason": reason}
        return self

    def error(self, code: int = 503, status: str = "UNAVAILABLE", message: str = "scripted error") -> Self:
        """End with an error object."""
        self._error = {"error": {"code": code, "message": message, "status": status}}
        return self

    def response(self) -> Event:
        """Return the non-streaming response, or the error."""
        if self._error is not None:
            return self._error
        if self._feedback is not None:
            body: Event = {"promptFeedback": self._feedback}
        else:
            content = {"parts": [*self._whole], "role": "model"}
            body = {"candidates": [{"content": content, "index": 0, **self._fields, **self._end}]}
        return {**body, "usageMetadata": self._spent(), **self._tail()}

    def chunks(self) -> list[Event]:
        """Return the stream of the same response."""
        tail = self._tail()
        if self._feedback is not None:
            return [{"promptFeedback": self._feedback, "usageMetadata": self._spent(), **tail}]
        contents = [{"parts": [part], "role": "model"} for part in self._all_events()]
        candidates: list[Event] = [{"content": content, "index": 0} for content in contents]
        if self._error is not None:
            return [*({"candidates": [candidate], **tail} for candidate in candidates), self._error]
        last: Event = candidates.pop() if candidates else {"content": {"role": "model"}, "index": 0}
        last = {**last, **self._fields, **self._end}
        return [
            *({"candidates": [candidate], **tail} for candidate in candidates),
            {"candidates": [last], "usageMetadata": self._spent(), **tail},
        ]

    def _stream(self) -> list[Event]:
        return self.chunks()

    def _signed(self, part: Event, signature: str | None) -> Self:
        return self.part({**part, **present(thoughtSignature=signature)})

    def _add(self, parts: list[Event], whole: list[Event]) -> Self:
        self._streamed.append(parts)
        self._whole += whole
        return self

    def _tail(self) -> Event:
        return {**self._head, "responseId": self._identity("", 22, self._whole, self._fields, self._end)}

    def _spent(self) -> Event:
        if self._usage is not None:
            return {**self._usage}
        parts = self._all_events()
        thoughts = sum(bool(as_object(part).get("thought")) for part in parts)
        usage: Event = {"promptTokenCount": 12, "candidatesTokenCount": len(parts) - thoughts}
        return {**usage, "thoughtsTokenCount": thoughts, "totalTokenCount": 12 + len(parts)}


class InteractionScript(ScriptBuilder):
    """A builder of one interaction, step by step.

    `chunks()` and `response()` are two forms of the same interaction. Text may be given as a list of its deltas.
    """

    path = "/v1beta/interactions"
    _sentinel = ("[DONE]",)

    def __init__(
        self,
        *,
        model: str = "gemini-3-flash-preview",
        interaction_id: str | None = None,
        usage: Event | None = None,
        stored: bool = True,
    ) -> None:
        super().__init__({"object": "interaction", "model": model}, interaction_id, usage)
        self._stored = stored
        self._end: Event = {"status": "completed"}

    def text(self, text: Text, *, annotations: Sequence[Event] = ()) -> Self:
        """Add text, with annotations after its last delta."""
        deltas: list[Event] = [{"type": "text", "text": word} for word in words(text)]
        content: Event = {"type": "text", "text": "".join(text)}
        if annotations:
            deltas.append({"type": "text_annotation_delta", "annotations": [*annotations]})
            content["annotations"] = [*annotations]
        return self.step({"type": "model_output"}, *deltas, content=[content])

    def thought(self, text: Text = (), *, signature: str | None = None) -> Self:
        """Add a thought's summary, its signature, or both."""
        summaries: list[Event] = [{"type": "text", "text": word} for word in words(text)]
        deltas: list[Event] = [{"type": "thought_summary", "content": summary} for summary in summaries]
        if signature is not None:
            deltas.append({"type": "thought_signature", "signature": signature})
        whole = {"summary": [{"type": "text", "text": "".join(text)}]} if summaries else {}
        return self.step({"type": "thought"}, *deltas, **whole, **present(signature=signature))

    def function_call(self, name: str, args: Json, *, call_id: str | None = None) -> Self:
        """Add a client tool call, with its arguments as JSON in two halves."""
        text = json_text(args)
        middle = len(text) // 2
        halves = [{"type": "arguments_delta", "arguments": half} for half in (text[:middle], text[middle:]) if half]
        identity = call_id or digest(8, name, args)
        start: Event = {"type": "function_call", "id": identity, "name": name, "arguments": {}}
        self._end = {"status": "requires_action"}
        return self.step(start, *halves, arguments=args)

    def hosted(self, tool: str, arguments: Json, result: Json, *, call_id: str = "tool1", **fields: Json) -> Self:
        """Add a hosted tool's call and result, e.g. of `code_execution`. `fields` are those of the result."""
        call = f"{tool}_call"
        self.step({"type": call, "id": call_id}, {"type": call, "arguments": arguments}, arguments=arguments)
        whole = {"type": f"{tool}_result", "result": result, **fields}
        return self.step({"type": f"{tool}_result", "call_id": call_id}, whole, result=result, **fields)

    def file(self, data: bytes, mime_type: str = "image/png") -> Self:
        """Add a generated file."""
        kind = mime_type.partition("/")[0]
        content = {"type": kind, "mime_type": mime_type, "data": base64_text(data)}
        return self.step({"type": "model_output"}, content, content=[content])

    def step(self, start: Event, *deltas: Event, **whole: Json) -> Self:
        """Add any step, with its initial fields, its deltas and the fields of the finished step."""
        index = len(self._whole)
        return self._add_item(
            {**start, **whole},
            {"event_type": "step.start", "index": index, "step": start},
            *({"event_type": "step.delta", "index": index, "delta": delta} for delta in deltas),
            {"event_type": "step.stop", "index": index},
        )

    def finish(self, status: str, **fields: Json) -> Self:
        """Set the final status."""
        self._end = {"status": status, **fields}
        return self

    def error(self, code: str = "internal", message: str = "scripted error") -> Self:
        """End the stream with an error event."""
        self._error = {"event_type": "error", "error": {"code": code, "message": message}}
        return self

    def response(self) -> Event:
        """Return the non-streaming interaction, or the error."""
        if self._error is not None:
            return {"error": self._error["error"]}
        return {**self._opening(), **self._end, "usage": self._spent(), "steps": [*self._whole]}

    def chunks(self, *, interleaved: bool = False) -> list[Event]:
        """Return the stream of the same interaction. `interleaved` alternates the events of all steps."""
        opening = {**self._opening(), "status": "in_progress"}
        events: list[Event] = [
            {"event_type": "interaction.created", "interaction": opening},
            *self._all_events(interleaved=interleaved),
        ]
        if self._error is not None:
            events.append(self._error)
        else:
            whole = {**self._opening(), **self._end, "usage": self._spent()}
            events.append({"event_type": "interaction.completed", "interaction": whole})
        return [{**event, "event_id": f"event_{number}"} for number, event in enumerate(events)]

    def _stream(self) -> list[Event]:
        return self.chunks()

    def _opening(self) -> Event:
        if not self._stored:
            return self._head
        return {**self._head, "id": self._identity("v1_", 40, self._whole, self._end)}

    def _spent(self) -> Event:
        if self._usage is not None:
            return {**self._usage}
        deltas = sum(len(events) - 2 for events in self._streamed)
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
