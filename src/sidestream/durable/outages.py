"""Rate-limited warnings of repeated failures: the first at once, then one a minute, and one on recovery."""

import time

from sidestream.logs import get_logger
from sidestream.text.redaction import redact

REPEAT_S = 60.0
"""Seconds between warnings of a lasting failure, so that a long outage does not fill the logs of all workers."""
_log = get_logger(__name__)


class Outage:
    """A failure that may repeat, described by `what`, for example `cannot claim tasks`."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said_s: float | None = None
        """Monotonic time of the last warning. None means that there is no outage."""

    def failed(self, error: Exception) -> None:
        """Log a warning unless one was logged within the last `REPEAT_S` seconds."""
        now_s = time.monotonic()
        if self._said_s is None or now_s - self._said_s >= REPEAT_S:
            self._said_s = now_s
            _log.warning("%s: %s", self._what, redact(str(error)))

    def worked(self) -> None:
        """Log the recovery if a failure was logged before."""
        if self._said_s is not None:
            self._said_s = None
            _log.warning("recovered: %s", self._what)
