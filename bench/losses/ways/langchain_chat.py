"""langchain-openai: the chunks of `ChatOpenAI.astream` with content in LangChain's standard blocks, and their sum."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# It is installed in an environment of its own.

from typing import Any

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

from bench.losses.recorder import Recorder
from bench.losses.tools import TOOLS


def model(url: str, tool: str | None) -> Any:
    chat = ChatOpenAI(
        model="gpt-5.6",
        base_url=url,
        api_key="none",
        use_responses_api=True,
        output_version="v1",
        include=["code_interpreter_call.outputs", "web_search_call.action.sources"],
        timeout=30,
    )
    return chat.bind_tools([TOOLS[tool]]) if tool else chat


async def play(url: str, tool: str | None, recorder: Recorder) -> None:
    await _send(model(url, tool), [HumanMessage("Do it.")], recorder)


async def approve(url: str, recorder: Recorder) -> None:
    chat = model(url, "mcp")
    asked: list[Any] = [HumanMessage("Do it.")]
    answer = await _send(chat, asked, recorder)
    blocks = [block.get("value", block) for block in answer.content if isinstance(block, dict)]
    answers = [
        {"type": "mcp_approval_response", "approval_request_id": block["id"], "approve": True}
        for block in blocks
        if block.get("type") == "mcp_approval_request"
    ]
    await _send(chat, [*asked, answer, HumanMessage(content=answers)], recorder)


async def _send(chat: Any, messages: list[Any], recorder: Recorder) -> Any:
    whole: Any = None
    async for chunk in chat.astream(messages):
        recorder.event(chunk)
        whole = chunk if whole is None else whole + chunk
    recorder.end_of_loop()
    recorder.result(whole)
    return whole
