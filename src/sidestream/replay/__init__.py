"""Recordings of provider traffic: their format, transports that capture and replay them, and the provider `replay`.

May import `run`, `wire`, `providers` (the protocol only) and what is below them.
"""
