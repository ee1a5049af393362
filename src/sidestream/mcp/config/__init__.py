"""Reading, editing and probing the servers in `mcp.json`."""
