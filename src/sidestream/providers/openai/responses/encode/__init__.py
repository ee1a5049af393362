"""Encoder for Responses API requests. Pure."""
