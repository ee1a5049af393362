"""An MCP server of the newer generation, made with the official package; over HTTP where it gets a port."""

import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult, ToolAnnotations
from pydantic import BaseModel

server = MCPServer("modern")


class Sum(BaseModel):
    total: int


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> Sum:
    """Adds two numbers."""
    return Sum(total=a + b)


@server.tool()
async def learn(ctx: Context) -> str:
    """Makes another tool, and tells."""
    server.add_tool(learned)
    await ctx.notify_tools_changed()
    return "learned"


@server.tool()
async def count(ctx: Context) -> str:
    """Reports progress."""
    for step in range(1, 4):
        await ctx.report_progress(step, 3, f"step {step}")
    return "counted"


@server.tool()
async def paint(ctx: Context) -> str | InputRequiredResult:
    """Asks for a colour."""
    if ctx.input_responses is None:
        schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
        form = ElicitRequestFormParams(message="Which colour?", requested_schema=schema)
        return InputRequiredResult(input_requests={"colour": ElicitRequest(params=form)}, request_state="asked")
    answer = ctx.input_responses["colour"]
    assert isinstance(answer, ElicitResult)
    return f"{answer.action}: {answer.content}"


def learned() -> str:
    """Was not there before."""
    return "I am new"


if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run()
