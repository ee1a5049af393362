"""A small MCP server for the bench: `python bench/mcp_server.py` speaks over stdin and stdout."""

from mcp.server import MCPServer
from pydantic import BaseModel

server = MCPServer("bench")


class Sum(BaseModel):
    total: int


@server.tool()
def add(a: int, b: int) -> Sum:
    """Adds two numbers."""
    return Sum(total=a + b)


if __name__ == "__main__":
    server.run()
