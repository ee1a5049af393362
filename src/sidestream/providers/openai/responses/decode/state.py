"""State of the Responses decoder, which also emits calls and results."""

from collections.abc import Iterator
from itertools import islice
from operator import attrgetter
from typing import Any, Literal

from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, text_in
from sidestream.parts import Stage, ToolCall, ToolEvent, ToolInputDelta, ToolInputEnd, ToolInputStart, ToolResult
from sidestream.providers.openai.responses.options import ResponsesContext
from sidestream.providers.shared.decoding import INCOMPLETE_INPUT, DecoderState, input_fields

X_SEARCH = "x_search"
INNER_TOOLS = {
    "web_search": "web_search",
    "web_search_with_snippets": "web_search",
    "browse_page": "web_search",
    "open_page": "web_search",
    "open_page_with_find": "web_search",
    "search_images": "web_search",
    "code_execution": "code_interpreter",
    "collections_search": "file_search",
}
"""Tools of a request, by the name under which xAI calls them. All others belong to the search of X."""

_NEAREST = 64
"""Number of recent calls searched for an output without a call id."""


class ItemBlock(Struct, eq=False):
    """A text or reasoning block of an item."""

    id: str
    family: Literal["text", "refusal", "reasoning"]
    deltas: list[str] = []
    final: str | None = None
    annotations: dict[bytes, Any] = {}
    """Annotations by their JSON, so that repeated ones are recognised."""
    phase: Literal["active", "can-conclude", "concluded"] = "active"
    used: bool = False
    """Whether an event has used the block. Until then, either kind of content may."""

    def rest(self) -> str:
        """Return what the final text adds to the deltas, and count it as streamed."""
        if self.final is None:
            return ""
        streamed = self.streamed
        rest = self.final[len(streamed) :] if self.final.startswith(streamed) else ""
        if rest:
            self.deltas.append(rest)
        return rest

    def superseding(self) -> str | None:
        """Return the final text if it differs from the deltas, else None."""
        return None if self.final is None or self.final == self.streamed else self.final

    @property
    def streamed(self) -> str:
        """The joined deltas."""
        # Cache the joined text, since final text may arrive many times.
        if len(self.deltas) > 1:
            self.deltas = ["".join(self.deltas)]
        return self.deltas[0] if self.deltas else ""


class ItemState(Struct, eq=False):
    """An output item, identified by its output index, since ids may change between events."""

    number: int
    """Position in the order of arrival."""
    index: int
    kind: str
    given_id: str | None
    id: str = ""
    part_id: str = ""
    call_id: str | None = None
    raw: JsonObject = {}
    name: str = ""
    tool: str = ""
    provider_tool: str | None = None
    provider_executed: bool = True
    blocks: dict[tuple[str, int], ItemBlock] = {}
    open_part: ItemBlock | None = None
    """The content part that started last. Some servers give each of its deltas a separate index."""
    concludable: list[ItemBlock] = []
    """Reasoning blocks that conclude when the next one starts."""
    phase: str | None = None
    input_started: bool = False
    input_open: bool = False
    command: list[str] | None = None
    """Pieces of the open shell command."""
    input_final: str | None = None
    streamed: list[str] = []
    called: bool = False
    action: JsonObject | None = None
    """Input of an API-specific call, converted to the form of `actions`. Empty if it already has that form."""
    container_id: str | None = None
    preview: str | None = None
    """Latest preview of an image."""
    done: bool = False
    is_matched: bool = False

    def part_numbers(self, kind: str, count: int) -> list[int]:
        """Return the indices under which the `count` parts of the final item were streamed.

        These are their positions in the item. For servers that count parts over the whole response, the indices are
        assigned in the order in which the blocks started.
        """
        known = [number for block_kind, number in self.blocks if block_kind == kind]
        if all(number < count for number in known):
            return [*range(count)]
        return [*known, *range(max(known) + 1, max(known) + 1 + count)][:count]


_output_order = attrgetter("index")


