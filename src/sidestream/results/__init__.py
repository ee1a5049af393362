"""Folds of parts to chunks, results, tool runs and citations, without I/O.

May import `stream`, `messages`, `turn` and what is below them.
"""
