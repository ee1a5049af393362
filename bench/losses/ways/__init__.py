"""One module for each library: `play` for one answer with a hosted tool, `approve` for a pending MCP call.

Each uses the library's documented streaming API, with every option on that makes it show more.
"""