class ResponsesState(DecoderState):
    """The state of one response during decoding."""

    sequence = -1
    is_numbered = False
    response_id: str | None = None
    shell_environment: Any = None
    """The shell's environment, as the response declares it."""
    has_refusal = False
    has_approval = False

    def __init__(self, context: ResponsesContext) -> None:
        super().__init__(context.provider)
        self.context = context
        self.items: list[ItemState] = []
        self._at: dict[int, ItemState] = {}
        self._known: dict[str, ItemState] = {}
        self.files: dict[str, str] = {}
        self.results: dict[str, None] = {}
        self._unanswered: dict[str, dict[str, ItemState]] = {}
        """Calls without a result, by tool and id."""
        self._code_calls: dict[str | None, ItemState] = {}
        """Last code run of each container."""
        self._tools: set[tuple[str | None, str | None]] = set()
        """Type and name of each tool, as the response declares them."""
        self.listed: dict[str, dict[str, str]] = {}
        """Digests of the tool definitions of remote servers, by server label and tool name."""

    def is_late(self, number: int | None) -> bool:
        """Return whether an event repeats an earlier one, by its sequence number.

        Servers whose numbers do not increase are trusted to send events in order.
        """
        if number is None:
            return False
        if number > self.sequence:
            self.is_numbered = self.is_numbered or self.sequence >= 0
            self.sequence = number
            return False
        return self.is_numbered

    def find(self, index: int, item_id: object = None) -> ItemState | None:
        """Find the item of an event by its id, or by its index if ids change or are missing."""
        here = self._at.get(index)
        if here is not None and here.given_id == item_id:
            return here
        return self._known.get(item_id, here) if isinstance(item_id, str) else here

    def placed(self, event: JsonObject) -> JsonObject:
        """Add the output index to an event from a server that does not send any. New items come last."""
        if "sequence_number" in event:
            return event
        item_id = event.get("item_id") or jsontext.as_object(event.get("item")).get("id")
        if not isinstance(item_id, str) or not item_id:
            return event
        known = self._known.get(item_id)
        return {**event, "output_index": known.index if known is not None else len(self.items)}

    def item(self, index: int, kind: str, item_id: str | None = None) -> ItemState:
        """Return the item of this kind, and create it if it is new."""
        found = self.find(index, item_id)
        return found if found is not None and found.kind == kind else self._new(index, kind, item_id)

    def whole_item(self, index: int, kind: str, item_id: str | None, *, is_new: bool) -> ItemState:
        """Return the item of an `added` or `done` event. If all items share one index, they are told apart by id."""
        found = self.find(index, item_id)
        if found is None or found.kind != kind:
            return self._new(index, kind, item_id)
        is_other = bool(item_id) and self._known.get(item_id or "") is not found
        is_elsewhere = found.index != index
        if found.done and (is_other or is_elsewhere or (is_new and not item_id)):
            return self._new(index, kind, item_id)
        if is_new and is_other and found.given_id:
            return self._new(index, kind, item_id)
        if item_id:
            self._known[item_id] = found
        return found

    def _new(self, index: int, kind: str, item_id: str | None) -> ItemState:
        self.count_entry()
        item = ItemState(len(self.items), index, kind, item_id)
        item.id = item.part_id = self.unique_id(item_id or f"item_{index}", item)
        self.items.append(item)
        self._at[index] = item
        if item_id:
            self._known[item_id] = item
        return item

    @property
    def finished(self) -> list[ItemState]:
        """Completed items, in output order."""
        return sorted([item for item in self.items if item.done], key=_output_order)

    def item_event(
        self, tool: str, word: str, event: Any, index: int | None, item: ItemState | None, stage: Stage
    ) -> None:
        """Emit a tool event with the id of its item."""
        if item is not None:
            call_id = item.part_id
        else:
            item_id = jsontext.as_object(event).get("item_id")
            call_id = item_id if isinstance(item_id, str) else None
        self.out.append(ToolEvent(tool, stage, event, call_id, index, tool, word))

    def open_input(self, item: ItemState, text: str = "") -> None:
        """Start the input of a call, once."""
        if item.input_started or item.called:
            return
        item.input_started = item.input_open = True
        tool = None if item.provider_executed or item.tool == item.name else item.tool
        self.out.append(ToolInputStart(item.part_id, item.name, item.provider_executed, tool))
        self.input_delta(item, text)

    def input_delta(self, item: ItemState, text: str) -> None:
        """Emit JSON text of a call's input."""
        if text:
            self.out.append(ToolInputDelta(item.part_id, text))

    def close_input(self, item: ItemState) -> None:
        """End the input of a call, once."""
        if item.input_open:
            item.input_open = False
            self.out.append(ToolInputEnd(item.part_id))

    def call(self, item: ItemState, value: Any, metadata: JsonObject | None = None) -> None:
        """Emit the call with its parsed input, once."""
        self._emit_call(item, metadata, input=value)

    def _emit_call(self, item: ItemState, metadata: JsonObject | None, **content: Any) -> None:
        self.close_input(item)
        if item.called:
            return
        item.called = True
        if item.call_id is not None and item.call_id != item.part_id:
            # Outputs refer to the final id, so it replaces the one that the input was streamed under.
            item.part_id = self.unique_id(item.call_id, item)
        self._unanswered.setdefault(item.tool, {})[item.part_id] = item
        if item.kind != "mcp_approval_request":
            self.count_call(item.tool, provider_executed=item.provider_executed)
        if not item.provider_executed and item.raw.get("status") == "incomplete" and "input" in content:
            # A limit cut the input off, so a command that looks complete may be half of one.
            text = jsontext.dumps(content["input"]).decode()
            content = {"input_error": INCOMPLETE_INPUT, "input_text": text}
        elif not item.provider_executed and item.action is not None:
            content["action"] = item.action
        self.out.append(
            ToolCall(
                item.part_id,
                item.name,
                item.tool,
                item.provider_executed,
                provider_metadata=metadata,
                provider_tool=item.provider_tool,
                **content,
            )
        )

    def result(self, item: ItemState, value: Any, *, is_error: bool = False, preliminary: bool = False) -> None:
        """Emit a result of a call. The final one is emitted once."""
        if item.part_id in self.results:
            return
        if not preliminary:
            self.results[item.part_id] = None
            self._unanswered.get(item.tool, {}).pop(item.part_id, None)
        self.out.append(
            ToolResult(
                item.part_id,
                item.name,
                item.tool,
                value,
                is_error,
                item.provider_executed,
                preliminary=preliminary,
            )
        )

    def unanswered(self, tool: str, call_id: str) -> ItemState | None:
        """Return the call of a tool with this id if it has no result yet, else None."""
        return self._unanswered.get(tool, {}).get(call_id)

    def last_unanswered(self, tool: str) -> Iterator[ItemState]:
        """Iterate over the latest calls of a tool without a result, newest first."""
        return islice(reversed(self._unanswered.get(tool, {}).values()), _NEAREST)

    def taken_up(self, tool: str, call_id: str | None) -> ItemState | None:
        """Return the call of an earlier response that an output belongs to, or None."""
        made = self.answered_call(tool, call_id)
        if made is None:
            return None
        item = ItemState(-1, -1, "", made.id, id=made.id, part_id=made.id)
        item.name, item.tool, item.provider_tool, item.called = made.name, made.tool, made.provider_tool, True
        self._unanswered.setdefault(made.tool, {})[made.id] = item
        return item

    def in_container(self, item: ItemState, container_id: str | None) -> None:
        """Record the container of a code run."""
        item.container_id = container_id
        last = self._code_calls.setdefault(container_id, item)
        if last.number < item.number:
            self._code_calls[container_id] = item

    def code_call_in(self, container_id: str | None) -> ItemState | None:
        """Return the last code run in a container, or None."""
        return self._code_calls.get(container_id)

    def declare_tools(self, tools: Any) -> None:
        """Record the tools that the response declares."""
        if not tools and not self._tools:
            return
        declared = jsontext.objects(tools)
        if not self._tools:
            self._tools = {(text_in(tool, "type"), text_in(tool, "name")) for tool in declared}
        shells = [tool.get("environment") for tool in declared if tool.get("type") == "shell"]
        self.shell_environment = next((found for found in shells if found is not None), None) if shells else None

    def inner_tool(self, name: str) -> str | None:
        """Return the tool that an undeclared custom call belongs to if the server executes it, as xAI does, or None."""
        is_possible = self.context.runs_custom_calls or (X_SEARCH, None) in self._tools
        if not is_possible or ("custom", name) in self._tools:
            return None
        return INNER_TOOLS.get(name, X_SEARCH)

    def whole_call(self, item: ItemState, value: Any, metadata: JsonObject | None = None) -> None:
        """Emit a call whose input arrived complete, with the start, text and end of the input."""
        if not item.called:
            self.open_input(item)
            self.input_delta(item, jsontext.dumps(value).decode())
            self.call(item, value, metadata=metadata)

    def wrapped_call(self, item: ItemState, value: str, suffix: str, whole: Any) -> None:
        """Complete an input of which one long string was streamed, and emit the call."""
        if item.called:
            return
        streamed = "".join(item.streamed)
        if value.startswith(streamed):
            self.input_delta(item, jsontext.escape(value[len(streamed) :]))
        self.input_delta(item, suffix)
        self.call(item, whole)

    def json_call(self, item: ItemState, text: str, metadata: JsonObject | None = None) -> None:
        """Complete an input that was streamed as JSON text, and emit the call, with an error if it is not an object."""
        if item.called:
            return
        streamed = "".join(item.streamed)
        if not text.strip() and not streamed:
            self.input_delta(item, "{}")
        elif text.startswith(streamed):
            self.input_delta(item, text[len(streamed) :])
        self._emit_call(item, metadata, **input_fields(text))
