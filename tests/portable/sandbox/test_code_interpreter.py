"""The code interpreter on a model whose provider hosts none."""

import gc
from typing import Any

import pytest

from requirements import requirement
from sidestream import (
    Agent,
    Chat,
    ChatMessage,
    CodeInterpreter,
    ConfigurationError,
    DataPart,
    StreamPart,
    TextPart,
    ToolResult,
    UnsupportedError,
)
from sidestream.parts import Custom, ToolEvent
from sidestream.testing import ChatScript, FakeProvider, check_stream
from sidestream.tools import Network
from support.sandboxes import needs

NAME = "code_interpreter"


def scripts(*codes: str) -> list[Any]:
    calls = [ChatScript().tool_call(NAME, {"code": code}).reply() for code in codes]
    return [*calls, ChatScript().text("done").reply()]


def agent_of(fake: FakeProvider, *tools: Any, **settings: Any) -> Agent:
    return Agent(
        "openai", base_url=fake.base_url, api_key="k", server_side_tools=tools or (CodeInterpreter(),), **settings
    )


def results(parts: list[StreamPart]) -> list[Any]:
    return [part.result for part in parts if isinstance(part, ToolResult)]


async def parts_of(agent: Agent, prompt: Any = "go") -> list[StreamPart]:
    async with agent.stream(prompt) as run:
        return [part async for part in run]


@requirement("R122")
async def test_local_code_has_hosted_stages_and_result() -> None:
    needs("bubblewrap")
    async with (
        FakeProvider(scripts("print(6 * 7)\nopen('n.csv', 'w').write('1')\nNone")) as fake,
        agent_of(fake) as agent,
    ):
        parts = await parts_of(agent)
    check_stream(parts)
    stages = [part.provider_stage for part in parts if isinstance(part, ToolEvent) and part.tool == NAME]
    assert [stage for stage in stages if stage in ("interpreting", "logs", "completed")] == ["interpreting", "logs", "completed"]  # fmt: skip
    (result,) = results(parts)
    assert (result["status"], result["outputs"]) == ("completed", [{"type": "logs", "logs": "42\n"}])
    (file,) = [part for part in parts if part.type == "file"]
    assert (file.name, file.data, file.tool) == ("n.csv", b"1", NAME)
    assert file.provider_metadata == {"sidestream": {"container_id": result["container_id"], "path": "/mnt/data/n.csv"}}
    types = [
        part.event["type"] for part in parts if isinstance(part, ToolEvent) and part.provider_stage == "interpreting"
    ]
    assert types == ["response.code_interpreter_call.interpreting"]


@requirement("R122")
async def test_container_is_shared_within_run_but_not_across_runs() -> None:
    needs("bubblewrap")
    async with FakeProvider([*scripts("x = 1", "x + 1"), *scripts("x")]) as fake, agent_of(fake) as agent:
        first, second = results(await parts_of(agent))
        (other,) = results(await parts_of(agent))
    assert second["outputs"] == [{"type": "logs", "logs": "2\n"}]
    assert first["container_id"] == second["container_id"] != other["container_id"]
    assert "NameError" in other["outputs"][0]["logs"]


@requirement("R122")
async def test_container_is_reused_by_conversation_or_id() -> None:
    needs("bubblewrap")
    script = [*scripts("x = 5"), *scripts("x"), *scripts("x * 2")]
    async with FakeProvider(script) as fake, agent_of(fake, CodeInterpreter(reuse_container=True)) as agent:
        chat = Chat(agent)
        first = await chat.send("one")
        second = await chat.send("two")
        assert results(list(second.parts))[0]["outputs"] == [{"type": "logs", "logs": "5\n"}]
        async with agent_of(fake, CodeInterpreter(container_id=first.container_id)) as chat.agent:
            third = await chat.send("three")
    assert third.tool_results[0].result["outputs"] == [{"type": "logs", "logs": "10\n"}]


