"""Streams that no provider sends: thousands of one thing, made to let a reader do the same work again and again.

Each builder gives the events of one answer with `n` of its thing. `read` takes them the way that a run does: decoder,
turn, log, chunks, result and citations.
"""

import base64
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from sidestream.messages.fold import MessageMetadata
from sidestream.parts import StreamPart
from sidestream.providers.anthropic.context import MessagesContext
from sidestream.providers.anthropic.decode.decoder import MessagesDecoder
from sidestream.providers.google.context import GoogleContext
from sidestream.providers.google.decode.decoder import GenerateContentDecoder
from sidestream.providers.google.interactions.decode import InteractionsDecoder
from sidestream.providers.google.interactions.options import InteractionContext
from sidestream.providers.openai.chat.decode.decoder import CompletionsDecoder
from sidestream.providers.openai.chat.options import CompletionsContext
from sidestream.providers.openai.responses.decode.decoder import ResponsesDecoder
from sidestream.providers.openai.responses.options import ResponsesContext
from sidestream.providers.protocol import Decoder
from sidestream.results.chunks import ChunkFold
from sidestream.results.citations import Citations, citations_of
from sidestream.results.results import ChatResult, ResultFold
from sidestream.store.log.segments import SegmentFold
from sidestream.turn.machine import Fetch, Turn

Event = dict[str, Any]

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(8)).decode()


class Hostile(NamedTuple):
    decoder: Callable[[], Decoder]
    events: Callable[[int], Iterable[Event]]
    is_counted: bool = True
    """True: each thing counts towards the limit. False: it only makes one thing longer."""


