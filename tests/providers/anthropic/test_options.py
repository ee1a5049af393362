"""Every option and every field of a tool reaches the wire, or is refused."""

import json
from typing import Any

import pytest

from providers.anthropic.messages_wire import MODEL
from requirements import requirement
from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.messages.message import ChatMessage, DataPart
from sidestream.output import OutputSchema
from sidestream.providers.anthropic import (
    PROVIDER,
    Advisor,
    AnthropicFunctionOptions,
    AnthropicOptions,
    AnthropicServerSideTool as Tool,
    AnthropicThinking,
    AnthropicTool,
    Browser,
    ClearThinking,
    ClearToolUses,
    Compact,
    Compaction,
    Memory,
    Skill,
    TaskBudget,
    TextEditor,
)
from sidestream.providers.anthropic.encode.tools import SERVER_SIDE_TOOLS
from sidestream.providers.anthropic.options import KINDS, tools_of
from sidestream.providers.protocol import ModelRequest, Settings
from sidestream.tools.configs import unsent_fields
from sidestream.tools.server_side import (
    CodeInterpreter,
    ComputerUse,
    ImageGeneration,
    LocalShell,
    Location,
    MCPApproval,
    Network,
    ProgrammaticToolCalling,
    RemoteMCP,
    ServerSideTool,
    ToolFilter,
    ToolSearch,
    WebFetch,
    WebSearch,
)
from sidestream.tools.spec import ToolSpec

SPEC = ToolSpec("get_weather", "Weather of a city.", {"type": "object", "properties": {}})
USER = ChatMessage.user("Hello", DataPart(b"text", "text/plain"))
SCHEMA = OutputSchema("City", {"type": "object", "properties": {}})


def call(options: Any = None, *server_side_tools: ServerSideTool, model: str = MODEL, **fields: Any) -> Any:
    chat = PROVIDER.chat_model(model, Settings(api_key="k", base_url="https://anthropic.example"))
    request = ModelRequest(
        messages=(USER,), tools=(SPEC,), server_side_tools=server_side_tools, options=options, **fields
    )
    return chat.encode(request).call


def wire(options: Any = None, *server_side_tools: ServerSideTool, **fields: Any) -> tuple[bytes | None, dict[str, str]]:
    """What would be sent: body and headers."""
    made = call(options, *server_side_tools, output_schema=SCHEMA, **fields)
    return made.body, made.headers


def betas(options: Any = None, *server_side_tools: ServerSideTool, model: str = MODEL) -> list[str]:
    return [
        beta
        for beta in call(options, *server_side_tools, model=model).headers.get("anthropic-beta", "").split(",")
        if beta
    ]


def tool_types(*server_side_tools: ServerSideTool, model: str = MODEL, options: Any = None) -> list[str]:
    return [
        tool["type"]
        for tool in json.loads(call(options, *server_side_tools, model=model).body)["tools"]
        if "type" in tool
    ]


