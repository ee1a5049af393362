"""The loggers of Sidestream: one for each package, `sidestream.run`, `sidestream.wire`, …

INFO reports milestones, DEBUG the events of a stream. Nothing is printed unless the program configures logging, and no
record leaves a logger with a secret in it.
"""

import logging
import traceback
from functools import cache

from sidestream.errors import encodable
from sidestream.text.redaction import redact

ROOT = "sidestream"

# Without a handler, Python prints warnings of a library to stderr.
logging.getLogger(ROOT).addHandler(logging.NullHandler())


class Redaction(logging.Filter):
    """Replaces secrets in a record, and what cannot be encoded.

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
    """The logger of a module's package: `log = get_logger(__name__)`."""
    logger = logging.getLogger(".".join(module.split(".")[:2]))
    logger.addFilter(_REDACTION)  # The same filter is added once only.
    return logger


def redact_logger(name: str) -> None:
    """Hides secrets in what a library logs."""
    logging.getLogger(name).addFilter(_REDACTION)


@cache
def demote_logger(name: str, ours: logging.Logger) -> None:
    """Whatever a library logs under this name becomes a DEBUG line of ours."""

    def demote(record: logging.LogRecord) -> bool:
        ours.debug("%s", record.getMessage())
        return False

    logging.getLogger(name).addFilter(demote)
