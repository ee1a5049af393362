"""Sidestream: the parts of `agent.stream`, and the result of `agent.send`."""

from bench.losses.recorder import Recorder
from sidestream import Agent, CodeInterpreter, ImageGeneration, RemoteMCP, WebSearch
from sidestream.parts import preview_of

_TOOLS = {
    "web_search": WebSearch(),
    "code_interpreter": CodeInterpreter(),
    "image_generation": ImageGeneration(partial_images=2),
    "mcp": RemoteMCP(label="desk", url="https://mcp.example/mcp", require_approval="always"),
}


def agent(url: str, tool: str | None) -> Agent[str]:
    tools = [_TOOLS[tool]] if tool else []
    return Agent("openai-responses", base_url=url, api_key="none", server_side_tools=tools)


async def play(url: str, tool: str | None, recorder: Recorder) -> None:
    known = agent(url, tool)
    async with known.stream("Do it.") as run:
        async for part in run:
            recorder.event(part)
            if preview := preview_of(part):
                recorder.event(preview)
    recorder.end_of_loop()
    recorder.result(await known.send("Do it."))


async def approve(url: str, recorder: Recorder) -> None:
    known = agent(url, "mcp")
    result = await known.send("Do it.")
    for pending in result.approvals:
        recorder.event(pending)
    assert result.run_state is not None
    recorder.result(await known.resume(result.run_state, [pending.approve() for pending in result.approvals]))
