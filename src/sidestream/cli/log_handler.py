"""Logging to standard error, at the level in SIDESTREAM_LOG; servers and workers log warnings by default."""

import os
import sys
from typing import TYPE_CHECKING

import click

from sidestream.errors import ConfigurationError

if TYPE_CHECKING:
    import logging

VARIABLE = "SIDESTREAM_LOG"
LEVELS = ("debug", "info", "warning", "error")
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_stderr() -> None:
    """Log at the level in SIDESTREAM_LOG. Raises ConfigurationError if the level is unknown."""
    level = os.environ.get(VARIABLE, "").strip().lower()
    if level and level not in LEVELS:
        raise ConfigurationError(f"{VARIABLE} must be one of {', '.join(LEVELS)}, not {level!r}")
    if level:
        _attach(level)


def warn_on_stderr() -> None:
    """Log warnings until the command ends, unless SIDESTREAM_LOG sets a level."""
    if not os.environ.get(VARIABLE, "").strip():
        import logging

        from sidestream.logs import ROOT

        handler = _attach("warning")
        click.get_current_context().call_on_close(lambda: logging.getLogger(ROOT).removeHandler(handler))


def _attach(level: str) -> "logging.Handler":
    import logging

    from sidestream.cli.display.screen import strip_controls
    from sidestream.logs import ROOT

    class Lines(logging.Formatter):
        """A formatter that strips control characters, because records may contain names from a server."""

        def format(self, record: logging.LogRecord) -> str:
            return strip_controls(super().format(record))

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(_LINE))
    logger = logging.getLogger(ROOT)
    handler.setLevel(level.upper())
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > handler.level:
        logger.setLevel(handler.level)
    return handler
