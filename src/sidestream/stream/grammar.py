"""The grammar of part streams, as a transition table and its checker.

A stream is `stream-start`, then steps with the parts of client tools between them, then `finish`. Inside a step,
blocks of text, reasoning and tool input open, grow and close. A result follows its call, and all blocks are closed at
the end of the step. A call between two steps is one that a program makes, while the program's own call runs.
"""

from collections.abc import Iterable
from typing import Literal

from sidestream.errors import GrammarError
from sidestream.parts import (
    Error,
    File,
    Finish,
    Source,
    Steer,
    StepFinish,
    StepStart,
    StreamPart,
    ToolApprovalRequest,
    ToolCall,
    ToolResult,
    program_of,
)

State = Literal["begin", "between", "step", "end"]

_IN_STEP = [
    "response-metadata",
    "text-start",
    "text-delta",
    "text-end",
    "reasoning-start",
    "reasoning-delta",
    "reasoning-end",
    "tool-input-start",
    "tool-input-delta",
    "tool-input-end",
    "tool-call",
    "tool-event",
    "tool-result",
    "tool-approval-request",
    "source",
    "file",
    "custom",
    "raw",
    "steer",
    "error",
]
_BETWEEN = [
    "tool-call",
    "tool-event",
    "tool-result",
    "tool-approval-request",
    "source",
    "file",
    "custom",
    "steer",
    "error",
]

TRANSITIONS: dict[State, dict[str, State]] = {
    "begin": {"stream-start": "between"},
    "between": {**dict.fromkeys(_BETWEEN, "between"), "step-start": "step", "finish": "end"},
    "step": {**dict.fromkeys(_IN_STEP, "step"), "step-finish": "between"},
    "end": {},
}
"""State → part type → next state. Parts not listed are illegal."""

BLOCKS: dict[str, tuple[str, Literal["open", "grow", "close"]]] = {
    "text-start": ("text", "open"),
    "text-delta": ("text", "grow"),
    "text-end": ("text", "close"),
    "reasoning-start": ("reasoning", "open"),
    "reasoning-delta": ("reasoning", "grow"),
    "reasoning-end": ("reasoning", "close"),
    "tool-input-start": ("tool-input", "open"),
    "tool-input-delta": ("tool-input", "grow"),
    "tool-input-end": ("tool-input", "close"),
}
"""Part type → its family of blocks, and what it does to its block."""


class Checker:
    """A checker of one stream, which raises GrammarError at the first illegal part.

    The stream of a resumed run begins at a later step and may answer calls made before it.
    """

    def __init__(self, *, first_step: int = 0, known_calls: Iterable[str] = ()) -> None:
        self._state: State = "begin"
        self._step = first_step - 1
        self._open: set[tuple[str, str]] = set()
        self._seen: set[tuple[str, str]] = set()
        self._called: set[str] = set(known_calls)
        self._step_called: set[str] = set()
        self._answered: set[str] = set()
        self._steers: set[str] = set()
        self._fatal = False

    def feed(self, part: StreamPart) -> None:
        """Check the next part."""
        name = part.type
        following = TRANSITIONS[self._state].get(name)
        if following is None:
            raise GrammarError(f"{name} is not allowed in state {self._state!r}: {part!r}")
        if name in BLOCKS:
            self._block(name, str(getattr(part, "id", "")))
        else:
            self._rules(part)
        self._state = following

    def close(self) -> None:
        """Check that the stream is complete."""
        if self._state != "end":
            raise GrammarError("the stream ended without finish")

    def _block(self, name: str, block_id: str) -> None:
        family, action = BLOCKS[name]
        key = (family, block_id)
        if action == "open":
            if key in self._seen:
                raise GrammarError(f"{family} block {block_id} was opened twice")
            self._seen.add(key)
            self._open.add(key)
        elif key not in self._open:
            raise GrammarError(f"{name} for block {block_id}, which is not open")
        elif action == "close":
            self._open.discard(key)

    def _rules(self, part: StreamPart) -> None:
        match part:
            case StepStart():
                if part.step != self._step + 1:
                    raise GrammarError(f"step {part.step} must not follow step {self._step}")
                self._step = part.step
                self._seen.clear()
                self._step_called.clear()
            case StepFinish():
                if self._open:
                    raise GrammarError(f"step-finish with open blocks: {sorted(self._open)}")
                if part.step != self._step:
                    raise GrammarError(f"step-finish of step {part.step} in step {self._step}")
            case ToolCall():
                self._call(part)
            case ToolResult():
                if part.id not in self._called:
                    raise GrammarError(f"tool-result {part.id} without a call")
                if part.id in self._answered:
                    raise GrammarError(f"tool-result {part.id} after its final result")
                if not part.preliminary:
                    self._answered.add(part.id)
            case ToolApprovalRequest():
                if part.id not in self._called:
                    raise GrammarError(f"tool-approval-request for {part.id} without a call")
            case Source():
                if part.text_id is not None and ("text", part.text_id) not in self._seen:
                    raise GrammarError(f"source for unknown text block {part.text_id}")
            case File():
                if (part.data is None) == (part.url is None):
                    raise GrammarError(f"file {part.id} must have either data or a URL")
            case Steer():
                self._steer(part)
            case Error():
                self._fatal = self._fatal or part.kind != "tool"
            case Finish():
                if (part.reason == "error") != self._fatal:
                    raise GrammarError(f"finish({part.reason}) {'after' if self._fatal else 'without'} an error")
            case _:
                pass

    def _steer(self, part: Steer) -> None:
        if (part.status == "accepted") == (part.id in self._steers):
            raise GrammarError(
                f"steer {part.id} cannot be {part.status} now: it is accepted once, then applied or failed"
            )
        if part.status == "applied" and self._state == "step":
            raise GrammarError(f"steer {part.id} was applied inside a step")
        self._steers ^= {part.id}

    def _call(self, part: ToolCall) -> None:
        if ("tool-input", part.id) in self._open:
            raise GrammarError(f"tool-call {part.id} while its input is open")
        if part.id in self._step_called:
            raise GrammarError(f"duplicate tool-call {part.id} in one step")
        if (part.input is None) == (part.input_error is None):
            raise GrammarError(f"tool-call {part.id} must have either input or input_error")
        program = program_of(part)
        if (program is None) != (self._state == "step"):
            raise GrammarError(f"tool-call {part.id} must be in a step, or between two if a program makes it")
        if program is not None and (program not in self._called or program in self._answered):
            raise GrammarError(f"tool-call {part.id} of program {program}, which is not running")
        self._step_called.add(part.id)
        self._called.add(part.id)
        self._answered.discard(part.id)


def check(parts: Iterable[StreamPart], *, first_step: int = 0, known_calls: Iterable[str] = ()) -> None:
    """Check that the parts are one legal, complete stream, and raise GrammarError if not."""
    checker = Checker(first_step=first_step, known_calls=known_calls)
    for part in parts:
        checker.feed(part)
    checker.close()