# Field → a value other than its default; a pair where the field means something only beside others.
OPTIONS: dict[str, Any] = {
    "max_tokens": 100,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "stop_sequences": ["END"],
    "user_id": "user-1",
    "thinking": AnthropicThinking(),
    "effort": "low",
    "task_budget": TaskBudget(total=1000, remaining=10),
    "tool_choice": "any",
    "parallel_tool_calls": False,
    "prompt_cache": "5m",
    "cache_control": "1h",
    "service_tier": "standard_only",
    "speed": "fast",
    "inference_geo": "eu",
    "previous_message_id": "msg_1",
    "context_management": [ClearToolUses(exclude_tools=["f"]), ClearThinking(keep=2), Compact(trigger_tokens=1000)],
    "compaction": Compaction(instructions="Short."),
    "fallbacks": ["claude-opus-5", {"model": "claude-sonnet-5", "max_tokens": 5}],
    "fallback_credit_token": "token",
    "thread": "create",
    "skills": [Skill(id="pptx", version="latest")],
    "document_citations": True,
    "typed_output": "tool",
    "function_options": {"get_weather": AnthropicFunctionOptions(defer_loading=True)},
    "tool_versions": ({"web_search": "20250305"}, Tool.WEB_SEARCH),
    "betas": ["context-1m-2025-08-07"],
    "chooses_betas": (False, Tool.COMPUTER_USE),
    "user_profile_id": "prof_1",
    "workspace_id": "ws_1",
    "extra_body": {"brand_new": 1},
    "extra_headers": {"X-Trace": "1"},
    "server_side_tools": {Tool.WEB_SEARCH},
    "web_search_config": (WebSearch(max_uses=2), Tool.WEB_SEARCH),
    "web_fetch_config": (WebFetch(citations=True), Tool.WEB_FETCH),
    "code_interpreter_config": (CodeInterpreter(file_ids=["file_1"]), Tool.CODE_INTERPRETER),
    "tool_search_config": (ToolSearch(version="regex"), Tool.TOOL_SEARCH),
    "mcp_config": (RemoteMCP(label="docs", url="https://mcp.example", require_approval="never"), Tool.MCP),
    "memory_config": (Memory(version="20300101"), Tool.MEMORY),
    "computer_use_config": (ComputerUse(display_width=800), Tool.COMPUTER_USE),
    "text_editor_config": (TextEditor(max_characters=10), Tool.TEXT_EDITOR),
    "browser_config": (Browser(disable=("type",)), Tool.BROWSER),
    "advisor_config": (Advisor(model="claude-opus-5-5"), Tool.ADVISOR),
    "tool_configs": [AnthropicTool(type="browser_toolset_20260801", config={"configs": {}})],
}

IN_CONVERSATIONS = {"inline_tools": "test_tool_changes"}
"""Options that show in longer conversations only → the module that tries them."""

CALLERS = ["direct", "programmatic"]

# Tool → (what it is made from at least, field → value or the error that it meets).
TOOLS: dict[type[ServerSideTool], tuple[dict[str, Any], dict[str, Any]]] = {
    WebSearch: (
        {},
        {
            "context_size": UnsupportedError("high"),
            "location": Location(city="Bern", region="BE", country="CH", timezone="Europe/Zurich"),
            "allowed_domains": ["a.example"],
            "blocked_domains": ["a.example"],
            "external_web_access": UnsupportedError(False),
            "max_uses": 3,
            "content_types": UnsupportedError(["image"]),
            "version": "20250305",
        },
    ),
    WebFetch: (
        {},
        {
            "allowed_domains": ["a.example"],
            "blocked_domains": ["a.example"],
            "max_uses": 3,
            "max_content_tokens": 100,
            "citations": True,
            "version": "20250910",
        },
    ),
    CodeInterpreter: (
        {},
        {
            "container_id": "container_1",
            "file_ids": ["file_1"],
            "memory_limit": UnsupportedError("4g"),
            "network": UnsupportedError(Network()),
            "allowed_callers": CALLERS,
            "version": "20250522",
        },
    ),
    ToolSearch: (
        {},
        {
            "local": UnsupportedError(True),
            "description": UnsupportedError("x"),
            "parameters": UnsupportedError({"type": "object"}),
            "version": "regex",
        },
    ),
    RemoteMCP: (
        {"label": "docs", "url": "https://mcp.example", "require_approval": "never"},
        {
            "label": "wiki",
            "url": "https://other.example",
            "description": UnsupportedError("x"),
            "require_approval": UnsupportedError("always"),
            "allowed_tools": ["ask"],
            "headers": UnsupportedError({"X": "1"}),
            "authorization": "token",
            "defer_loading": True,
            "allowed_callers": UnsupportedError(CALLERS),
        },
    ),
    ComputerUse: (
        {},
        {"display_width": 800, "display_height": 600, "environment": UnsupportedError("linux")},
    ),
    LocalShell: ({}, {}),
    ProgrammaticToolCalling: ({}, {}),
    Memory: ({}, {"version": "20300101"}),
    TextEditor: ({}, {"max_characters": 10, "version": "20250429"}),
    Browser: ({}, {"enable": ("read_console",), "disable": ("type",), "defer_loading": True, "version": "20300101"}),
    Advisor: (
        {"model": "claude-opus-5"},
        {"model": "claude-opus-5-5", "max_uses": 2, "max_tokens": 100, "version": "20300101"},
    ),
    AnthropicTool: (
        {"type": "x_1"},
        {"type": "y_2", "name": "x", "config": {"a": 1}, "betas": ("x-beta",)},
    ),
}
ELSEWHERE = {
    (CodeInterpreter, "reuse_container"): "needs a history: see the tests of containers",
    (RemoteMCP, "connector"): "excludes url",
    (RemoteMCP, "tunnel"): "excludes url",
    (RemoteMCP, "transport"): "is for this machine; Anthropic finds out",
}


