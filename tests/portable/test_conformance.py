"""The same cases hosted and here, compared part by part.

Hosted: a script or a recording of a provider. Here: a script of Chat Completions, whose provider hosts nothing, and the
real tools. `portable_compare.ALLOWED` is the whole list of differences.
"""

import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from requirements import requirement
from sidestream import (
    Agent,
    ApplyPatch,
    ChatResult,
    CodeInterpreter,
    FileSearch,
    ImageGeneration,
    Limits,
    Memory,
    ProgrammaticToolCalling,
    ServerSideTool,
    Shell,
    StreamPart,
    ToolSearch,
    WebFetch,
    WebSearch,
    tool,
)
from sidestream.portable.here import MODULES
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    MessagesScript,
    Recording,
    ReplayTransport,
    Reply,
    ResponsesScript,
    check_stream,
    recorded,
)
from support.portable_compare import ALLOWED, Compared, compared, fields_of, file_kind, without
from support.sandboxes import needs
from support.web_pages import Site, page, serve

RIVERS = "https://rivers.example/rhine"
SENTENCE = "The Rhine is 1,230 km long."
FILE = "rhine.txt"
PIXEL = b"\x89PNG\r\n\x1a\nimage"
DIFF = "+## Shopping\n+\n+- Milk\n"
OUTPUT = {"stdout": "42\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}


@tool(defer_loading=True)
def get_weather(city: str) -> str:
    """Reports the weather of a city."""
    return f"sunny in {city}"


def cited(**annotation: Any) -> ResponsesScript:
    return ResponsesScript().text(SENTENCE, annotations=[annotation])


class World(Struct, frozen=True):
    """What the tools that run here work on."""

    folder: Path
    site: Site

    def put(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return str(path.parent)


class Case(Struct, frozen=True, kw_only=True):
    """One call, hosted and here."""

    here: Callable[[World], ServerSideTool]
    arguments: dict[str, Any]
    hosted: Callable[[], Reply]
    hosted_tool: ServerSideTool | None = None
    provider: str = "openai-responses"
    answer: str = "done"
    """What the model here says; a marker of a citation in it becomes a source."""
    tools: tuple[Any, ...] = ()
    needs_sandbox: bool = False
    compares_events: bool = True
    """False: the provider's own events are of another form (`ALLOWED["events"]`)."""
    is_answered_here: bool = False
    """True: the hosted call is left to the client, so its result is ours in both runs."""


def shell_script() -> ResponsesScript:
    command = "echo 42"
    action = {"commands": [command], "max_output_length": None, "timeout_ms": None}
    environment = {"type": "container_reference", "container_id": "cntr_1"}
    call = {"type": "shell_call", "status": "completed", "call_id": "c1", "action": action, "environment": environment}
    result = {"type": "shell_call_output", "status": "completed", "call_id": "c1", "output": [OUTPUT]}
    commands = [{"type": f"response.shell_call_command.{stage}", "command_index": 0} for stage in ("added", "done")]
    delta = {"type": "response.shell_call_command.delta", "command_index": 0, "delta": command}
    content = {"type": "response.shell_call_output_content.delta", "command_index": 0, "delta": {"stdout": "42\n"}}
    done = {"type": "response.shell_call_output_content.done", "command_index": 0, "output": [OUTPUT]}
    return (
        ResponsesScript()
        .item(call, commands[0] | {"command": ""}, delta, commands[1] | {"command": command}, prefix="sh")
        .item(result, content, done, prefix="sho")
        .text("done")
    )


def search_script() -> ResponsesScript:
    found = {"type": "function", "name": "get_weather", "description": "Reports the weather of a city."}
    call = {
        "type": "tool_search_call",
        "status": "completed",
        "execution": "server",
        "arguments": {"paths": ["weather"]},
    }
    output = {"type": "tool_search_output", "status": "completed", "execution": "server", "tools": [found]}
    return ResponsesScript().item(call, prefix="tsc").item(output, prefix="tso").text("done")


def program_script() -> ResponsesScript:
    call = {"type": "program", "call_id": "p1", "code": "print(6*7)", "fingerprint": "f"}
    output = {"type": "program_output", "status": "completed", "call_id": "p1", "result": "42\n"}
    return ResponsesScript().item(call, prefix="cm").item(output, prefix="cmo").text("done")


def patch_script() -> ResponsesScript:
    operation = {"type": "create_file", "path": "list.md", "diff": DIFF}
    call = {"type": "apply_patch_call", "status": "completed", "call_id": "a1", "operation": operation}
    delta, done = ({"type": f"response.apply_patch_call_operation_diff.{stage}"} for stage in ("delta", "done"))
    events = delta | {"delta": DIFF}, done | {"diff": DIFF}
    return ResponsesScript().item(call, *events, prefix="apc", operation=operation | {"diff": ""})


CASES: dict[str, Case] = {
    "web_search": Case(
        here=lambda world: WebSearch(engine=f"searxng:{world.site.url('')}"),
        hosted=lambda: (
            ResponsesScript()
            .web_search("length of the rhine", sources=[RIVERS])
            .text(
                SENTENCE,
                annotations=[
                    {"type": "url_citation", "url": RIVERS, "title": "Rhine", "start_index": 0, "end_index": 26}
                ],
            )
            .reply()
        ),
        arguments={"query": "length of the rhine"},
        answer="The Rhine is 1,230 km long [cite:1].",
    ),
    "file_search": Case(
        here=lambda world: FileSearch(stores=[world.put(f"docs/{FILE}", SENTENCE)]),
        hosted_tool=FileSearch(stores=["vs_1"]),
        hosted=lambda: (
            ResponsesScript()
            .file_search(
                "rhine",
                results=[{"file_id": "f", "filename": FILE, "score": 1.0, "text": SENTENCE, "attributes": {}}],
            )
            .text(
                SENTENCE,
                annotations=[{"type": "file_citation", "file_id": "f", "filename": FILE, "index": 26}],
            )
            .reply()
        ),
        arguments={"queries": ["rhine"]},
        answer="The Rhine is 1,230 km long [cite:1].",
    ),
    "web_fetch": Case(
        here=lambda world: WebFetch(allow_hosts=[world.site.host], approval="run"),
        provider="anthropic",
        hosted=lambda: MessagesScript().web_fetch(RIVERS, SENTENCE, title="Rhine").text("done").reply(),
        arguments={"url": "SITE/rhine"},
        compares_events=False,
    ),
    "code_interpreter": Case(
        here=lambda world: CodeInterpreter(),
        hosted=lambda: ResponsesScript().code_interpreter(["print(", "6*7)"], logs="42\n").text("done").reply(),
        arguments={"code": "print(6*7)"},
        needs_sandbox=True,
    ),
    "shell": Case(
        here=lambda world: Shell(),
        hosted=lambda: shell_script().reply(),
        arguments={"commands": ["echo 42"]},
        needs_sandbox=True,
    ),
    "programmatic_tool_calling": Case(
        here=lambda world: ProgrammaticToolCalling(),
        hosted=lambda: program_script().reply(),
        arguments={"code": "print(6*7)"},
        needs_sandbox=True,
    ),
    "apply_patch": Case(
        here=lambda world: ApplyPatch(workspace=world.put("here/other.md", ""), require_approval="never"),
        hosted=lambda: patch_script().reply(),
        arguments={"type": "create_file", "path": "list.md", "diff": DIFF},
        is_answered_here=True,
    ),
    "tool_search": Case(
        here=lambda world: ToolSearch(),
        hosted=lambda: search_script().reply(),
        arguments={"query": "weather"},
        tools=(get_weather,),
    ),
    "memory": Case(
        here=lambda world: Memory(),
        provider="anthropic",
        hosted=lambda: MessagesScript().tool_use("memory", {"command": "view", "path": "/memories"}).reply(),
        arguments={"command": "view", "path": "/memories"},
        is_answered_here=True,
    ),
    "image_generation": Case(
        here=lambda world: ImageGeneration(via="openai-responses", partial_images=1),
        hosted=lambda: ResponsesScript().image(PIXEL, partials=1).text("done").reply(),
        arguments={"prompt": "a cat"},
    ),
}


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World]:
    monkeypatch.setenv("SIDESTREAM_INDEX", str(tmp_path / "index.db"))
    hit = {"url": RIVERS, "title": "Rhine", "content": SENTENCE}
    pages = {
        "/search": web.json_response({"results": [hit]}),
        "/rhine": page(f"<title>Rhine</title><p>{SENTENCE}</p>"),
    }
    async with serve(pages) as site:
        yield World(tmp_path, site)


async def ran(agent: Agent) -> tuple[list[StreamPart], ChatResult[str]]:
    """The parts of one run, and the result of another like it."""
    async with agent.stream("go") as run:
        parts = [part async for part in run]
    check_stream(parts)
    return parts, await agent.send("go")


async def hosted_run(case: Case, world: World) -> tuple[list[StreamPart], ChatResult[str]]:
    config = case.hosted_tool or type(case.here(world))()
    replies = [case.hosted()]
    if case.is_answered_here:
        config = case.here(world)
        if isinstance(config, ApplyPatch):
            config = ApplyPatch(workspace=world.put("hosted/other.md", ""), require_approval="never")
        script = ResponsesScript() if case.provider == "openai-responses" else MessagesScript()
        replies.append(script.text("done").reply())
    async with FakeProvider(replies * 2) as fake:
        agent = Agent(
            case.provider, base_url=fake.base_url, api_key="k", server_side_tools=[config], tools=[*case.tools]
        )
        return await ran(agent)


async def here_run(
    key: str,
    case: Case,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[StreamPart], ChatResult[str]]:
    arguments = json.loads(json.dumps(case.arguments).replace("SITE", world.site.url("")))
    calls = [ChatScript().tool_call(key, arguments).reply(), ChatScript().text(case.answer).reply()]
    async with FakeProvider([case.hosted()] * 2) as delegate, FakeProvider(calls * 2) as fake:
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", delegate.base_url)
        config = case.here(world)
        async with Agent(
            "groq:m", base_url=fake.base_url, api_key="k", server_side_tools=[config], tools=[*case.tools]
        ) as agent:
            return await ran(agent)


def check_same(here: Compared, hosted: Compared, *, events: bool = True) -> None:
    """Both are the same but for `ALLOWED`."""
    left_out = () if events else ("event ",)
    assert without(here.order, left_out) == without(hosted.order, left_out)
    assert without(here.input_parts, left_out) == without(hosted.input_parts, left_out)
    assert here.call.tool == hosted.call.tool
    if events:
        assert here.streamed == hosted.streamed
        assert len(here.items) == len(hosted.items)
        assert all(fields <= found for found, fields in zip(here.items, hosted.items, strict=True))
    if isinstance(hosted.result, dict):
        assert fields_of(hosted.result) <= here.result.keys()
        assert here.result.get("status") == hosted.result.get("status")


@requirement("R121")
@pytest.mark.parametrize("key", CASES)
async def test_local_tool_has_parts_of_hosted_tool(key: str, world: World, monkeypatch: pytest.MonkeyPatch):
    case = CASES[key]
    if case.needs_sandbox:
        needs("bubblewrap")
    hosted_parts, hosted_result = await hosted_run(case, world)
    (world.folder / "here" / "list.md").unlink(missing_ok=True)
    here_parts, here_result = await here_run(key, case, world, monkeypatch)
    hosted, here = compared(hosted_parts, key), compared(here_parts, key)
    check_same(here, hosted, events=case.compares_events)
    for name in ("outputs", "output", "content", "result", "type") if isinstance(hosted.result, dict) else ():
        assert _plain(here.result.get(name)) == _plain(hosted.result.get(name))
    assert here.sources == hosted.sources
    assert here.annotations == hosted.annotations
    # The same program reads both: metadata under the same key, files and text in the last message, runs by tool.
    if case.compares_events:
        types = {event["type"] for event in hosted_result.metadata.get(key, [])}
        assert types <= {event["type"] for event in here_result.metadata.get(key, [])}
    assert [file_kind(file.mime_type) for file in here_result.files] == [
        file_kind(file.mime_type) for file in hosted_result.files
    ]
    assert seen_by_program(here_result) == seen_by_program(hosted_result)
    assert [type(part).__name__ for part in here_result.messages[-1].parts] == [
        type(part).__name__ for part in hosted_result.messages[-1].parts
    ]


def seen_by_program(result: ChatResult[str]) -> dict[str, Any]:
    """The portable view of a result: stages and typed results of its calls, and what they wrote."""
    return {
        "stages": [(event.tool, event.stage) for event in result.tool_events],
        "written": [(piece.tool, piece.kind, piece.text) for piece in result.tool_text if piece.kind != "input"],
        "results": [
            (type(run.typed), run.status, run.queries, run.code, run.logs, run.exit_code, run.error)
            for run in result.tool_runs
        ],
        "found": [[(hit.url or "").rpartition("/")[2] for hit in run.results] for run in result.tool_runs],
        "files": [len(run.files) for run in result.tool_runs],
    }


def _plain(value: Any) -> Any:
    """A value without fields that are null."""
    if isinstance(value, dict):
        return {name: _plain(content) for name, content in value.items() if content is not None}
    return value


RECORDED: dict[str, tuple[str, str]] = {
    "web_search": ("openai-responses", "v-openai-web-search-tool.1-stream"),
    "file_search": ("openai-responses", "p-test_openai_responses_model_file_search_tool_stream"),
    "code_interpreter": ("openai-responses", "v-openai-code-interpreter-tool.1-stream"),
    "shell": ("openai-responses", "v-openai-shell-container.1-stream"),
    "tool_search": ("openai-responses", "v-openai-tool-search.1-stream"),
    "image_generation": ("openai-responses", "v-openai-image-generation-tool.1-stream"),
    "apply_patch": ("openai-responses", "v-openai-apply-patch-tool-delete.1-stream"),
    "web_fetch": ("anthropic", "v-anthropic-web-fetch-tool.1-stream"),
    "memory": ("anthropic", "p-test_anthropic_memory_tool"),
}
"""Tool → what a provider really sent. The programs of programmatic calls are JavaScript there, so they are not compared."""


@requirement("R121")
@pytest.mark.parametrize("key", RECORDED)
async def test_local_tool_has_parts_of_recorded_call(
    key: str, world: World, monkeypatch: pytest.MonkeyPatch, recordings: Path
):
    case, (provider, name) = CASES[key], RECORDED[key]
    if case.needs_sandbox:
        needs("bubblewrap")
    recording = Recording.load(recordings / provider / f"{name}.json")
    config = case.here(world) if case.is_answered_here else None
    for folder in ("here", "hosted"):
        world.put(f"{folder}/obsolete.txt", "old")
    if isinstance(config, ApplyPatch):
        config = ApplyPatch(workspace=str(world.folder / "hosted"), require_approval="never")
    agent = Agent(
        provider,
        transport=ReplayTransport(recording),
        api_key="k",
        server_side_tools=[config] if config is not None else [],
        limits=Limits(max_steps=1),
    )
    async with agent.stream("go") as run:
        hosted = compared([part async for part in run], key)
    given = recorded_arguments(key, case, hosted.call.input)
    case = replace(case, arguments=given, hosted=lambda: recorded(recording)[0])
    parts, _ = await here_run(key, case, world, monkeypatch)
    check_same(compared(parts, key), hosted, events=case.compares_events)


def recorded_arguments(key: str, case: Case, recorded_input: Any) -> dict[str, Any]:
    """The same call as a function's arguments (`ALLOWED["input"]`)."""
    given = {name: value for name, value in recorded_input.items() if name in case.arguments}
    return case.arguments if key == "web_fetch" or not given else given


def test_every_local_tool_is_compared():
    assert CASES.keys() == MODULES.keys() - {"x_search"}  # Only xAI can search X: here it is delegated.
    assert all(reason for reason in ALLOWED.values())
