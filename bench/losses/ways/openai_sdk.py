"""The openai package: the events of `responses.stream`, and its final response."""

from typing import Any

from openai import AsyncOpenAI

from bench.losses.recorder import Recorder
from bench.losses.tools import TOOLS


def client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="none", timeout=30)


async def play(url: str, tool: str | None, recorder: Recorder) -> None:
    await _send(url, tool, "Do it.", recorder)


async def approve(url: str, recorder: Recorder) -> None:
    response = await _send(url, "mcp", "Do it.", recorder)
    answers: Any = [
        {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": True}
        for item in response.output
        if item.type == "mcp_approval_request"
    ]
    await _send(url, "mcp", answers, recorder, previous_response_id=response.id)


async def _send(url: str, tool: str | None, asked: Any, recorder: Recorder, **fields: Any) -> Any:
    tools = [TOOLS[tool]] if tool else []
    async with client(url).responses.stream(model="gpt-5.6", input=asked, tools=tools, **fields) as stream:
        async for event in stream:
            recorder.event(event)
        recorder.end_of_loop()
        response = await stream.get_final_response()
    recorder.result(response)
    return response
