"""From our messages and tools to Chat Completions requests. Pure."""