@requirement("R46", "R51")
def test_every_option_is_covered():
    assert OPTIONS.keys() | IN_CONVERSATIONS.keys() == set(AnthropicOptions.__struct_fields__)


@requirement("R46", "R51")
@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_option_changes_request(name: str):
    value, switch = OPTIONS[name] if isinstance(OPTIONS[name], tuple) else (OPTIONS[name], None)
    beside = {"server_side_tools": {switch}} if switch else {}
    # These two tools cannot be switched on without their configs.
    bare = AnthropicOptions() if name in ("advisor_config", "mcp_config") else AnthropicOptions(**beside)
    assert wire(AnthropicOptions(**{name: value}, **beside)) != wire(bare)


@requirement("R46")
def test_every_tool_field_is_covered():
    assert TOOLS.keys() == SERVER_SIDE_TOOLS.keys()
    for kind, (_, fields) in TOOLS.items():
        skipped = {name for tool, name in ELSEWHERE if tool is kind}
        # Where a tool runs is decided before the request is made.
        assert fields.keys() | skipped == set(kind.__struct_fields__) - unsent_fields(kind), kind


@requirement("R46")
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, (_, fields) in TOOLS.items() for name in fields])
def test_every_tool_field_changes_request_or_raises(kind: type[ServerSideTool], name: str):
    least, fields = TOOLS[kind]
    value = fields[name]
    if isinstance(value, UnsupportedError):
        with pytest.raises(UnsupportedError):
            wire(None, kind(**{**least, name: value.args[0]}))
    else:
        assert wire(None, kind(**{**least, name: value})) != wire(None, kind(**least))


def test_unsupported_mcp_server_settings_raise():
    for tool in (
        RemoteMCP(label="x", connector="connector_x"),
        RemoteMCP(label="x", tunnel="t"),
        RemoteMCP(label="x", url="https://x.example", require_approval=MCPApproval(always=["a"])),
        RemoteMCP(label="x", url="https://x.example"),
        RemoteMCP(
            label="x", url="https://x.example", require_approval="never", allowed_tools=ToolFilter(read_only=True)
        ),
    ):
        with pytest.raises(UnsupportedError):
            wire(None, tool)


@requirement("R51")
def test_enum_members_and_portable_tools_are_equivalent():
    config = WebSearch(max_uses=2)
    options = AnthropicOptions(server_side_tools={Tool.WEB_SEARCH, Tool.MEMORY}, web_search_config=config)
    assert tools_of(options) == (config, Memory())
    assert wire(options) == wire(None, config, Memory())
    assert {tool: kind.key for tool, kind in KINDS.items()} == {tool: tool.value for tool in Tool}


@requirement("R51")
def test_explicit_tool_config_is_sent_verbatim():
    entry = AnthropicTool(type="web_search_20260318", name="web_search", config={"response_inclusion": "excluded"})
    body = call(AnthropicOptions(tool_configs=[entry])).body
    assert b'{"type":"web_search_20260318","name":"web_search","response_inclusion":"excluded"}' in body