def wire(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


def calls_in(work: Callable[[], object]) -> int:
    """How many functions are called, Python's own included."""
    count = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def read(
    decoder: Decoder, events: Iterable[bytes], message_metadata: MessageMetadata = "full"
) -> tuple[list[StreamPart], ChatResult[str]]:
    """The parts and the result of a run whose only answer is this stream."""
    turn = Turn([], answers_calls=False, message_metadata=message_metadata)
    parts = [*turn.sending((), ()), *turn.opened()]
    for event in events:
        parts += turn.received(decoder.feed(event), decoder.downloads if parts[-1].type == "finish" else ())
        if not turn.is_receiving:
            break
    else:
        parts += turn.received(decoder.close())
    if isinstance(turn.command, Fetch):
        parts += turn.all_fetched()
    segments, chunks, result, citations = SegmentFold(), ChunkFold(), ResultFold(), Citations()
    segments.feed(parts)
    segments.end()
    for part in parts:
        for chunk in chunks.feed(part):
            citations.feed(chunk)
            result.feed_all([chunk])
    whole = result.result()
    citations.cited()
    citations_of(whole).cited()
    return parts, whole


# Responses


def _responses(events: Iterable[Event], **fields: Any) -> Iterator[Event]:
    yield {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
    yield from events
    yield {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", **fields}}


def _item(number: int, item: Event, index: int | None = None, *, added: bool = True) -> list[Event]:
    place = number if index is None else index
    events = [{"type": f"response.output_item.{stage}", "output_index": place, "item": item} for stage in _STAGES]
    return events if added else events[1:]


_STAGES = ("added", "done")


def _of_message(kind: str, **fields: Any) -> Event:
    return {"type": f"response.{kind}", "output_index": 0, "item_id": "msg_1", "content_index": 0, **fields}


def message_items_with_one_id(n: int) -> Iterator[Event]:
    text = {"type": "output_text", "text": "a", "annotations": []}
    item = {"type": "message", "id": "msg_1", "content": [text]}
    return _responses(e for number in range(n) for e in _item(number, item))


def calls_with_one_id(n: int) -> Iterator[Event]:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"}
    return _responses(e for number in range(n) for e in _item(number, item))


def searches_with_one_id(n: int) -> Iterator[Event]:
    sources = [{"type": "url", "url": "https://example.com"}]
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"sources": sources}}
    return _responses(e for number in range(n) for e in _item(number, item))


def searches_with_ids_of_their_own(n: int) -> Iterator[Event]:
    return _responses(
        e for k in range(n) for e in _item(k, {"type": "web_search_call", "id": f"ws_{k}", "status": "completed"})
    )


def shell_outputs(n: int) -> Iterator[Event]:
    for number in range(n):
        call = {"type": "shell_call", "id": f"sh_{number}", "call_id": f"call_{number}", "action": {"commands": ["a"]}}
        yield from _item(2 * number, call, added=False)
    for number in range(n):
        output = {"type": "shell_call_output", "id": f"sho_{number}", "output": []}
        yield from _item(2 * number + 1, output, added=False)
    yield from _responses(())


def approvals(n: int) -> Iterator[Event]:
    return _responses(
        e
        for k in range(n)
        for e in _item(
            k,
            {"type": "mcp_approval_request", "id": f"mcpr_{k}", "name": "ask", "arguments": "{}", "server_label": "w"},
        )
    )


def content_parts_of_one_item(n: int) -> Iterator[Event]:
    return _responses(_of_message("output_text.delta", content_index=k, delta="a") for k in range(n))


def open_items(n: int) -> Iterator[Event]:
    return _responses(
        {"type": "response.output_text.delta", "output_index": k, "item_id": f"msg_{k}", "delta": "a"} for k in range(n)
    )


def summaries(n: int) -> Iterator[Event]:
    where = {"output_index": 0, "item_id": "rs_1"}
    for k in range(n):
        place = {**where, "summary_index": k}
        text = {"type": "summary_text", "text": "a"}
        yield {"type": "response.reasoning_summary_part.added", **place, "part": text}
        yield {"type": "response.reasoning_summary_text.delta", **place, "delta": "a"}
        yield {"type": "response.reasoning_summary_part.done", **place, "part": text}
    yield from _responses(())


def annotations_of_one_text(n: int) -> Iterator[Event]:
    cited = [
        {"type": "url_citation", "url": f"https://a.example/{k}", "start_index": 0, "end_index": k} for k in range(n)
    ]
    yield _of_message("output_text.delta", delta="a" * n)
    yield from (_of_message("output_text.annotation.added", annotation=citation) for citation in cited)
    yield from _responses(())


def annotations_of_one_source(n: int) -> Iterator[Event]:
    yield _of_message("output_text.delta", delta="a")
    for k in range(n):
        cited = {
            "type": "url_citation",
            "url": "https://a.example",
            "title": f"{k}",
            "start_index": 0,
            "end_index": n + k,
        }
        yield _of_message("output_text.annotation.added", annotation=cited)
    yield from _responses(())


def annotations_in_the_last_event(n: int) -> Iterator[Event]:
    cited = [
        {"type": "url_citation", "url": f"https://a.example/{k}", "start_index": 0, "end_index": 1} for k in range(n)
    ]
    text = {"type": "output_text", "text": "a", "annotations": cited}
    return _responses((), output=[{"type": "message", "id": "msg_1", "content": [text]}])


def container_files(n: int) -> Iterator[Event]:
    for k in range(n):
        code = {"type": "code_interpreter_call", "id": f"ci_{k}", "container_id": "cntr_1", "code": "a"}
        yield from _item(k + 1, code)
    for k in range(n):
        cited = {"type": "container_file_citation", "container_id": "cntr_1", "file_id": "cfile_1", "start_index": k}
        yield _of_message("output_text.annotation.added", annotation=cited)
    yield from _responses(())


def code_outputs(n: int) -> Iterator[Event]:
    image = {"type": "image", "url": f"data:image/png;base64,{PNG}"}
    code = {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "container_id": "cntr_1",
        "code": "a",
        "outputs": [image] * n,
    }
    return _responses(_item(0, code))


def images(n: int) -> Iterator[Event]:
    def image(k: int) -> str:
        return base64.b64encode(b"\x89PNG\r\n\x1a\n" + k.to_bytes(8, "big")).decode()

    return _responses(
        e
        for k in range(n)
        for e in _item(k, {"type": "image_generation_call", "id": f"ig_{k}", "status": "completed", "result": image(k)})
    )


def unseen_items(n: int) -> Iterator[Event]:
    """Streamed under other ids and places than the final response has."""
    done = [e for k in range(n) for e in _item(k, {"type": "message", "id": f"a_{k}", "content": []})]
    reasoning = [{"type": "reasoning", "id": f"r_{k}", "summary": []} for k in range(n)]
    final = [*reasoning, *({"type": "message", "id": f"b_{k}", "content": []} for k in range(n))]
    return _responses(done, output=final)


def shell_command(n: int) -> Iterator[Event]:
    item = {"type": "shell_call", "id": "sh_1", "call_id": "call_1"}
    yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "action": {"commands": []}}}
    for _ in range(n):
        yield {"type": "response.shell_call_command.delta", "output_index": 0, "command_index": 0, "delta": "a" * 64}
    yield from _responses(_item(0, {**item, "action": {"commands": ["a" * 64 * n]}}, added=False))


