"""Servers in `mcp.json`: read, changed and tried."""
