"""One module per command, and modules that only one command needs.

May import everything in `sidestream.cli` but `main`. Heavy packages are imported inside functions, so that `--help`
starts fast.
"""