def code_deltas(n: int) -> Iterator[Event]:
    item = {"type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_1"}
    delta = {
        "type": "response.code_interpreter_call_code.delta",
        "output_index": 0,
        "item_id": "ci_1",
        "delta": "a" * 64,
    }
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield from itertools.repeat(delta, n)
    yield from _responses(_item(0, {**item, "code": "a" * 64 * n}, added=False))


def reasoning_deltas(n: int) -> Iterator[Event]:
    delta = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "item_id": "rs_1", "summary_index": 0}
    return _responses(itertools.repeat({**delta, "delta": "a" * 64}, n))


def repeated_final_texts(n: int) -> Iterator[Event]:
    yield _of_message("output_text.delta", delta="a" * 16 * n)
    part = {"type": "output_text", "text": "", "annotations": []}
    yield from itertools.repeat(_of_message("content_part.done", part=part), n)
    yield from _responses(())


# Anthropic


def _messages(events: Iterable[Event]) -> Iterator[Event]:
    yield {"type": "message_start", "message": {"id": "msg_1", "content": []}}
    yield from events
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    yield {"type": "message_stop"}


def _block(index: int, block: Event, *deltas: Event, stop: bool = True) -> Iterator[Event]:
    yield {"type": "content_block_start", "index": index, "content_block": block}
    yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
    if stop:
        yield {"type": "content_block_stop", "index": index}


def blocks_with_one_index(n: int) -> Iterator[Event]:
    kinds = ({"type": "text", "text": "a"}, {"type": "thinking", "thinking": "a"})
    return _messages(e for k in range(n) for e in _block(0, kinds[k % 2]))


def open_blocks(n: int) -> Iterator[Event]:
    return _messages(e for k in range(n) for e in _block(k, {"type": "text", "text": "a"}, stop=False))


def uses_with_one_id(n: int) -> Iterator[Event]:
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    return _messages(e for k in range(n) for e in _block(k, use))


def results_with_one_id(n: int) -> Iterator[Event]:
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    return _messages(e for k in range(n) for e in (*_block(2 * k, use), *_block(2 * k + 1, found)))


def links_of_one_search(n: int) -> Iterator[Event]:
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    links = [{"type": "web_search_result", "url": f"https://a.example/{k}", "title": "a"} for k in range(n)]
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": links}
    return _messages((*_block(0, use), *_block(1, found)))


def files_of_one_run(n: int) -> Iterator[Event]:
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {}}
    outputs = [
        {"type": "code_execution_output", "source": {"type": "base64", "data": base64.b64encode(b"%9d" % k).decode()}}
        for k in range(n)
    ]
    content = {"type": "code_execution_result", "content": outputs}
    found = {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": content}
    return _messages((*_block(0, use), *_block(1, found)))


def citations_of_one_block(n: int) -> Iterator[Event]:
    where = "web_search_result_location"
    deltas = (
        {"type": "citations_delta", "citation": {"type": where, "url": f"https://a.example/{k}", "cited_text": "a"}}
        for k in range(n)
    )
    return _messages(_block(0, {"type": "text", "text": "a"}, *deltas))


def passages_of_one_page(n: int) -> Iterator[Event]:
    where = "web_search_result_location"
    deltas = (
        {"type": "citations_delta", "citation": {"type": where, "url": "https://a.example", "cited_text": f"{k}"}}
        for k in range(n)
    )
    return _messages(_block(0, {"type": "text", "text": "a"}, *deltas))


def signature_deltas(n: int) -> Iterator[Event]:
    deltas = itertools.repeat({"type": "signature_delta", "signature": "a" * 64}, n)
    return _messages(_block(0, {"type": "thinking", "thinking": "a"}, *deltas))


def compaction_deltas(n: int) -> Iterator[Event]:
    deltas = itertools.repeat({"type": "compaction_delta", "content": "a" * 64}, n)
    return _messages(_block(0, {"type": "compaction"}, *deltas))


def input_after_code(n: int) -> Iterator[Event]:
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {}}
    pieces = ['{"code":"a","more":"', *itertools.repeat("a" * 64, n), '"}']
    return _messages(_block(0, use, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces)))


# generateContent


