"""Error reporting: each error becomes one line on standard error and an exit code."""

import sys

from sidestream.cli import exit_codes
from sidestream.cli.display.screen import OutputClosedError, discard_output, one_line
from sidestream.errors import ConfigurationError, SidestreamError
from sidestream.text.redaction import redact

DEBUG = "--debug"


def report(error: Exception | str, code: int | None = None) -> int:
    """Print the error, with its traceback if `--debug` is given, and return its exit code."""
    if isinstance(error, Exception) and DEBUG in sys.argv[1:]:
        print_traceback(error)
    match error:
        case str():
            print_error(error)
        case OutputClosedError() | BrokenPipeError():
            discard_output()
            return exit_codes.PIPE_CLOSED
        case SidestreamError():
            print_error(error)
            code = exit_codes.USAGE if isinstance(error, ConfigurationError) else exit_codes.FAILED
        case OSError():
            print_error(f"input or output failed: {error.strerror or error}")
            discard_output()
        case _:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            print_error(f"this is a bug in Sidestream: {what} (run sidestream {DEBUG} … for a traceback)")
    return exit_codes.FAILED if code is None else code


def print_error(error: object) -> None:
    """Print an error as one line to standard error."""
    if sys.stderr is not None:
        print(f"error: {redact(one_line(str(error), 1000))}", file=sys.stderr, flush=True)


def print_traceback(error: BaseException) -> None:
    """Print a traceback to standard error, with secrets redacted."""
    import traceback

    if sys.stderr is not None:
        print(redact("".join(traceback.format_exception(error))), file=sys.stderr, end="", flush=True)
