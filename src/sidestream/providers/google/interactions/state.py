"""Decoder state of an interaction, and the emission of its text, calls and results."""

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from sidestream import jsontext
from sidestream.jsontext import JsonObject, text_in
from sidestream.parts import Stage, ToolCall, ToolInputDelta, ToolInputEnd, ToolInputStart, ToolResult
from sidestream.providers.google.computer import client_action
from sidestream.providers.google.decode.state import DRAFT_PIECES, Family, GeminiBlock, GoogleState
from sidestream.providers.google.interactions.options import InteractionContext

_CODE = "code_execution"
_REMEMBERED = 4096
"""Number of event ids to remember."""


class Step:
    """One step of an interaction, identified by its index."""

    __slots__ = (
        "block",
        "blocks",
        "call_id",
        "called",
        "content",
        "deltas",
        "done",
        "index",
        "input_open",
        "kind",
        "name",
        "owns_result",
        "raw",
        "tool",
    )

    def __init__(self, index: int, kind: str, raw: JsonObject) -> None:
        self.index = index
        self.kind = kind
        self.raw = raw
        """The step as it must be sent back, extended by its deltas."""
        self.tool = ""
        self.name = ""
        self.call_id = ""
        self.block: GeminiBlock | None = None
        self.blocks = 0
        self.content: list[JsonObject] = []
        """Content of a model's output, with block ids in place of text."""
        self.deltas: list[str] = []
        """Streamed arguments of a call so far."""
        self.input_open = False
        self.called = False
        self.done = False
        self.owns_result = False
        """Whether the result list in `raw` belongs to this step rather than to an event, so that it may grow."""

    @property
    def provider_executed(self) -> bool:
        """Whether a hosted tool made the step."""
        return self.kind != "function_call"


def _stage(step: Step, word: str) -> Stage | None:
    """Return the stage of a step's event, or None if the word alone says it."""
    if word == "delta":
        return "delta" if step.tool == _CODE or step.kind.endswith("_result") else None
    if not step.kind.endswith("_result"):
        return None
    if word == "start" and "result" not in step.raw:
        return "running"
    return "failed" if step.raw.get("is_error") is True else "completed"


