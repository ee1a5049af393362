"""Folds of parts: chunks, results, tool runs, citations. No I/O.

May import `stream`, `messages`, `turn` and what is below them.
"""
