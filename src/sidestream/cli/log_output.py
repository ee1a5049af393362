"""The log of the library on standard error, for those who set SIDESTREAM_LOG."""

import os
import sys

from sidestream.errors import ConfigurationError

VARIABLE = "SIDESTREAM_LOG"
LEVELS = ("debug", "info", "warning", "error")
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_stderr() -> None:
    """Writes the log from this level on to standard error. Raises ConfigurationError for an unknown level."""
    level = os.environ.get(VARIABLE, "").strip().lower()
    if not level:
        return
    if level not in LEVELS:
        raise ConfigurationError(f"{VARIABLE} must be one of {', '.join(LEVELS)}, not {level!r}")
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
