"""The loggers of Sidestream, one per package (`sidestream.run`, `sidestream.wire`, …).

INFO reports milestones, DEBUG the events of a stream. Nothing is printed unless the program configures logging or the
variable SIDESTREAM_LOG names a level. Secrets are removed from all records.
"""

import logging
import os
import traceback
import warnings
from functools import cache

from sidestream.errors import ConfigurationError, encodable
from sidestream.text.redaction import redact

ROOT = "sidestream"

VARIABLE = "SIDESTREAM_LOG"
LEVELS = ("debug", "info", "warning", "error")
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"

# Without a handler, Python prints a library's warnings to stderr.
logging.getLogger(ROOT).addHandler(logging.NullHandler())


class Redaction(logging.Filter):
    """A filter that replaces secrets and unencodable characters in a record.

    An exception becomes its traceback as text, without the locals of its frames.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        clean = encodable(redact(text))
        if clean != text:
            record.msg, record.args = clean, None
        if record.exc_info and record.exc_info[1] is not None:
            # Formatters print this text in place of the exception.
            text = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
            record.exc_text = encodable(redact(text))
            record.exc_info = None
        return True


_REDACTION = Redaction()


def get_logger(module: str) -> logging.Logger:
    """Return the logger of the package that a module belongs to. Pass `__name__`."""
    _start()
    logger = logging.getLogger(".".join(module.split(".")[:2]))
    logger.addFilter(_REDACTION)  # Adding it again has no effect.
    return logger


def redact_logger(name: str) -> None:
    """Remove secrets from the records of another library."""
    logging.getLogger(name).addFilter(_REDACTION)


def log_level() -> str | None:
    """Return the level in SIDESTREAM_LOG, or None. Raises ConfigurationError if it is unknown."""
    level = os.environ.get(VARIABLE, "").strip().lower()
    if level and level not in LEVELS:
        raise ConfigurationError(f"{VARIABLE} must be one of {', '.join(LEVELS)}, not {level!r}")
    return level or None


class Lines(logging.Formatter):
    """A formatter that removes control characters, because records may contain names from a server."""

    def __init__(self) -> None:
        super().__init__(_LINE)

    def format(self, record: logging.LogRecord) -> str:
        return "".join(char for char in super().format(record) if char in "\n\t" or char.isprintable())


def log_to_stderr(level: str) -> logging.Handler:
    """Print the log to standard error at this level."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines())
    handler.setLevel(level.upper())
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > handler.level:
        logger.setLevel(handler.level)
    return handler


@cache
def demote_logger(name: str, ours: logging.Logger) -> None:
    """Redirect the records of another library's logger to ours, at DEBUG level."""

    def demote(record: logging.LogRecord) -> bool:
        ours.debug("%s", record.getMessage())
        return False

    logging.getLogger(name).addFilter(demote)


@cache
def _start() -> None:
    """Print the log if SIDESTREAM_LOG says so. The first logger does this, so that importing this module does not."""
    try:
        level = log_level()
    except ConfigurationError as error:
        warnings.warn(str(error), stacklevel=3)  # An import must not fail.
        return
    if level is not None:
        log_to_stderr(level)
