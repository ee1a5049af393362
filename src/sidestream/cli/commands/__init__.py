"""One module for each command, and beside it what only that command needs.

May import everything in `sidestream.cli` but `main`. Heavy packages are imported inside functions, so that `--help`
starts fast.
"""
