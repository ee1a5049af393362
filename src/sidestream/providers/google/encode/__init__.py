"""From our messages and tools to `generateContent` requests. Pure."""
