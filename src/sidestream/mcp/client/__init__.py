"""The client of one MCP server: its connection, calls, questions and results."""
