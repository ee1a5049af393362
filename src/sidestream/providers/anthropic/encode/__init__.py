"""From our messages and tools to requests of the Messages API. Pure."""
