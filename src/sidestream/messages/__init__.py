"""Message histories: messages and their parts, the fold that builds them from the stream, repair, and sessions.

May import `stream` and the modules at the root of `sidestream`.
"""
