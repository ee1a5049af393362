"""Checks of a claim against the text it cites: quotes, numbers, units, dates, names, polarity and order.

Pure functions of two strings. May import nothing else of `sidestream`. `judge.judge` runs all checks, the other
modules hold one kind each.
"""