@requirement("R51")
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("claude-3-7-sonnet-20250219", ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825"]),
        ("claude-sonnet-4-20250514", ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825"]),
        ("claude-sonnet-4-5", ["web_search_20250305", "web_fetch_20250910", "code_execution_20260120"]),
        ("claude-opus-4-6", ["web_search_20260209", "web_fetch_20260209", "code_execution_20260120"]),
        ("claude-haiku-5-5", ["web_search_20260318", "web_fetch_20260318", "code_execution_20260120"]),
        ("claude-mythos-preview", ["web_search_20260318", "web_fetch_20260318", "code_execution_20260120"]),
        ("smollm2", ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825"]),
    ],
)
def test_tool_version_follows_model(model: str, expected: list[str]):
    assert tool_types(WebSearch(), WebFetch(), CodeInterpreter(), model=model) == expected


@requirement("R51")
def test_tool_version_can_be_pinned():
    assert tool_types(WebSearch(version="20250305")) == ["web_search_20250305"]
    assert tool_types(WebSearch(version="web_search_20260209")) == ["web_search_20260209"]
    assert tool_types(WebSearch(), options=AnthropicOptions(tool_versions={"web_search": "1"})) == ["web_search_1"]


@requirement("R51")
@pytest.mark.parametrize(
    ("options", "tools", "expected"),
    [
        (None, (WebSearch(), CodeInterpreter(), WebFetch(), ToolSearch(), Memory()), []),
        (None, (RemoteMCP(label="d", url="https://d.example", require_approval="never"),), ["mcp-client-2025-11-20"]),
        (None, (ComputerUse(),), ["computer-use-2025-11-24"]),
        (None, (Advisor(model="claude-opus-5"),), ["advisor-tool-2026-03-01"]),
        (None, (AnthropicTool(type="x", betas=("x-1",)),), ["x-1"]),
        (AnthropicOptions(compaction=Compaction()), (), ["compact-2026-09-04"]),
        (
            AnthropicOptions(context_management=[Compact()], betas=["mine", "compact-2026-01-12"]),
            (),
            ["context-management-2025-06-27", "compact-2026-01-12", "mine"],
        ),
        (AnthropicOptions(chooses_betas=False, betas=["mine"]), (ComputerUse(),), ["mine"]),
        (AnthropicOptions(speed="fast"), (), ["fast-mode-2026-02-01"]),
        (AnthropicOptions(speed="standard"), (), []),
        (AnthropicOptions(thinking=AnthropicThinking(display="updates")), (), ["thinking-display-updates-2026-08-18"]),
        (
            AnthropicOptions(thinking=AnthropicThinking(prefix_mismatch="error")),
            (),
            ["thinking-binding-controls-2026-08-01"],
        ),
        (AnthropicOptions(task_budget=TaskBudget(total=5)), (), ["task-budgets-2026-03-13"]),
    ],
)
def test_beta_headers_follow_requested_features(options: Any, tools: tuple[ServerSideTool, ...], expected: list[str]):
    assert betas(options, *tools) == expected


def test_beta_headers_can_be_overridden():
    made = call(AnthropicOptions(extra_headers={"anthropic-beta": "only"}), ComputerUse())
    assert made.headers["anthropic-beta"] == "only"


def test_function_for_provider_tool_is_not_offered_twice():
    chat = PROVIDER.chat_model(MODEL, Settings(api_key="k"))
    request = ModelRequest(
        messages=(USER,),
        tools=(ToolSpec("memory", "", {"type": "object"}),),
        options=AnthropicOptions(server_side_tools={Tool.MEMORY}),
    )
    assert json.loads(chat.encode(request).call.body or b"")["tools"] == [{"type": "memory_20250818", "name": "memory"}]


@requirement("R46")
@pytest.mark.parametrize(
    "make",
    [
        lambda: AnthropicOptions(max_tokens=-1),
        lambda: AnthropicOptions(prompt_cache="2h"),  # type: ignore[arg-type]
        lambda: AnthropicOptions(web_search_config=WebSearch()),
        lambda: AnthropicThinking(type="enabled"),
        lambda: AnthropicThinking(budget_tokens=2000),
        lambda: tools_of(AnthropicOptions(server_side_tools={Tool.MCP})),
        lambda: wire(AnthropicOptions(max_tokens=1000, thinking=AnthropicThinking(type="enabled", budget_tokens=2000))),
        lambda: wire(AnthropicOptions(function_options={"none": AnthropicFunctionOptions()})),
        lambda: wire(None, WebSearch(allowed_domains=["a"], blocked_domains=["b"])),
        lambda: wire(None, WebSearch(), WebSearch(max_uses=1)),
        lambda: wire(None, ImageGeneration()),
        lambda: wire({"max_tokens": 5}),
    ],
)
def test_invalid_options_and_tools_raise(make: Any):
    with pytest.raises(ConfigurationError):
        make()


def test_thinking_budget_is_added_to_default_max_tokens():
    body = call(AnthropicOptions(thinking=AnthropicThinking(type="enabled", budget_tokens=2000))).body
    assert b'"max_tokens":6096' in body
