"""Conversations of several turns with files, with code that runs on this machine, on every provider's API."""

from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, CodeInterpreter, DataPart
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    GeminiScript,
    InteractionScript,
    MessagesScript,
    ResponsesScript,
    ScriptedModel,
    tool_call,
)
from support.sandboxes import needs

CODE = "code_interpreter"
HERE = CodeInterpreter(execution="here", sandbox="bubblewrap")
PLOT = "import base64\nopen('plot.png', 'wb').write(base64.b64decode('iVBORw0KGgo=') + bytes(40_000))"
TABLE = "open('table.csv', 'w').write('a,b\\n' + '1,2\\n' * 20_000)"
ARCHIVE = "open('all.zip', 'wb').write(b'PK\\x03\\x04' + bytes(20_000))"
MODELS: dict[str, Any] = {
    "groq:m": (ChatScript, "tool_call"),
    "openai:gpt-5.6": (ChatScript, "tool_call"),
    "openai-responses": (ResponsesScript, "function_call"),
    "anthropic": (MessagesScript, "tool_use"),
    "google": (GeminiScript, "function_call"),
    "google:interactions/gemini-3-flash-preview": (InteractionScript, "function_call"),
}


def replies(model: str, *turns: str | None) -> list[Any]:
    """The answers of a session: each turn runs a code, or only says something."""
    script, call = MODELS[model]
    said: list[Any] = []
    for code in turns:
        if code is not None:
            said.append(getattr(script(), call)(CODE, {"code": code}).reply())
        said.append(script().text("ok").reply())
    return said


def provider(model: str, *turns: str | None) -> FakeProvider:
    return FakeProvider(replies(model, *turns), **({"base_path": ""} if model.startswith("google") else {}))


def agent_of(model: str, fake: FakeProvider, *tools: Any) -> Agent:
    return Agent(model, base_url=fake.base_url, api_key="k", server_side_tools=tools or (HERE,))


def logs_of(result: Any) -> str:
    return "".join(output["logs"] for output in result.tool_results[-1].result["outputs"])


@requirement("R192")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("code", "name"), [(PLOT, "plot.png"), (TABLE, "table.csv"), (ARCHIVE, "all.zip")])
async def test_made_file_is_named_but_not_resent(model: str, code: str, name: str) -> None:
    needs("bubblewrap")
    async with provider(model, code, None, f"import os\nprint(os.path.getsize('{name}'))") as fake:
        async with agent_of(model, fake) as agent:
            chat = Chat(agent)
            (made,) = (await chat.send("Make it.")).files
            await chat.send("Thanks.")
            last = await chat.send("How large is it?")
        assert all(len(request.body) < 10_000 for request in fake.requests)
        assert name.encode() in b"".join(request.body for request in fake.requests[1:])
    assert logs_of(last) == f"{len(made.data or b'')}\n"


@requirement("R192")
async def test_embedded_model_continues_after_made_files() -> None:
    needs("bubblewrap")
    model = ScriptedModel([*(tool_call(CODE, code=code) for code in (PLOT, TABLE, ARCHIVE)), "Done."])
    async with Agent("local", server_side_tools=[HERE]) as agent:
        chat = Chat(agent)
        with agent.override(model=model):
            made = await chat.send("Make them.")
        assert (await chat.send("Thanks.", max_tokens=3)).finish_reason in ("stop", "length")
    assert [file.name for file in made.files] == ["plot.png", "table.csv", "all.zip"]


@requirement("R192")
async def test_attached_file_of_tool_is_sent() -> None:
    needs("bubblewrap")
    async with provider("groq:m", TABLE, None) as fake, agent_of("groq:m", fake) as agent:
        chat = Chat(agent)
        made = await chat.send("Make it.")
        await chat.send(["What is in it?", made.files[0]])
    assert fake.requests[-1].json["messages"][-1]["content"][-1]["text"].startswith("table.csv:\na,b\n1,2\n")
    assert chat.messages[-2].parts[-1] == DataPart(made.files[0].data or b"", "text/csv", "table.csv")
