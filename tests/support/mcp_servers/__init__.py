"""MCP servers for tests, and how tests start them."""
