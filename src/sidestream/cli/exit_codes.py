"""The exit codes of the command line."""

OK = 0
FAILED = 1
USAGE = 2
WAITING = 3
"""A call is pending approval, and nobody answered."""
INTERRUPTED = 130
PIPE_CLOSED = 141  # As if killed by SIGPIPE, which not every system has.
