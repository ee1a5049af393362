"""Reader, editor and probe for the servers in `mcp.json`."""
