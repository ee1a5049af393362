"""From our messages and tools to requests of the Responses API. Pure."""
