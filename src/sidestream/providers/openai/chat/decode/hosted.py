"""Calls of tools that a server runs itself, as calls with results. Hosts report them in very different ways."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, ClassVar

from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject
from sidestream.parts import Source, Stage, ToolCall, ToolInputDelta, ToolInputEnd, ToolInputStart, ToolResult
from sidestream.providers.openai.chat.options import CompletionsContext
from sidestream.providers.shared.decoding import DecoderState

ONLY_COUNTED = "The provider reported only the number of calls."
"""Result of calls of which nothing but their number is known."""


class HostCall(Struct):
    """A call that the server runs."""

    id: str
    tool: str
    """The server's name of the tool."""
    name: str
    """Portable name of the tool."""
    is_called: bool = False
    """Whether its input is known."""
    is_answered: bool = False
    entry: JsonObject = {}
    """The last entry with this call."""


class HostedState(DecoderState):
    """Base of the decoder's state, with hosted calls and what they found."""

    TOOLS: ClassVar[Mapping[str, str]] = {
        "search": "web_search",
        "browser_search": "web_search",
        "browser.search": "web_search",
        "visit": "web_fetch",
        "visit_website": "web_fetch",
        "browser.open": "web_fetch",
        "browser.find": "web_fetch",
        "fetch_url_content": "web_fetch",
        "python": "code_interpreter",
        "execute_python": "code_interpreter",
        "bash": "shell",
    }
    STAGES: ClassVar[Mapping[str, Stage]] = {"started": "started", "completed": "completed"}

    def __init__(self, context: CompletionsContext) -> None:
        super().__init__(context.provider)
        self.context = context
        self.response_id: str | None = None
        self.hosted: dict[int | str, HostCall] = {}
        """Hosted calls, by the server's index or id."""
        self._hosted_count = 0
        self._search: HostCall | None = None
        """Search whose findings precede the text, until that starts."""
        self._findings: JsonObject = {}
        self.found: set[str] = set()
        """URLs of the sources emitted so far."""

    def portable(self, tool: str) -> str:
        return super().portable(tool.removeprefix("openrouter:"))

    def made_id(self, number: object) -> str:
        """Return an id for a call without one, derived from the conversation."""
        seed = f"{self.context.history}\0{self.response_id}\0{number}"
        return f"call_{blake2b(seed.encode('utf-8', 'replace'), digest_size=12).hexdigest()}"

    def end_reasoning(self) -> None:
        """End the open reasoning block, if any."""

    def begin_hosted(self, tool: str, event: Any) -> HostCall:
        """Emit the start of a call, and the event that reported it."""
        self.end_reasoning()
        self.count_entry()
        call = HostCall(self.made_id(f"hosted:{self._hosted_count}"), tool, self.portable(tool))
        self._hosted_count += 1
        self.count_call(call.name, provider_executed=True)
        self.tool_event(tool, "started", event, call.id)
        self.out.append(ToolInputStart(call.id, call.name, True))
        return call

    def hosted_input(self, call: HostCall, given: JsonObject) -> None:
        """Emit the input of a call, once."""
        if call.is_called:
            return
        call.is_called = True
        self.out += (
            ToolInputDelta(call.id, jsontext.dumps(given).decode()),
            ToolInputEnd(call.id),
            ToolCall(call.id, call.name, call.name, True, input=given, provider_tool=call.tool),
        )

    def hosted_call(self, tool: str, given: JsonObject, event: Any) -> HostCall:
        """Emit a call with its complete input, and the event that reported it."""
        call = self.begin_hosted(tool, event)
        self.hosted_input(call, given)
        return call

    def hosted_result(self, call: HostCall, result: Any, event: Any = None) -> None:
        """Emit a result, once, after the event that reported it, if any."""
        if call.is_answered:
            return
        call.is_answered = True
        if event is not None:
            self.tool_event(call.tool, "completed", event, call.id)
        self.out.append(ToolResult(call.id, call.name, call.name, result, False, True))

    def source(self, url: str | None, title: str | None, owner: str) -> None:
        """Emit a source without a span, once per URL."""
        if url and url not in self.found:
            self.count_entry()
            self.found.add(url)
            self.out.append(Source(f"{owner}:source:{len(self.found) - 1}", "url", url=url, title=title))

    def begin_search(self, event: Any, findings: JsonObject) -> None:
        """Emit the search behind findings that precede the text, unless it is known."""
        if self._search is None and not self.server_tool_use.get("web_search"):
            self._search = self.hosted_call("web_search", {}, event)
        self._findings = findings

    def end_search(self) -> None:
        """Emit the result of that search."""
        if self._search is not None:
            self.hosted_result(self._search, self._findings)
            self._findings = {}

    def counted_calls(self, tool: str, count: int, event: Any) -> None:
        """Record calls of which the server reports only a number, unless calls of this tool are known."""
        name = self.portable(tool)
        known = self.server_tool_use.get(name, 0)
        if count > 0 and not known:
            call = self.hosted_call(tool, {}, event)
            self.hosted_result(call, {"count": count, "message": ONLY_COUNTED})
        if count > known:
            self.server_tool_use[name] = count