class InteractionState(GoogleState):
    """Decoder state for one interaction."""

    STAGES: ClassVar[Mapping[str, Stage]] = {"start": "started", "delta": "input", "stop": "running"}
    USAGE_FIELDS = (
        "total_input_tokens",
        "total_tool_use_tokens",
        "total_cached_tokens",
        "total_output_tokens",
        "total_thought_tokens",
    )

    def __init__(self, context: InteractionContext) -> None:
        super().__init__()
        self.context = context
        self.steps: dict[int, Step] = {}
        self.order: list[Step] = []
        self.ignored: set[int] = set()
        """Indices of steps that repeat the client's own input."""
        self.begun: dict[str, Step] = {}
        """Calls that have begun, by id."""
        self.calls: dict[str, Step] = {}
        """Calls that were emitted, by id."""
        self.answered: set[str] = set()
        self._unanswered: dict[str, dict[str, Step]] = {}
        """Hosted calls without a result, by tool and id."""
        self.interaction: JsonObject = {}
        self.status: str | None = None
        self.last_event_id: str | None = None
        self._event_ids: deque[str] = deque()
        self._known_event_ids: set[str] = set()

    def made_call_id(self, step: Step) -> str:
        """Return an id for a call without one, which no other interaction of the conversation generates."""
        history = self.context.history
        return f"call-{step.index}" + (f"-{history}" if history else "")

    def is_repeated(self, event_id: str | None) -> bool:
        """Return whether an event arrived before, as after a resumed stream. Only the last ids are remembered."""
        if event_id is None:
            return False
        if event_id in self._known_event_ids:
            return True
        if len(self._event_ids) == _REMEMBERED:
            self._known_event_ids.discard(self._event_ids.popleft())
        self._event_ids.append(event_id)
        self._known_event_ids.add(event_id)
        return False

    def step_event(self, step: Step, word: str, event: Any) -> None:
        """Emit a tool event for a step of a hosted tool."""
        self.tool_event(step.tool, word, event, step.call_id or None, step.index, _stage(step, word))

    def text(self, step: Step, family: Family, text: str) -> None:
        """Add text to a step. Consecutive text forms one block."""
        if family == "text" and self.context.drafts:
            self.draft.append(text)
            last = step.content[-1] if step.content else {}
            if DRAFT_PIECES in last:
                last[DRAFT_PIECES].append(text)
            else:
                step.content.append({DRAFT_PIECES: [text]})
            return
        if step.block is None:
            name = "text" if family == "text" else "thought"
            suffix = f".{step.blocks}" if step.blocks else ""
            step.block = self.open_block(f"{name}-{step.index}{suffix}", family)
            step.blocks += 1
            step.content.append({"type": "text", "text_id": step.block.id})
        self.block_delta(step.block, text)

    def end_block(self, step: Step) -> None:
        """End the open block of a step, if any."""
        block, step.block = step.block, None
        if block is not None:
            block.signature = text_in(step.raw, "signature")
            self.close_block(block)

    def open_input(self, step: Step) -> None:
        """Begin the input of a call, once."""
        if not step.input_open and not step.called:
            step.input_open = True
            self.out.append(ToolInputStart(step.call_id, step.name, step.provider_executed))

    def input_delta(self, step: Step, text: str) -> None:
        """Add JSON text to a call's input."""
        step.deltas.append(text)
        if text:
            self.out.append(ToolInputDelta(step.call_id, text))

    def close_input(self, step: Step) -> None:
        """End the input of a call, once."""
        if step.input_open:
            step.input_open = False
            self.out.append(ToolInputEnd(step.call_id))

    def call(self, step: Step, **content: Any) -> None:
        """Emit a call, once. Its input is emitted now if it was not streamed."""
        if step.called:
            return
        self.open_input(step)
        if not step.deltas:
            self.input_delta(step, jsontext.dumps(content["input"]).decode())
        self.close_input(step)
        step.called = True
        self.calls[step.call_id] = step
        self.count_call(step.tool, provider_executed=step.provider_executed)
        if not step.provider_executed and "input" in content:
            answered = client_action(self.context, step.name, content["input"])
            if answered is not None:
                step.tool, content["action"] = answered
        if step.provider_executed:
            content["provider_tool"] = step.tool
        tool = self.portable(step.tool) if step.provider_executed else step.tool
        self.out.append(ToolCall(step.call_id, step.name, tool, step.provider_executed, **content))

    def begin_call(self, step: Step) -> None:
        """Register a call that has begun, so that a result may refer to it."""
        self.begun[step.call_id] = step
        if step.tool:
            self._unanswered.setdefault(step.tool, {})[step.call_id] = step

    def taken_up(self, tool: str, call_id: str | None) -> Step | None:
        """Return the call of an earlier interaction that a result of this one answers."""
        made = self.answered_call(tool, call_id)
        if made is None:
            return None
        step = self.calls[made.id] = Step(-1, "", {})
        step.call_id, step.name, step.tool = made.id, made.name, made.provider_tool or made.tool
        step.called = step.done = True
        return step

    def last_unanswered(self, tool: str) -> Step | None:
        """Return the last call of a hosted tool that has no result yet."""
        return next(reversed(self._unanswered.get(tool, {}).values()), None)

    def result(self, step: Step, value: Any, *, is_error: bool) -> None:
        """Emit the result of a hosted tool. The first one of a call counts."""
        call = self.calls.get(step.call_id)
        if call is None:
            self.call(step, input={})
            call = step
        if step.call_id not in self.answered:
            self.answered.add(step.call_id)
            self._unanswered.get(step.tool, {}).pop(step.call_id, None)
            self.out.append(ToolResult(step.call_id, call.name, self.portable(call.tool), value, is_error, True))
