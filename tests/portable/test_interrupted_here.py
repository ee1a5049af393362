"""Tools that run here: which of them are run again after an interruption, and how a config changes that."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import (
    Agent,
    Chat,
    CodeInterpreter,
    ConfigurationError,
    FileSearch,
    ImageGeneration,
    Memory,
    Shell,
    ToolResultPart,
    ToolSearch,
    WebFetch,
    WebSearch,
    open_store,
)
from sidestream.portable.here import toolset_for
from sidestream.portable.services import Services
from sidestream.store.log.conversation import Conversation
from sidestream.testing import ScriptedModel, tool_call
from sidestream.tools.server_side import ServerSideTool
from support.sandboxes import needs

SERVICES: Any = Services(start_run=None, embed=None, transport=None)  # type: ignore[arg-type]


@requirement("R161")
@pytest.mark.parametrize(
    ("config", "policy"),
    [
        (WebSearch(engine="corpus:."), "retry"),
        (WebSearch(via="openai-responses"), "retry"),
        (WebFetch(), "retry"),
        (FileSearch(stores=["./notes"]), "retry"),
        (ToolSearch(local=True), "retry"),
        (Memory(), "ask"),
        (Shell(), "retry"),
        (Shell(workspace=".", allow_root=True), "ask"),
        (Shell(sandbox="none"), "ask"),
        (CodeInterpreter(), "retry"),
        (CodeInterpreter(sandbox="monty"), "retry"),
        (CodeInterpreter(sandbox="none"), "ask"),
        (CodeInterpreter(on_interruption="ask"), "ask"),
        (CodeInterpreter(on_interruption="fail"), "fail"),
        (WebFetch(on_interruption="ask"), "ask"),
        (WebFetch(on_interruption="hints"), "retry"),
        (ImageGeneration(via="openai-responses"), "ask"),
    ],
    ids=repr,
)
async def test_only_tools_without_outside_effect_rerun_by_default(config: ServerSideTool, policy: str) -> None:
    tools = await toolset_for(config, SERVICES).list()
    assert {tool.on_interruption for tool in tools} == {policy}


@requirement("R161")
async def test_interrupted_code_runs_again_without_person(tmp_path: Path) -> None:
    needs("bubblewrap")
    left = tmp_path / "left.db"
    store = open_store(tmp_path / "talks.db")
    model = ScriptedModel(
        [tool_call("code_interpreter", code="import time\nwhile True: print('on'); time.sleep(0.05)")]
    )
    async with Agent(model, server_side_tools=[CodeInterpreter()]) as agent:
        chat = Chat(agent, store=store, id="me/1")
        await chat.load()
        log = Conversation(store, "me/1")
        async with chat.stream("go") as run:
            async for _ in run:
                if "tool-started" in [entry.kind for entry in await log.records()]:
                    # What the disk has while the code runs is what a process that dies leaves.
                    with (
                        closing(sqlite3.connect(tmp_path / "talks.db")) as live,
                        closing(sqlite3.connect(left)) as copy,
                    ):
                        live.backup(copy)
                    break
    await store.aclose()
    store = open_store(left)
    model = ScriptedModel(["done"])
    config = CodeInterpreter(timeout_s=2)
    async with Agent(model, server_side_tools=[config]) as agent:
        chat = Chat(agent, store=store, id="me/1")
        await chat.load()
        result = await chat.resume()
    await store.aclose()
    assert result.approvals == ()
    assert result.output == "done"
    (answer,) = [part for message in chat.messages for part in message.parts if isinstance(part, ToolResultPart)]
    assert "2 s" in str(answer.result), "its second attempt ran, and was stopped after 2 s"


def test_unknown_interruption_policy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="on_interruption"):
        CodeInterpreter(on_interruption="again")  # type: ignore[arg-type]
