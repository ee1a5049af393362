"""litellm: the events of `aresponses`, and the response that its last event holds."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# It is installed in an environment of its own.

from typing import Any

import litellm

from bench.losses.recorder import Recorder
from bench.losses.tools import TOOLS

litellm.telemetry = False
litellm.suppress_debug_info = True


async def play(url: str, tool: str | None, recorder: Recorder) -> None:
    await _send(url, tool, "Do it.", recorder)


async def approve(url: str, recorder: Recorder) -> None:
    response = await _send(url, "mcp", "Do it.", recorder)
    items = [item if isinstance(item, dict) else item.model_dump() for item in response.output]
    answers = [
        {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True}
        for item in items
        if item["type"] == "mcp_approval_request"
    ]
    await _send(url, "mcp", answers, recorder, previous_response_id=response.id)


async def _send(url: str, tool: str | None, asked: Any, recorder: Recorder, **fields: Any) -> Any:
    tools = [TOOLS[tool]] if tool else []
    stream: Any = await litellm.aresponses(
        model="openai/gpt-5.6", input=asked, tools=tools, stream=True, api_base=url, api_key="none", **fields
    )
    response: Any = None
    async for event in stream:
        recorder.event(event)
        if event.type == "response.completed":
            response = event.response
    recorder.end_of_loop()
    recorder.result(response)
    return response
