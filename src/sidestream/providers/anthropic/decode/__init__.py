"""Decoding of Messages API events to parts. Pure."""
