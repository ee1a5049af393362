"""The log of the library on standard error: as SIDESTREAM_LOG says, and warnings of servers and workers."""

import os
import sys

from sidestream.errors import ConfigurationError

VARIABLE = "SIDESTREAM_LOG"
LEVELS = ("debug", "info", "warning", "error")
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_stderr() -> None:
    """Writes the log from the level of the variable on. Raises ConfigurationError for an unknown level."""
    level = os.environ.get(VARIABLE, "").strip().lower()
    if level and level not in LEVELS:
        raise ConfigurationError(f"{VARIABLE} must be one of {', '.join(LEVELS)}, not {level!r}")
    if level:
        _attach(level)


def warn_on_stderr() -> None:
    """Writes warnings, unless the variable says what to write: for commands that run until they are stopped."""
    if not os.environ.get(VARIABLE, "").strip():
        _attach("warning")


def _attach(level: str) -> None:
    import logging

    from sidestream.cli.terminal import strip_controls
    from sidestream.logs import ROOT

    class Lines(logging.Formatter):
        """Records as text that a terminal can show: names in them may come from a server."""

        def format(self, record: logging.LogRecord) -> str:
            return strip_controls(super().format(record))

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(_LINE))
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
