"""Encoder for Chat Completions requests. Pure."""