def _chunk(*parts: Event, **candidate: Any) -> Event:
    return {"responseId": "r", "candidates": [{"content": {"parts": list(parts)}, **candidate}]}


_STOP: Event = {"candidates": [{"finishReason": "STOP"}]}


def texts_and_thoughts(n: int) -> Iterator[Event]:
    yield from (_chunk({"text": "a", **({"thought": True} if k % 2 else {})}) for k in range(n))
    yield _STOP


def parts_of_one_chunk(n: int) -> Iterator[Event]:
    yield _chunk(*({"text": "a", **({"thought": True} if k % 2 else {})} for k in range(n)))
    yield _STOP


def code_without_ids(n: int) -> Iterator[Event]:
    yield from itertools.repeat(_chunk({"executableCode": {"code": "a"}}), n)
    yield from itertools.repeat(_chunk({"codeExecutionResult": {"output": "a"}}), n)
    yield _STOP


def files_after_code(n: int) -> Iterator[Event]:
    yield from itertools.repeat(_chunk({"executableCode": {"code": "a"}}), n)
    yield from itertools.repeat(_chunk({"inlineData": {"mimeType": "image/png", "data": PNG}}), n)
    yield _STOP


def function_calls_with_one_id(n: int) -> Iterator[Event]:
    yield from itertools.repeat(_chunk({"functionCall": {"id": "c", "name": "f", "args": {}}}), n)
    yield _STOP


def open_function_calls(n: int) -> Iterator[Event]:
    for k in range(n):
        yield _chunk({"functionCall": {"id": f"c_{k}", "name": "f", "willContinue": True}})
    for k in range(n):
        yield _chunk({"functionCall": {"id": f"c_{k}"}})
    yield _STOP


def supports_of_one_text(n: int) -> Iterator[Event]:
    yield _chunk({"text": "é" * n})
    supports = [{"segment": {"startIndex": k, "endIndex": n + k}, "groundingChunkIndices": [k]} for k in range(n)]
    chunks = [{"web": {"uri": f"https://a.example/{k}"}} for k in range(n)]
    yield _chunk(groundingMetadata={"groundingChunks": chunks, "groundingSupports": supports})
    yield _STOP


def supports_of_many_texts(n: int) -> Iterator[Event]:
    yield from texts_and_thoughts(n)
    supports = [
        {"segment": {"startIndex": k, "endIndex": k + 1, "text": "b"}, "groundingChunkIndices": [0]} for k in range(n)
    ]
    chunks = [{"web": {"uri": "https://a.example"}}]
    yield _chunk(groundingMetadata={"groundingChunks": chunks, "groundingSupports": supports})


def growing_groundings(n: int) -> Iterator[Event]:
    """A grounding with every piece of text, each with chunks of its own."""
    for k in range(n):
        chunks = [{"web": {"uri": f"https://a.example/{k}"}}]
        supports = [{"segment": {"startIndex": k, "endIndex": k + 1}, "groundingChunkIndices": [0]}]
        queries = [f"q{k}"]
        grounding = {"groundingChunks": chunks, "groundingSupports": supports, "webSearchQueries": queries}
        yield _chunk({"text": "é"}, groundingMetadata=grounding)
    yield _STOP


def argument_pieces(n: int) -> Iterator[Event]:
    piece = {"jsonPath": "$.a", "stringValue": "a" * 64, "willContinue": True}
    for _ in range(n):
        yield _chunk({"functionCall": {"id": "c", "name": "f", "partialArgs": [piece], "willContinue": True}})
    yield _STOP


def drafts(n: int) -> Iterator[Event]:
    yield from itertools.repeat(_chunk({"text": "a" * 64}), n)
    yield _STOP


# Interactions


def _interaction(events: Iterable[Event]) -> Iterator[Event]:
    yield {"event_type": "interaction.created", "interaction": {"id": "i", "status": "in_progress"}}
    yield from events
    yield {"event_type": "interaction.completed", "interaction": {"id": "i", "status": "completed"}}


def _step(index: int, step: Event, *deltas: Event, stop: bool = True) -> Iterator[Event]:
    yield {"event_type": "step.start", "index": index, "step": step}
    yield from ({"event_type": "step.delta", "index": index, "delta": delta} for delta in deltas)
    if stop:
        yield {"event_type": "step.stop", "index": index}


def steps_with_one_id(n: int) -> Iterator[Event]:
    return _interaction(e for k in range(n) for e in _step(k, {"type": "function_call", "id": "c", "name": "f"}))


