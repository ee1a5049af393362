"""Conversion of parts to the AI SDK's UI messages, both live and from the log."""
