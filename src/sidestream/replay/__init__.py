"""Recordings of provider traffic: their format, transports to capture and replay them, and the `replay` provider.

May import `run`, `wire`, `providers` (the protocol only) and what is below them.
"""
