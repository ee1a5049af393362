"""The loggers of Sidestream, one per package (`sidestream.run`, `sidestream.wire`, …).

INFO reports milestones, DEBUG the events of a stream. Nothing is printed unless the program configures logging, and
secrets are removed from all records.
"""

import logging
import traceback
from functools import cache

from sidestream.errors import encodable
from sidestream.text.redaction import redact

ROOT = "sidestream"

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
    logger = logging.getLogger(".".join(module.split(".")[:2]))
    logger.addFilter(_REDACTION)  # Adding it again has no effect.
    return logger


def redact_logger(name: str) -> None:
    """Remove secrets from the records of another library."""
    logging.getLogger(name).addFilter(_REDACTION)


@cache
def demote_logger(name: str, ours: logging.Logger) -> None:
    """Redirect the records of another library's logger to ours, at DEBUG level."""

    def demote(record: logging.LogRecord) -> bool:
        ours.debug("%s", record.getMessage())
        return False

    logging.getLogger(name).addFilter(demote)
