"""Renders the replay server's streams once. A name such as `text-2000` and a wire format select a stream of frames.

| name | contents |
|---|---|
| `text-N` | N text deltas |
| `tools-N` | reasoning, code, searches, MCP, 100 kB files, N text deltas with citations, if the wire format has them |
| `bulk-N` | N megabytes of text in deltas of 1 kB |
| `calls-NAME-N` | N steps that each call the function NAME, then text; the request determines the step |
| `hosted-NAME-N` | one answer in which the provider calls the MCP tool NAME N times |
| `history` | a short text with the number of messages in the request |
| `paced-STREAMS-RATE-N` | N text deltas at RATE per second, each the time at which it was sent, once STREAMS are open |

The prefix `single-` sends one packet per event.
"""

import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from sidestream.testing.chat_script import ChatScript
from sidestream.testing.gemini_script import GeminiScript
from sidestream.testing.messages_script import MessagesScript
from sidestream.testing.replies import Event, encode_event
from sidestream.testing.responses_script import ResponsesScript

WIRES = ("responses", "messages", "generate", "chat")
IMAGE_BYTES = 100_000
STAMP = "0" * 16
"""Placeholder in a paced delta for its time of sending, in microseconds of the monotonic clock."""

Script = ResponsesScript | MessagesScript | GeminiScript | ChatScript
# Use fixed ids, since a script's default ids are digests of the whole text, computed for each event.
_SCRIPTS: dict[str, Callable[[], Any]] = {
    "responses": lambda: ResponsesScript(id="resp_bench"),
    "messages": lambda: MessagesScript(id="msg_bench"),
    "generate": lambda: GeminiScript(response_id="bench", usage=_TOKENS),
    "chat": lambda: ChatScript(id="chatcmpl-bench"),
}


class Payload(NamedTuple):
    """A stream, and the text that a client must have received at its end."""

    frames: tuple[bytes, ...]
    chars: int
    """Characters of the answer's text."""
    text: str = ""

    @property
    def events(self) -> int:
        """Number of events that a client decodes, without `[DONE]`."""
        return sum(b"[DONE]" not in frame for frame in self.frames)


@cache
def payload(wire: str, name: str) -> Payload:
    """Return the stream with this name in a wire format. Raises KeyError if it is unknown."""
    kind, *sizes = name.removeprefix("single-").split("-")
    return _KINDS[kind](wire, *sizes)


def answer(wire: str, name: str, body: bytes) -> Payload:
    """Return the stream for a request, which may depend on its body."""
    kind, *sizes = name.split("-")
    if kind == "calls":
        return call_step(wire, sizes[0], int(sizes[1]), _step(body))
    if kind == "history":
        return short_text(wire, f"messages={_messages(body)} bytes={len(body)}")
    return payload(wire, name)


def short_text(wire: str, text: str) -> Payload:
    """Return a short answer with this text."""
    script = _SCRIPTS[wire]().text(text)
    return Payload(_frames(wire, script), len(text), text)


@cache
def call_step(wire: str, name: str, steps: int, step: int) -> Payload:
    """Return one step of a tool loop, which is a call of the function or the text that ends the loop."""
    if wire != "responses":
        raise KeyError(wire)
    script = ResponsesScript(id=f"resp_step{step}")
    if step >= steps:
        text = f"All {steps} are done."
        return Payload(_frames(wire, script.text(text)), len(text), text)
    script.function_call(name, ARGUMENTS[name](step), f"call_{step}")
    return Payload(_frames(wire, script), 0)


ARGUMENTS: dict[str, Callable[[int], Event]] = {
    "get_weather": lambda step: {"city": f"City {step}", "unit": "celsius"},
    "add": lambda step: {"a": step, "b": 1},
}
"""Functions that a tool loop can call, with their arguments at a step."""


def _step(body: bytes) -> int:
    """Return the number of finished steps, from the request's results or the response that it continues."""
    results = body.count(b'"function_call_output"')
    known = re.search(rb'"previous_response_id":\s*"resp_step(\d+)"', body)
    return max(results, int(known[1]) + 1 if known else 0)


def _messages(body: bytes) -> int:
    return len(re.findall(rb'"role":\s*"(?:user|assistant|model)"', body))


def _text(wire: str, deltas: str) -> Payload:
    words = [f"word{number} " for number in range(int(deltas))]
    return _text_payload(wire, words)


def _bulk(wire: str, megabytes: str) -> Payload:
    lines = [f"{number:08d} " + "The quick brown fox jumps over the lazy dog. " * 22 + "\n" for number in range(1000)]
    return _text_payload(wire, lines * int(megabytes))


def _text_payload(wire: str, deltas: list[str]) -> Payload:
    text = "".join(deltas)
    return Payload(_frames(wire, _SCRIPTS[wire]().text(deltas)), len(text), text)


def _paced(wire: str, streams: str, rate: str, deltas: str) -> Payload:
    stamp = f"{STAMP} "
    return Payload(_frames(wire, _SCRIPTS[wire]().text([stamp] * int(deltas))), len(stamp) * int(deltas))


def _tools(wire: str, deltas: str) -> Payload:
    words = [f"word{number} " for number in range(int(deltas))]
    return Payload(_frames(wire, _TOOLS[wire](words)), len("".join(words)), "".join(words))


