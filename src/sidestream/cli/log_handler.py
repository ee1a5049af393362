"""Logging to standard error, at the level in SIDESTREAM_LOG; servers and workers log warnings by default."""

import os

import click

VARIABLE = "SIDESTREAM_LOG"


def warn_on_stderr() -> None:
    """Log warnings until the command ends, unless SIDESTREAM_LOG sets a level."""
    if not os.environ.get(VARIABLE, "").strip():
        import logging

        from sidestream.logs import ROOT, log_to_stderr

        handler = log_to_stderr("warning")
        click.get_current_context().call_on_close(lambda: logging.getLogger(ROOT).removeHandler(handler))
