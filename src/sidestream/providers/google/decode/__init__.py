"""Decoding of `generateContent` chunks to parts. Pure."""
