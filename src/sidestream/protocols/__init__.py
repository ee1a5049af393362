"""User interfaces: runs as the protocols that pages and frameworks read.

May import `run`, `turn`, `tools`, `messages`, `stream` and the modules at the root of `sidestream`; no sockets, no web
framework.
"""
