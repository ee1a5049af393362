"""Encoding of messages and tools to Messages API requests. Pure."""