@requirement("R122")
async def test_lost_container_is_replaced_with_note_and_files() -> None:
    needs("bubblewrap")
    codes = [
        "open('a.txt', 'w').write('kept')\nx = 1",
        "import os\nos._exit(1)",
        "print(open('a.txt').read(), 'x' in dir())",
    ]
    async with FakeProvider(scripts(*codes)) as fake, agent_of(fake) as agent:
        parts = await parts_of(agent)
    check_stream(parts)
    first, died, last = results(parts)
    assert [part.kind for part in parts if isinstance(part, Custom)] == ["sidestream.container-replaced"]
    assert (died["status"], last["status"]) == ("failed", "completed")
    assert last["container_id"] != first["container_id"] == died["container_id"]
    assert "is gone" in last["notes"][0]
    assert last["outputs"][0]["logs"].endswith("False\n")


@requirement("R122")
async def test_attached_files_are_in_working_folder() -> None:
    needs("bubblewrap")
    prompt = ChatMessage("user", (TextPart("sum it"), DataPart(b"1\n2\n", "text/csv", "n.csv")))
    async with FakeProvider(scripts("sum(map(int, open('/mnt/data/n.csv')))")) as fake, agent_of(fake) as agent:
        (result,) = results(await parts_of(agent, prompt))
    assert result["outputs"] == [{"type": "logs", "logs": "3\n"}]
    assert "files" not in result
    async with (
        FakeProvider(scripts("1")) as fake,
        agent_of(fake, CodeInterpreter(file_ids=["m.csv"], execution="here")) as agent,
    ):
        (refused,) = results(await parts_of(agent, prompt))
    assert "m.csv" in refused["message"]


async def test_figure_is_file_outside_model_context() -> None:
    needs("bubblewrap")
    async with (
        FakeProvider(scripts("import matplotlib.pyplot as plt\nplt.plot([1, 2])")) as fake,
        agent_of(fake) as agent,
    ):
        parts = await parts_of(agent)
        sent = fake.requests[1].json["messages"][-1]["content"]
    (file,) = [part for part in parts if part.type == "file"]
    assert (file.mime_type, file.name) == ("image/png", "output_1_0.png")
    assert len(str(sent)) < 2000


async def test_unclosed_agent_leaves_no_container() -> None:
    needs("bubblewrap")
    async with FakeProvider(scripts("1")) as fake:
        agent = agent_of(fake)
        await agent.send("go")
        del agent
        gc.collect()


def test_sync_agent_keeps_container_between_sends() -> None:
    needs("bubblewrap")
    import asyncio
    import threading

    ready, over = threading.Event(), threading.Event()
    address: list[str] = []

    def serve() -> None:
        async def main() -> None:
            async with FakeProvider([*scripts("x = 5"), *scripts("x")]) as fake:
                address.append(fake.base_url)
                ready.set()
                await asyncio.to_thread(over.wait, 60)

        asyncio.run(main())

    thread = threading.Thread(target=serve)
    thread.start()
    ready.wait(60)
    try:
        tools = [CodeInterpreter(reuse_container=True)]
        agent = Agent("openai", base_url=address[0], api_key="k", server_side_tools=tools)
        chat = Chat(agent)
        chat.send_sync("one")
        second = chat.send_sync("two")
        asyncio.run(agent.aclose())
    finally:
        over.set()
        thread.join(110)
    assert second.tool_results[0].result["outputs"] == [{"type": "logs", "logs": "5\n"}]


@requirement("R122", "R194")
async def test_limits_and_packages_are_settings_the_model_knows() -> None:
    needs("bubblewrap")
    tool = CodeInterpreter(timeout_s=5, memory_mb=512, disk_mb=8, max_file_mb=1, max_output_kb=1, packages=["msgspec"])
    code = "print('x' * 3000)\nopen('big.bin', 'wb').write(b'0' * 2_000_000)\nopen('huge.bin', 'wb').write(b'0' * 9_000_000)"
    async with FakeProvider(scripts("import msgspec", code, "b'0' * 600_000_000", "while True: pass")) as fake:
        async with agent_of(fake, tool) as agent:
            first, second, third, last = results(await parts_of(agent))
        (spec,) = fake.requests[0].json["tools"]
    described = spec["function"]["description"]
    assert all(text in described for text in ("msgspec", "numpy", "5 s", "512 MiB", "8 MiB", "1 kB"))
    assert first["outputs"] == []
    assert "[cut: " in second["outputs"][0]["logs"]
    assert "File too large" in second["outputs"][0]["logs"] or "No space" in second["outputs"][0]["logs"]
    assert any("big.bin" in note and "not delivered" in note for note in second["notes"])
    assert "MemoryError" in third["outputs"][0]["logs"]
    assert last["status"] == "failed"
    assert any("5 s" in note for note in last["notes"])


