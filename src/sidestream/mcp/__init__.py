"""MCP servers as tools that this process calls: `MCPServer` for one, `mcp_servers` for those of an `mcp.json`.

The official client, the extra `mcp`, is imported when the first server starts.

May import `tools`, `messages`, `stream` and the modules at the root of `sidestream`.
"""

from sidestream.mcp.callbacks import Elicitation, SamplingAnswer, SamplingRequest
from sidestream.mcp.config_file import mcp_servers
from sidestream.mcp.server import MCPServer

__all__ = ["Elicitation", "MCPServer", "SamplingAnswer", "SamplingRequest", "mcp_servers"]
