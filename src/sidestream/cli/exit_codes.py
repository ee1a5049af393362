"""The exit codes, all of them."""

OK = 0
FAILED = 1
USAGE = 2
WAITING = 3
"""A call waits for an approval that nobody was there to give."""
INTERRUPTED = 130
PIPE_CLOSED = 141  # As if SIGPIPE had ended it, which not every system has.