def open_steps(n: int) -> Iterator[Event]:
    text = {"type": "text", "text": "a"}
    return _interaction(e for k in range(n) for e in _step(k, {"type": "model_output"}, text, stop=False))


def results_without_ids(n: int) -> Iterator[Event]:
    calls = (e for k in range(n) for e in _step(k, {"type": "google_search_call", "id": f"c{k}"}))
    results = (e for k in range(n) for e in _step(n + k, {"type": "google_search_result", "result": []}))
    return _interaction((*calls, *results))


def annotations_of_one_step(n: int) -> Iterator[Event]:
    def cited(k: int) -> Event:
        place = {"start_index": k, "end_index": n + k}
        return {
            "type": "text_annotation_delta",
            "annotations": [{"type": "url_citation", "url": f"https://a.example/{k}", **place}],
        }

    return _interaction(_step(0, {"type": "model_output"}, {"type": "text", "text": "é" * n}, *map(cited, range(n))))


def annotations_between_texts(n: int) -> Iterator[Event]:
    def cited(k: int) -> tuple[Event, Event]:
        annotation = {"type": "url_citation", "url": f"https://a.example/{k}", "start_index": k, "end_index": k + 1}
        return {"type": "text", "text": "é"}, {"type": "text_annotation_delta", "annotations": [annotation]}

    return _interaction(_step(0, {"type": "model_output"}, *(e for k in range(n) for e in cited(k))))


def result_deltas(n: int) -> Iterator[Event]:
    delta = {"type": "google_search_result", "result": [{"url": "https://a.example"}]}
    step = {"type": "google_search_result", "call_id": "c"}
    return _interaction((*_step(0, {"type": "google_search_call", "id": "c"}), *_step(1, step, *[delta] * n)))


def interaction_drafts(n: int) -> Iterator[Event]:
    return _interaction(_step(0, {"type": "model_output"}, *[{"type": "text", "text": "a" * 64}] * n))


def media_of_one_step(n: int) -> Iterator[Event]:
    image = {"type": "image", "mime_type": "image/png", "data": PNG}
    return _interaction(_step(0, {"type": "model_output"}, *[image] * n))


# Chat completions


def _delta(**delta: Any) -> Event:
    return {"id": "c", "choices": [{"index": 0, "delta": delta}]}


_DONE: Event = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def chat_calls_with_one_id(n: int) -> Iterator[Event]:
    for k in range(n):
        yield _delta(tool_calls=[{"index": k, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}])
    yield _DONE


def chat_calls_without_index(n: int) -> Iterator[Event]:
    for k in range(n):
        yield _delta(tool_calls=[{"id": f"call_{k}", "function": {"name": "f", "arguments": "{}"}}])
    yield _DONE


def chat_calls_with_one_index(n: int) -> Iterator[Event]:
    for k in range(n):
        yield _delta(tool_calls=[{"index": 0, "id": f"call_{k}", "function": {"name": "f", "arguments": "{}"}}])
    yield _DONE


def chat_annotations(n: int) -> Iterator[Event]:
    yield _delta(content="a" * n)
    for k in range(n):
        citation = {"url": f"https://a.example/{k}", "start_index": 0, "end_index": k}
        yield _delta(annotations=[{"type": "url_citation", "url_citation": citation}])
    yield _DONE


def chat_thoughts_and_texts(n: int) -> Iterator[Event]:
    yield from (_delta(**({"content": "a"} if k % 2 else {"reasoning": "a"})) for k in range(2 * n))
    yield _DONE


def chat_names(n: int) -> Iterator[Event]:
    yield from (_delta(tool_calls=[{"index": 0, "function": {"name": f"{k:64}"}}]) for k in range(n))
    yield _DONE


def _openai() -> Decoder:
    return ResponsesDecoder(ResponsesContext())


def _unstored() -> Decoder:
    return ResponsesDecoder(ResponsesContext(store=False))


def _anthropic() -> Decoder:
    return MessagesDecoder(MessagesContext())


def _google() -> Decoder:
    return GenerateContentDecoder(GoogleContext())


def _drafting() -> Decoder:
    return GenerateContentDecoder(GoogleContext(drafts=True))


def _interactions() -> Decoder:
    return InteractionsDecoder(InteractionContext())


def _drafting_interactions() -> Decoder:
    return InteractionsDecoder(InteractionContext(drafts=True))


def _chat() -> Decoder:
    return CompletionsDecoder(CompletionsContext(provider="chat"))


