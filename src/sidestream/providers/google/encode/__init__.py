"""Encoding of messages and tools to `generateContent` requests. Pure."""