def _tools_responses(words: list[str]) -> Script:
    cited = [
        {"type": "url_citation", "url": url, "title": f"Page {n}", "start_index": n * 8, "end_index": n * 8 + 6}
        for n, url in enumerate(_urls(24))
    ]
    hits = [
        {"file_id": f"file-{n}", "filename": f"notes-{n}.md", "score": 0.9, "text": "Notes. " * 40, "attributes": {}}
        for n in range(5)
    ]
    tools = [
        {"name": f"tool_{n}", "description": "Does one thing.", "annotations": None, "input_schema": _SCHEMA}
        for n in range(10)
    ]
    return (
        _SCRIPTS["responses"]()
        .reasoning(_thoughts(150), _thoughts(150), encrypted_content="gAAAAA" + "x" * 2000)
        .web_search("what is new", sources=_urls(12))
        .mcp_list_tools("deepwiki", *tools)
        .mcp_call("deepwiki", "ask_question", {"repo": "a/b", "question": "why?"}, output="Because. " * 200)
        .file_search("notes", results=hits)
        .code_interpreter(_code(400), logs="4950\n" * 20)
        .image(_image(9), partials=[_image(n) for n in range(3)], revised_prompt="A cat.")
        .text(words, annotations=cited)
    )


def _tools_messages(words: list[str]) -> Script:
    found = [
        {"type": "web_search_result", "url": url, "title": url, "encrypted_content": "E" * 2000, "page_age": None}
        for url in _urls(10)
    ]
    cited = [
        {
            "type": "web_search_result_location",
            "url": url,
            "title": url,
            "encrypted_index": "Eo8B",
            "cited_text": "A sentence that is cited.",
        }
        for url in _urls(24)
    ]
    code = '{"command": ' + '"' + "".join(_code(400)).replace("\n", "\\n") + '"}'
    return (
        _SCRIPTS["messages"]()
        .thinking(_thoughts(300))
        .web_search("what is new", found)
        .server_tool_use("bash_code_execution", [code[at : at + 12] for at in range(0, len(code), 12)])
        .result("bash_code_execution_tool_result", _PRINTED)
        .mcp("deepwiki", "ask_question", {"repo": "a/b"}, [{"type": "text", "text": "Because. " * 200}])
        .web_fetch("https://example.com/paper.pdf", _base64(_image(1)), mime_type="application/pdf")
        .text(words, citations=cited)
    )


def _tools_generate(words: list[str]) -> Script:
    chunks = [{"web": {"uri": url, "title": url}} for url in _urls(10)]
    supports = [(n * 8, n * 8 + 6, None, [n % 10]) for n in range(24)]
    script = _SCRIPTS["generate"]().thought(_thoughts(300))
    for n in range(3):
        script.code("".join(_code(40)), "4950\n" * 20).inline_data(_image(n))
    return script.text(words).grounding(*chunks, supports=supports)


def _tools_chat(words: list[str]) -> Script:
    cited = [
        {
            "type": "url_citation",
            "url_citation": {"url": url, "title": url, "start_index": n * 8, "end_index": n * 8 + 6},
        }
        for n, url in enumerate(_urls(24))
    ]
    return _SCRIPTS["chat"]().reasoning(_thoughts(300)).text(words, annotations=cited)


_TOOLS: dict[str, Callable[[list[str]], Script]] = {
    "responses": _tools_responses,
    "messages": _tools_messages,
    "generate": _tools_generate,
    "chat": _tools_chat,
}
_SCHEMA = {"type": "object", "properties": {"text": {"type": "string", "description": "What to do it with."}}}
_PRINTED = {"type": "bash_code_execution_result", "stdout": "4950\n", "stderr": "", "return_code": 0, "content": []}
_TOKENS: Event = {"promptTokenCount": 12, "candidatesTokenCount": 900, "totalTokenCount": 912}


def _hosted(wire: str, name: str, times: str) -> Payload:
    if wire != "responses":
        raise KeyError(wire)
    script, text = _SCRIPTS["responses"](), f"All {times} are done."
    for step in range(int(times)):
        script.mcp_call("bench", name, ARGUMENTS[name](step), output='{"total":1}')
    return Payload(_frames(wire, script.text(text)), len(text), text)


_KINDS: dict[str, Callable[..., Payload]] = {
    "text": _text,
    "tools": _tools,
    "bulk": _bulk,
    "paced": _paced,
    "hosted": _hosted,
}


def _frames(wire: str, script: Any) -> tuple[bytes, ...]:
    """Return the events as their provider encodes them."""
    if wire == "generate":
        # Google ends its lines with CR LF and counts tokens in every chunk.
        chunks = [{"usageMetadata": _TOKENS, **chunk} for chunk in script.chunks()]
        return tuple(encode_event(chunk).replace(b"\n", b"\r\n") for chunk in chunks)
    if wire == "chat":
        return (*map(encode_event, script.chunks()), b"data: [DONE]\n\n")
    events = script.events()
    if wire == "responses":
        # OpenAI pads its deltas to hide their sizes.
        events = [{**event, "obfuscation": "aK3bX9qL"} if "delta" in event else event for event in events]
    return tuple(map(encode_event, events))


def _thoughts(count: int) -> list[str]:
    return [f"thought{number} " for number in range(count)]


def _code(count: int) -> list[str]:
    return [f"x{number} = {number}\n" for number in range(count)]


def _urls(count: int) -> list[str]:
    return [f"https://example.com/pages/{number}" for number in range(count)]


@cache
def _image(seed: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + random.Random(seed).randbytes(IMAGE_BYTES)


def _base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode("ascii")
