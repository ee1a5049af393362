"""OAuth sign-ins at MCP servers, and token storage."""
