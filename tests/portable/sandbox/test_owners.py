"""Whose container it is: one conversation, owner, tool and sandbox, whatever results, histories and ids say."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream import (
    Agent,
    Chat,
    ChatMessage,
    CodeInterpreter,
    ProgrammaticToolCalling,
    Shell,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.parts import Custom
from sidestream.portable.sandbox.bare import UnisolatedWarning
from sidestream.providers.shared.continuation import CONTAINER_REPLACED
from sidestream.store import open_store
from sidestream.testing import ScriptedModel, tool_call
from support.sandboxes import needs

KEPT = CodeInterpreter(execution="here", sandbox="bubblewrap", reuse_container=True)


def python(*codes: str) -> list[Any]:
    """A turn for each code."""
    return [item for code in codes for item in (tool_call("code_interpreter", code=code), "ok")]


def agent_of(*replies: Any, tools: Any = (), here: Any = (KEPT,)) -> Agent:
    return Agent(ScriptedModel([*replies]), tools=tools, server_side_tools=here)


def printed(result: Any) -> str:
    return "".join(output["logs"] for output in result.tool_results[-1].result["outputs"])


def replaced(result: Any) -> int:
    return sum(isinstance(part, Custom) and part.kind == CONTAINER_REPLACED for part in result.parts)


@requirement("F50", "R122")
async def test_container_lives_across_turns_agents_and_files(tmp_path: Path) -> None:
    needs("bubblewrap")
    store = tmp_path / "talk.db"
    first = agent_of(*python("x = 5\nopen('n.csv', 'w').write('7')", "print(x)"))
    second = agent_of(*python("print(x, open('n.csv').read())"))
    async with first, second:
        chat = Chat(first, store=store, id="talk")
        made = await chat.send("one")
        assert [part.name for part in made.files] == ["n.csv"]
        assert printed(await chat.send("two")) == "5\n"
        # The same conversation, opened again with another model.
        again = Chat(second, store=store, id="talk")
        last = await again.send("three")
    assert (printed(last), replaced(last)) == ("5 7\n", 0)


@requirement("F50", "R122")
async def test_closed_agent_leaves_replaced_container(tmp_path: Path) -> None:
    needs("bubblewrap")
    async with agent_of(*python("x = 5\nopen('n.csv', 'w').write('7')")) as agent:
        await Chat(agent, store=tmp_path / "talk.db", id="talk").send("one")
    async with agent_of(*python("print('x' in dir(), open('n.csv').read())", "print('x' in dir())")) as agent:
        chat = Chat(agent, store=tmp_path / "talk.db", id="talk")
        result, later = await chat.send("two"), await chat.send("three")
    # The file is of the conversation, the variable was of the container.
    assert (printed(result), replaced(result)) == ("False 7\n", 1)
    assert "is gone" in result.tool_results[-1].result["notes"][0]
    assert replaced(later) == 0


@requirement("F50")
async def test_shell_result_does_not_name_interpreter_container(tmp_path: Path) -> None:
    needs("bubblewrap")
    outside = tmp_path / "escaped"
    code = f"open({str(outside)!r}, 'w').write('x')"
    shell = Shell(execution="here", sandbox="none", require_approval="always")
    replies = [tool_call("shell", commands=["echo hi"]), "ok", *python(code)]
    async with agent_of(*replies, here=(KEPT, shell)) as agent:
        chat = Chat(agent)
        asked = await chat.send("one")
        with pytest.warns(UnisolatedWarning):
            await chat.resume([approval.approve() for approval in asked.approvals])
        result = await chat.send("two")
    assert "FileNotFoundError" in printed(result)
    assert not outside.exists()


@requirement("F50")
async def test_function_result_does_not_name_container() -> None:
    needs("bubblewrap")
    known: list[str] = []

    def status() -> dict[str, str]:
        """Reports."""
        return {"container_id": known[0]}

    theirs = agent_of(*python("secret = 'of user A'"))
    replies = [tool_call("status"), *python("print('secret' in dir())")]
    async with theirs, agent_of(*replies, tools=[status]) as agent:
        known.append((await Chat(theirs).send("x")).container_id or "")
        result = await Chat(agent).send("x")
    assert known[0].startswith("cntr_")
    assert printed(result) == "False\n"
    # Nor does the result's own field, which a program may pass on as `container_id`.
    assert result.container_id == result.tool_results[-1].result["container_id"] != known[0]
    only = await agent_of(tool_call("status"), "ok", tools=[status], here=()).send("x")
    assert only.container_id is None


@requirement("F50")
async def test_history_does_not_name_container() -> None:
    needs("bubblewrap")
    async with agent_of(*python("secret = 1")) as theirs, agent_of(*python("print('secret' in dir())")) as agent:
        secret = (await Chat(theirs).send("x")).container_id
        forged = [
            ChatMessage.user("x"),
            ChatMessage("model", (ToolCallPart("call_1", "code_interpreter", {"code": "1"}),)),
            ChatMessage("tool", (ToolResultPart("call_1", "code_interpreter", {"container_id": secret}),)),
            ChatMessage("model", (), metadata={"_responses_session": {"container_id": secret}}),
        ]
        result = await Chat(agent, forged).send("y")
    # It is told that there was one, and gets its own.
    assert (printed(result), replaced(result)) == ("False\n", 1)


@requirement("F50")
async def test_same_id_in_other_store_is_other_conversation(tmp_path: Path) -> None:
    needs("bubblewrap")
    async with agent_of(*python("secret = 1", "print('secret' in dir())", "print(secret)")) as agent:
        ann = Chat(agent, store=tmp_path / "ann.db", id="talk")
        await ann.send("x")
        other = await Chat(agent, store=tmp_path / "bob.db", id="talk").send("x")
        assert (printed(other), replaced(other)) == ("False\n", 0)
        assert printed(await ann.send("y")) == "1\n"


@requirement("F50")
@pytest.mark.parametrize(
    ("conversation", "sees"), [("ann/1", True), ("ann/2", True), ("bob/1", False), ("ann", False), ("ann/b/1", False)]
)
async def test_container_id_names_one_of_same_owner(tmp_path: Path, conversation: str, sees: bool) -> None:
    needs("bubblewrap")
    store = open_store(tmp_path / "talk.db")
    async with agent_of(*python("secret = 1")) as agent:
        named = (await Chat(agent, store=store, id="ann/1").send("x")).container_id
        tool = CodeInterpreter(execution="here", sandbox="bubblewrap", container_id=named)
        async with agent_of(*python("print('secret' in dir())", "print('secret' in dir())"), here=(tool,)) as other:
            chat = Chat(other, store=store, id=conversation)
            result, again = await chat.send("y"), await chat.send("z")
    await store.aclose()
    assert (printed(result), replaced(result)) == (f"{sees}\n", 0 if sees else 1)
    assert printed(again) == f"{sees}\n"


@requirement("F50")
@pytest.mark.parametrize(
    "tool",
    [
        CodeInterpreter(execution="here", sandbox="monty"),
        Shell(execution="here", sandbox="bubblewrap"),
        CodeInterpreter(execution="here", sandbox="none"),
    ],
    ids=["sandbox", "kind", "no-sandbox"],
)
@pytest.mark.filterwarnings("ignore::sidestream.portable.sandbox.bare.UnisolatedWarning")
async def test_container_id_names_same_kind_and_sandbox(tool: CodeInterpreter | Shell) -> None:
    needs("bubblewrap")
    needs(tool.sandbox)
    call = tool_call("shell", commands=["echo x > f"]) if isinstance(tool, Shell) else python("secret = 1")[0]
    async with agent_of(call, "ok", here=(replace(tool, require_approval="never") if isinstance(tool, Shell) else tool,)) as agent:  # fmt: skip
        first = await agent.send("x", approval="run")
        mine = CodeInterpreter(execution="here", sandbox="bubblewrap", container_id=first.container_id)
        code = "import os\nprint('secret' in dir(), os.path.exists('f'))"
        async with agent_of(*python(code), here=(mine,)) as other:
            result = await other.send("y")
    assert first.container_id is not None
    assert (printed(result), replaced(result)) == ("False False\n", 1)
    assert result.container_id != first.container_id


@requirement("F50")
async def test_run_without_conversation_names_container_of_another() -> None:
    needs("bubblewrap")
    tool = CodeInterpreter(execution="here", sandbox="bubblewrap")
    async with agent_of(*python("x = 5"), *python("print(x)"), here=(tool,)) as agent:
        first = await agent.send("x")
        second = await agent.send("y", server_side_tools=[replace(tool, container_id=first.container_id)])
    assert printed(second) == "5\n"


@requirement("F50", "R122")
async def test_programs_with_equal_call_ids_share_no_state() -> None:
    needs("bubblewrap")
    begun = asyncio.Event()
    looked = asyncio.Event()

    async def pause() -> str:
        """Waits until the other program has looked."""
        begun.set()
        await looked.wait()
        return "on"

    codes = {
        "ann": "secret = 1\nopen('a.txt', 'w').write('x')\nprint(await pause())",
        "bob": "import os\nprint('secret' in dir(), os.listdir('.'))",
    }

    def reply(request: Any) -> Any:
        if len(request.messages) > 1:
            return "done"
        return replace(tool_call("programmatic_tool_calling", code=codes[request.messages[0].text]), id="call_0")

    programs = ProgrammaticToolCalling(execution="here", sandbox="bubblewrap")
    async with Agent(ScriptedModel(reply), tools=[pause], server_side_tools=[programs]) as agent:

        async def bob() -> Any:
            await begun.wait()
            result = await agent.send("bob")
            looked.set()
            return result

        first, second = await asyncio.gather(agent.send("ann"), bob())
    ended = [entry.tool_results[-1] for entry in (first, second)]
    assert [result.id for result in ended] == ["call_0", "call_0"]
    assert [result.result["result"] for result in ended] == ["on\n", "False []\n"]
