"""Decoder for Chat Completions chunks. Pure."""
