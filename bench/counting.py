"""Counts the bytecodes and calls that one thread executes, by function."""

import sys
from types import CodeType, FrameType
from typing import Any, NamedTuple


class Count(NamedTuple):
    """Bytecodes and calls that a case executes."""

    bytecodes: int
    calls: int
    """Calls of Python and C functions, and resumptions of generators and coroutines."""


class Tally:
    """The counts of one function: its bytecodes, the calls to it, and its calls of C functions."""

    __slots__ = ("bytecodes", "c_calls", "calls", "code", "trace")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.reset()

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "opcode":
                self.bytecodes += 1
            return trace

        self.trace = trace

    def reset(self) -> None:
        """Set all counts to zero."""
        self.bytecodes = self.calls = self.c_calls = 0


class Counter:
    """Counts what this thread executes between `start` and `stop`, except code in paths that start with `without`."""

    def __init__(self, without: tuple[str, ...] = ()) -> None:
        self._without = (__file__, *without)
        # By id, since a code object computes its hash on every lookup. None means that it is not counted.
        self._tallies: dict[int, Tally | None] = {}
        self._codes: list[CodeType] = []
        self._before = sys.gettrace(), sys.getprofile()

    def start(self) -> None:
        # Python 3.12 traces bytecodes only if a frame has asked for it before.
        sys._getframe().f_trace_opcodes = True
        sys.setprofile(self._profile)
        sys.settrace(self._trace)

    def stop(self) -> None:
        sys.settrace(self._before[0])
        sys.setprofile(self._before[1])

    def reset(self) -> None:
        """Set all counts to zero."""
        for tally in self.tallies():
            tally.reset()

    def tallies(self) -> list[Tally]:
        """Return the counts of all functions, in descending order of bytecodes."""
        return sorted(filter(None, self._tallies.values()), key=lambda tally: -tally.bytecodes)

    def total(self) -> Count:
        tallies = self.tallies()
        return Count(sum(tally.bytecodes for tally in tallies), sum(tally.calls + tally.c_calls for tally in tallies))

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if id(code) not in self._tallies:
            self._codes.append(code)  # keep it alive, so that its id is not reused
            self._tallies[id(code)] = None if code.co_filename.startswith(self._without) else Tally(code)
        tally = self._tallies[id(code)]
        if tally is None:
            return None
        tally.calls += 1
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return tally.trace

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and (tally := self._tallies.get(id(frame.f_code))) is not None:
            tally.c_calls += 1
