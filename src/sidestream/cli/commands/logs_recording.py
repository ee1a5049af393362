"""A logged conversation as a recording: each step as an exchange of the Responses API, which `replay` decodes.

The log does not keep the providers' own bytes, so the events are made of the parts: the same text, calls, results and
sources, whichever provider sent them. Files that were downloaded are not part of it.
"""

from collections.abc import Iterator

from sidestream import jsontext
from sidestream.protocols.responses.events import ResponsesEncoder
from sidestream.protocols.responses.object import ResponseHead
from sidestream.replay.recording import EVENT_STREAM, Exchange, RecordedRequest, RecordedResponse, Recording
from sidestream.store.log.search import text_of
from sidestream.store.protocol import ConversationInfo
from sidestream.store.records import MessageAdded, Record, RunStarted, Segment
from sidestream.stream.parts import Finish, StepFinish, StepStart, StreamPart
from sidestream.text.redaction import redact


def to_recording(info: ConversationInfo, records: list[Record]) -> Recording:
    """The model calls of a conversation. Secrets are redacted."""
    prompt, model = "", info.model
    exchanges: list[Exchange] = []
    step: list[StreamPart] = []
    for record in records:
        match record.body:
            case MessageAdded():
                prompt = text_of(record.body.message)
            case RunStarted():
                model, step = record.body.model, []
            case Segment():
                for part in record.body.parts:
                    step = [] if isinstance(part, StepStart) else step
                    step.append(part)
                    if isinstance(part, StepFinish):
                        exchanges.append(_exchange(step, model.partition(":")[2], prompt, len(exchanges), record.time))
                        step = []
            case _:
                pass
    return Recording(tuple(exchanges), source=f"sidestream logs export {info.id}")


def _exchange(parts: list[StreamPart], model: str, prompt: str, number: int, time: float) -> Exchange:
    head = ResponseHead(id=f"resp_{number}", model=model, created=int(time))
    encoder = ResponsesEncoder(head, functions=None)
    events = encoder.begin()
    for part in _with_end(parts):
        events += encoder.feed(part)
    body = "".join(f"data: {redact(jsontext.dumps(event).decode())}\n\n" for event in events)
    request = {"model": model, "stream": True, "input": [{"role": "user", "content": redact(prompt)}]}
    return Exchange(RecordedResponse(200, EVENT_STREAM, body), RecordedRequest("POST", "/v1/responses", request))


def _with_end(parts: list[StreamPart]) -> Iterator[StreamPart]:
    """A step ends as a response does."""
    yield from parts
    last = parts[-1]
    assert isinstance(last, StepFinish)
    raw_reason = last.outcome.raw_reason if last.outcome is not None else None
    yield Finish(reason=last.reason, usage=last.usage, raw_reason=raw_reason)
