"""Warnings of failures that repeat: one at once, one a minute while they last, and one when they are over."""

import time

from sidestream.logs import get_logger
from sidestream.text.redaction import redact

REPEAT_S = 60.0
"""How often a failure that lasts is reported: an outage of an hour must not fill the logs of all workers."""
_log = get_logger(__name__)


class Outage:
    """Something that fails now and then, in words: `tasks cannot be claimed`."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said_s: float | None = None
        """When it was last reported; None while all is well."""

    def failed(self, error: Exception) -> None:
        """It has failed, perhaps not for the first time."""
        now_s = time.monotonic()
        if self._said_s is None or now_s - self._said_s >= REPEAT_S:
            self._said_s = now_s
            _log.warning("%s: %s", self._what, redact(str(error)))

    def worked(self) -> None:
        """It works, perhaps again."""
        if self._said_s is not None:
            self._said_s = None
            _log.warning("no longer: %s", self._what)
