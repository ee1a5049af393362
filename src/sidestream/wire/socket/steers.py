"""Messages that were sent to the responses of one lane, and what the server says of them."""

from collections import deque

from sidestream.transport.calls import SentSteer, SteerReport


class LaneSteers:
    """Follows the messages of a lane from response to response, until each is applied or has failed.

    A server answers messages in the order in which they were sent, and names each when it accepts it.
    """

    def __init__(self) -> None:
        self.response_id = ""
        """The response that the last message was sent to."""
        self._unanswered: deque[SentSteer] = deque()
        self._held: dict[str, SentSteer] = {}
        """What the server has accepted, by its own ids."""

    @property
    def has_unanswered(self) -> bool:
        """True if the server has neither accepted nor refused a message."""
        return bool(self._unanswered)

    @property
    def has_pending(self) -> bool:
        """True if the server adds a message to the next request of the lane."""
        return any(steer.status == "pending" for steer in self._held.values())

    @property
    def is_settled(self) -> bool:
        """True if the server has nothing more to say before the next request."""
        return not self._unanswered and all(steer.status == "pending" for steer in self._held.values())

    @property
    def is_empty(self) -> bool:
        """True if the server holds no message."""
        return not self._unanswered and not self._held

    def sent(self, response_id: str) -> SentSteer:
        """A message is about to be sent."""
        steer = SentSteer()
        self.response_id = response_id
        self._unanswered.append(steer)
        return steer

    def take(self, report: SteerReport) -> None:
        """The server reports on a message. What it says of none of ours is ignored."""
        steer = self._held.get(report.id) if report.id is not None else None
        if steer is None:
            if report.status == "pending" or not self._unanswered:
                return
            steer = self._unanswered.popleft()
        if report.status == "failed":
            self._held.pop(report.id or "", None)
            steer.fail(report.code, report.message)
        else:
            self._held[report.id or f"unnamed {id(steer)}"] = steer
            steer.status = report.status

    def apply(self) -> None:
        """A response has begun that takes all that the server held."""
        for steer in self._held.values():
            steer.status = "applied"
        self._held.clear()

    def drop(self, code: str, message: str) -> None:
        """The server will report nothing more about the messages."""
        for steer in (*self._unanswered, *self._held.values()):
            steer.fail(code, message)
        self._unanswered.clear()
        self._held.clear()
