"""Runs as the protocols that pages and frameworks read, and as Markdown.

May import `results`, `run`, `turn`, `tools`, `messages`, `stream` and what is below them; no sockets, no web framework.
"""
