"""Parts as the AI SDK's UI messages, live and from the log."""
