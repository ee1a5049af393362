"""openai-agents: the events of `Runner.run_streamed`, and the run's result."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# It is installed in an environment of its own.

from typing import Any

from agents import (
    Agent,
    CodeInterpreterTool,
    HostedMCPTool,
    ImageGenerationTool,
    OpenAIResponsesModel,
    Runner,
    WebSearchTool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from bench.losses.recorder import Recorder
from bench.losses.tools import TOOLS

set_tracing_disabled(True)


def _tool(name: str, recorder: Recorder) -> Any:
    def on_approval_request(request: Any) -> Any:
        recorder.event(request)
        return {"approve": True}

    match name:
        case "web_search":
            return WebSearchTool()
        case "code_interpreter":
            return CodeInterpreterTool(tool_config=TOOLS[name])
        case "image_generation":
            return ImageGenerationTool(tool_config=TOOLS[name])
        case _:
            return HostedMCPTool(tool_config=TOOLS[name], on_approval_request=on_approval_request)


async def play(url: str, tool: str | None, recorder: Recorder) -> None:
    client = AsyncOpenAI(base_url=url, api_key="none", timeout=30)
    tools = [_tool(tool, recorder)] if tool else []
    agent = Agent(name="reader", model=OpenAIResponsesModel(model="gpt-5.6", openai_client=client), tools=tools)
    result = Runner.run_streamed(agent, "Do it.")
    async for event in result.stream_events():
        recorder.event(event)
    recorder.end_of_loop()
    for value in (result.final_output, *result.new_items, *result.raw_responses):
        recorder.result(value)


async def approve(url: str, recorder: Recorder) -> None:
    await play(url, "mcp", recorder)
