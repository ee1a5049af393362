"""Decoder for events of the Responses API. Pure."""
