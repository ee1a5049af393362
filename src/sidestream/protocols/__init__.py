"""Conversion of runs to the protocols that web UIs and frameworks read, and to Markdown.

May import `results`, `run`, `turn`, `tools`, `messages`, `stream` and what is below them; no sockets, no web framework.
"""