async def test_missing_package_raises_before_any_request() -> None:
    async with FakeProvider([]) as fake, agent_of(fake, CodeInterpreter(packages=["no-such-package"])) as agent:
        with pytest.raises(ConfigurationError, match="pip install no-such-package"):
            await agent.send("go")
        assert not fake.requests


@requirement("R122")
async def test_notebook_habits_work_or_are_explained() -> None:
    needs("bubblewrap")
    codes = [
        "%matplotlib inline\n!pip install seaborn\nif True:\n    !ls\n6 * 7",
        "display('shown')\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])",
        "import no_such_module",
        "x = = 1",
    ]
    async with FakeProvider(scripts(*codes)) as fake, agent_of(fake) as agent:
        skipped, shown, missing, wrong = results(await parts_of(agent))
    logs = skipped["outputs"][0]["logs"]
    assert all(text in logs for text in ("nothing can be installed", "Figures are shown", "subprocess.run"))
    assert logs.endswith("42\n")
    assert shown["outputs"][0]["logs"].startswith("'shown'\n")
    assert [entry["type"] for entry in shown["outputs"]] == ["logs", "image"]
    assert "'no_such_module' is not installed in this sandbox" in missing["outputs"][0]["logs"]
    assert "SyntaxError" in wrong["outputs"][0]["logs"]


@requirement("R122")
async def test_data_packages_read_and_write_tables() -> None:
    needs("bubblewrap")
    for name in ("pandas", "pyarrow", "openpyxl"):
        pytest.importorskip(name)
    code = (
        "import pandas as pd\nframe = pd.DataFrame({'region': ['N', 'S'], 'units': [1, 2]})\n"
        "frame.to_parquet('t.parquet')\nframe.to_excel('t.xlsx', index=False)\n"
        "pd.read_parquet('t.parquet').units.sum() + pd.read_excel('t.xlsx').units.sum()"
    )
    async with FakeProvider(scripts(code)) as fake, agent_of(fake) as agent:
        (result,) = results(await parts_of(agent))
    assert "6" in result["outputs"][-1]["logs"], result
    assert result["files"] == ["/mnt/data/t.parquet", "/mnt/data/t.xlsx"]


async def test_provider_only_settings_are_refused() -> None:
    async with FakeProvider([]) as fake:
        with pytest.raises(UnsupportedError):
            await agent_of(fake, CodeInterpreter(network=Network(allowed_domains=["a.com"]))).send("x")


async def test_unknown_sandbox_raises_before_any_request() -> None:
    async with FakeProvider([]) as fake:
        with pytest.raises(ConfigurationError, match="known: auto, bubblewrap"):
            await agent_of(fake, CodeInterpreter(sandbox="docker")).send("x")
        assert not fake.requests


@requirement("R122")
async def test_code_without_sandbox_is_not_run_and_error_names_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sidestream.portable.sandbox import bubblewrap

    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(bubblewrap, "programs", lambda: ())
    monkeypatch.setattr(bubblewrap, "_working", {})
    async with FakeProvider(scripts("print('ran')")) as fake, agent_of(fake) as agent:
        (result,) = results(await parts_of(agent))
    assert 'pip install "sidestream[sandbox]"' in result["message"]
    assert "ran" not in str(result)


@requirement("R122")
@pytest.mark.parametrize(
    "tool",
    [
        {"name": NAME, "sandbox": "none"},
        {"name": "shell", "workspace": "/", "require_approval": "never"},
        {"name": "apply_patch", "workspace": "/"},
        {"name": "file_search", "stores": ["/etc"]},
    ],
)
def test_server_request_cannot_set_folders_or_disable_isolation(tool: dict[str, Any]) -> None:
    from sidestream.durable.log.jobs import Job

    agent = Agent("openai", api_key="k")
    with pytest.raises(ConfigurationError, match="a request cannot use these settings"):
        Job(agent="openai", tools=(tool,)).call_settings(agent)
    named = Job(agent="openai", tools=({"name": NAME, "memory_limit": "1g"},)).call_settings(agent)
    assert named["server_side_tools"] == [CodeInterpreter(memory_limit="1g")]
