"""pydantic-ai: the events of `Agent.run_stream_events`, and the messages of its result."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# It is installed in an environment of its own.

from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.native_tools import CodeExecutionTool, ImageGenerationTool, MCPServerTool, WebSearchTool
from pydantic_ai.providers.openai import OpenAIProvider

from bench.losses.recorder import Recorder

_SETTINGS = OpenAIResponsesModelSettings(
    openai_include_raw_annotations=True,
    openai_include_code_execution_outputs=True,
    openai_include_web_search_sources=True,
)
_TOOLS: dict[str, Any] = {
    "web_search": WebSearchTool(),
    "code_interpreter": CodeExecutionTool(),
    "image_generation": ImageGenerationTool(partial_images=2),
    "mcp": MCPServerTool(id="desk", url="https://mcp.example/mcp"),
}


async def play(url: str, tool: str | None, recorder: Recorder) -> None:
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=url, api_key="none", timeout=30))
    capabilities = [NativeTool(_TOOLS[tool])] if tool else []
    agent = Agent(
        OpenAIResponsesModel("gpt-5.6", provider=provider), model_settings=_SETTINGS, capabilities=capabilities
    )
    result: Any = None
    async with agent.run_stream_events("Do it.") as events:
        async for event in events:
            if event.event_kind == "agent_run_result":
                result = event.result
            else:
                recorder.event(event)
    recorder.end_of_loop()
    recorder.result(result.output)
    for message in result.all_messages():
        recorder.result(message)


async def approve(url: str, recorder: Recorder) -> None:
    """It has no API that answers an approval request, so only the request itself can be visible."""
    await play(url, "mcp", recorder)