HOSTILE = {
    "responses: message items with one id": Hostile(_openai, message_items_with_one_id),
    "responses: calls with one id": Hostile(_openai, calls_with_one_id),
    "responses: searches with one id": Hostile(_openai, searches_with_one_id),
    "responses: searches": Hostile(_openai, searches_with_ids_of_their_own),
    "responses: shell outputs without a call id": Hostile(_openai, shell_outputs),
    "responses: approval requests": Hostile(_openai, approvals),
    "responses: content parts of one item": Hostile(_openai, content_parts_of_one_item),
    "responses: open items": Hostile(_openai, open_items),
    "responses: summaries": Hostile(_openai, summaries),
    "responses: summaries, not stored": Hostile(_unstored, summaries),
    "responses: annotations of one text": Hostile(_openai, annotations_of_one_text),
    "responses: annotations of one source": Hostile(_openai, annotations_of_one_source),
    "responses: annotations in the last event": Hostile(_openai, annotations_in_the_last_event),
    "responses: citations of a container's file": Hostile(_openai, container_files),
    "responses: outputs of one code run": Hostile(_openai, code_outputs),
    "responses: images": Hostile(_openai, images),
    "responses: items under other ids in the end": Hostile(_openai, unseen_items),
    "responses: deltas of a shell command": Hostile(_openai, shell_command, False),
    "responses: deltas of code": Hostile(_openai, code_deltas, False),
    "responses: deltas of reasoning": Hostile(_openai, reasoning_deltas, False),
    "responses: final texts of one part": Hostile(_openai, repeated_final_texts, False),
    "anthropic: blocks with one index": Hostile(_anthropic, blocks_with_one_index),
    "anthropic: open blocks": Hostile(_anthropic, open_blocks),
    "anthropic: calls with one id": Hostile(_anthropic, uses_with_one_id),
    "anthropic: results with one id": Hostile(_anthropic, results_with_one_id),
    "anthropic: links of one search": Hostile(_anthropic, links_of_one_search),
    "anthropic: files of one code run": Hostile(_anthropic, files_of_one_run),
    "anthropic: citations of one block": Hostile(_anthropic, citations_of_one_block),
    "anthropic: passages of one page": Hostile(_anthropic, passages_of_one_page),
    "anthropic: deltas of a signature": Hostile(_anthropic, signature_deltas, False),
    "anthropic: deltas of a compaction": Hostile(_anthropic, compaction_deltas, False),
    "anthropic: input after code": Hostile(_anthropic, input_after_code, False),
    "google: texts and thoughts": Hostile(_google, texts_and_thoughts),
    "google: parts of one chunk": Hostile(_google, parts_of_one_chunk),
    "google: code runs without ids": Hostile(_google, code_without_ids),
    "google: files after code": Hostile(_google, files_after_code),
    "google: calls with one id": Hostile(_google, function_calls_with_one_id),
    "google: open calls": Hostile(_google, open_function_calls),
    "google: supports of one text": Hostile(_google, supports_of_one_text),
    "google: supports of many texts": Hostile(_google, supports_of_many_texts),
    "google: a grounding with every chunk": Hostile(_google, growing_groundings),
    "google: pieces of an argument": Hostile(_google, argument_pieces, False),
    "google: drafts": Hostile(_drafting, drafts, False),
    "interactions: calls with one id": Hostile(_interactions, steps_with_one_id),
    "interactions: open steps": Hostile(_interactions, open_steps),
    "interactions: results without ids": Hostile(_interactions, results_without_ids),
    "interactions: annotations of one step": Hostile(_interactions, annotations_of_one_step),
    "interactions: annotations between texts": Hostile(_interactions, annotations_between_texts),
    "interactions: deltas of a result": Hostile(_interactions, result_deltas, False),
    "interactions: drafts": Hostile(_drafting_interactions, interaction_drafts, False),
    "interactions: media of one step": Hostile(_interactions, media_of_one_step),
    "chat: calls with one id": Hostile(_chat, chat_calls_with_one_id),
    "chat: calls without an index": Hostile(_chat, chat_calls_without_index),
    "chat: calls with one index": Hostile(_chat, chat_calls_with_one_index),
    "chat: annotations": Hostile(_chat, chat_annotations),
    "chat: thoughts and texts": Hostile(_chat, chat_thoughts_and_texts),
    "chat: pieces of a name": Hostile(_chat, chat_names, False),
}
