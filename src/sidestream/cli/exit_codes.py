"""Exit codes of the command line."""

OK = 0
FAILED = 1
USAGE = 2
WAITING = 3
"""The last turn must be resumed: a call is still pending approval, or the turn is unfinished."""
INTERRUPTED = 130
PIPE_CLOSED = 141  # As if killed by SIGPIPE, which some systems lack.
