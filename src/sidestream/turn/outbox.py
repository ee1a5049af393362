"""Data that belongs to emitted parts, such as the messages that they complete and their form in the log."""

from collections.abc import Iterable, Sequence

from sidestream.messages.fold import Completed
from sidestream.messages.message import ChatMessage
from sidestream.parts import StepFinish, StreamPart
from sidestream.turn.rounds import ends_round


class Outbox:
    """A buffer for what belongs to emitted parts, until the consumers of these parts ask for it."""

    def __init__(self) -> None:
        self.round: list[ChatMessage] | None = None
        """Message of a round of calls, which the next step or the end of the run completes."""
        self._completed: tuple[Completed, ...] = ()
        self.joined: tuple[int, Sequence[StreamPart]] = (0, ())
        """Number of parts that the turn returns from a response, and these parts with their text joined."""
        self._logged: tuple[StepFinish, StepFinish] | None = None
        """Last `step-finish`, as emitted and as logged."""

    def completes(self, parts: Iterable[StreamPart], completed: Iterable[Completed]) -> None:
        """Note the messages that parts complete, in the order of the parts."""
        if self.round is not None and (part := next(filter(ends_round, parts), None)):
            self._completed += ((part, self.round),)
            self.round = None
        self._completed += tuple(completed)

    def end_step(self, part: StepFinish, logged: StepFinish, messages: list[ChatMessage]) -> None:
        """Note how the log stores a `step-finish`, and the messages that it completes."""
        self._logged = (part, logged)
        self.completes([part], [(part, messages)])

    def messages_with(self, part: StreamPart) -> list[ChatMessage]:
        """Return the messages that a part completes. Call it once for every part, in order."""
        messages: list[ChatMessage] = []
        while (completed := self._completed) and completed[0][0] is part:
            messages += completed[0][1]
            self._completed = completed[1:]
        return messages

    def logged(self, parts: list[StreamPart]) -> list[StreamPart]:
        """Convert the parts that the turn has just returned to the form that the log stores."""
        (count, joined), self.joined = self.joined, (0, ())
        parts = [*joined, *parts[count:]] if joined else parts
        if self._logged is None:
            return parts
        (part, logged), self._logged = self._logged, None
        return [logged if other is part else other for other in parts]
