"""Approvals of tools that run here."""

from pathlib import Path

from requirements import requirement
from sidestream import Agent, ApplyPatch, CodeInterpreter, FileSearch, Memory, Shell, ToolSearch
from sidestream.testing import ScriptedModel, tool_call
from support.sandboxes import given_to_user, needs


@requirement("R120")
async def test_local_calls_need_approvals_of_hosted_calls(tmp_path: Path):
    """Not asked: what only reads or stays in a sandbox. Asked: what changes files, keeps notes, or is not isolated."""
    needs("monty")
    asked: dict[str, bool] = {}
    configs = {
        "code_interpreter": (CodeInterpreter(execution="here", sandbox="monty"), {"code": "1"}),
        "unisolated": (CodeInterpreter(execution="here", sandbox="none"), {"code": "1"}),
        "file_search": (FileSearch(stores=[str(tmp_path / "none")]), {"queries": ["x"]}),
        "tool_search": (ToolSearch(execution="here"), {"query": "x"}),
        "memory": (Memory(execution="here"), {"command": "view", "path": "/memories"}),
        "apply_patch": (ApplyPatch(execution="here", workspace=str(tmp_path)), {"type": "delete_file", "path": "x"}),
        "shell": (Shell(workspace=str(given_to_user(tmp_path))), {"commands": ["ls"]}),
    }
    for name, (config, arguments) in configs.items():
        model = ScriptedModel([tool_call(config.key, **arguments), "ok"])
        async with Agent(model, server_side_tools=[config], approval="ask") as agent:
            asked[name] = (await agent.send("go")).finish_reason == "approval"
    assert asked == {
        "code_interpreter": False,
        "unisolated": True,
        "file_search": False,
        "tool_search": False,
        "memory": True,
        "apply_patch": True,
        "shell": True,
    }
