"""The command line: `sidestream`, its commands, and the live view of a run.

May import everything but `testing`. Modules that define commands import heavy packages inside functions, so that
`sidestream --help` starts fast.
"""

import sys


def main() -> None:
    """Run the console script."""
    try:
        from sidestream.cli.main import run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        from sidestream.errors import MissingExtraError

        print(f"error: {MissingExtraError('cli', 'The command line')}", file=sys.stderr)
        sys.exit(2)
    sys.exit(run())
