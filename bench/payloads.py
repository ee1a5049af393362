"""What the replay server says, rendered once: a name such as `text-2000` and a wire make a stream of frames.

| name | what it is |
|---|---|
| `text-N` | N text deltas |
| `tools-N` | reasoning, code, searches, MCP, files of 100 kB, and N text deltas with citations: what the wire has |
| `bulk-N` | N megabytes of text in deltas of 1 kB |
| `calls-NAME-N` | N steps that each call the function NAME, then a text; which step it is follows from the request |
| `hosted-NAME-N` | one answer in which the provider calls the MCP tool NAME N times |
| `history` | a short text that says how many messages the request held |
| `paced-STREAMS-RATE-N` | N text deltas at RATE per second, each the time at which it was sent, once STREAMS are open |

`single-` before a name: one packet per event.
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
"""Where the time of sending stands in a paced delta: microseconds of the monotonic clock."""

Script = ResponsesScript | MessagesScript | GeminiScript | ChatScript
# With ids of their own: those that a script makes by itself are digests of the whole text, for each event anew.
_SCRIPTS: dict[str, Callable[[], Any]] = {
    "responses": lambda: ResponsesScript(id="resp_bench"),
    "messages": lambda: MessagesScript(id="msg_bench"),
    "generate": lambda: GeminiScript(response_id="bench", usage=_TOKENS),
    "chat": lambda: ChatScript(id="chatcmpl-bench"),
}


class Payload(NamedTuple):
    """A stream, and what a client must have seen at its end."""

    frames: tuple[bytes, ...]
    chars: int
    """Characters of the answer's text."""
    text: str = ""

    @property
    def events(self) -> int:
        """How many events a client decodes: what ends a stream without saying anything is none."""
        return sum(b"[DONE]" not in frame for frame in self.frames)


@cache
def payload(wire: str, name: str) -> Payload:
    """The stream of that name on a wire. Raises KeyError for one that there is not."""
    kind, *sizes = name.removeprefix("single-").split("-")
    return _KINDS[kind](wire, *sizes)


def answer(wire: str, name: str, body: bytes) -> Payload:
    """The stream for a request, where it depends on what was asked."""
    kind, *sizes = name.split("-")
    if kind == "calls":
        return call_step(wire, sizes[0], int(sizes[1]), _step(body))
    if kind == "history":
        return spoken(wire, f"messages={_messages(body)} bytes={len(body)}")
    return payload(wire, name)


def spoken(wire: str, text: str) -> Payload:
    """A short answer."""
    script = _SCRIPTS[wire]().text(text)
    return Payload(_frames(wire, script), len(text), text)


@cache
def call_step(wire: str, name: str, steps: int, step: int) -> Payload:
    """One step of a loop: a call of the function, or the text that ends the loop."""
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
"""The functions that a loop can call, with their arguments at a step."""


def _step(body: bytes) -> int:
    """How many steps have been made: the results in the request, or the response that it goes on from."""
    results = body.count(b'"function_call_output"')
    known = re.search(rb'"previous_response_id":\s*"resp_step(\d+)"', body)
    return max(results, int(known[1]) + 1 if known else 0)


def _messages(body: bytes) -> int:
    return len(re.findall(rb'"role":\s*"(?:user|assistant|model)"', body))


def _text(wire: str, deltas: str) -> Payload:
    words = [f"word{number} " for number in range(int(deltas))]
    return _said(wire, words)


def _bulk(wire: str, megabytes: str) -> Payload:
    lines = [f"{number:08d} " + "The quick brown fox jumps over the lazy dog. " * 22 + "\n" for number in range(1000)]
    return _said(wire, lines * int(megabytes))


def _said(wire: str, deltas: list[str]) -> Payload:
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
    """The events as their provider writes them."""
    if wire == "generate":
        # Google ends its lines with CR LF and counts tokens in every chunk.
        chunks = [{"usageMetadata": _TOKENS, **chunk} for chunk in script.chunks()]
        return tuple(encode_event(chunk).replace(b"\n", b"\r\n") for chunk in chunks)
    if wire == "chat":
        return (*map(encode_event, script.chunks()), b"data: [DONE]\n\n")
    events = script.events()
    if wire == "responses":
        # OpenAI pads its deltas, so that their sizes tell nothing.
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
