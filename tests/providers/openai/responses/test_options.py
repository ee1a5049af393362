from typing import Any

import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.messages.message import ChatMessage, DataPart
from sidestream.providers.openai.responses import (
    PROVIDER,
    AccessPrograms,
    ContextManagement,
    ImageContext,
    Moderation,
    OpenAIFunctionOptions,
    OpenAIResponsesOptions,
    OpenAIServerSideTool,
    PromptCache,
    PromptTemplate,
    Reasoning,
    ToolNamespace,
)
from sidestream.providers.openai.responses.encode.server_side import SERVER_SIDE_TOOLS
from sidestream.providers.protocol import ModelRequest, Settings
from sidestream.tools.configs import DomainSecret, unsent_fields
from sidestream.tools.server_side import (
    ApplyPatch,
    CodeInterpreter,
    Combination,
    Comparison,
    ComputerUse,
    CustomTool,
    FileSearch,
    HybridSearch,
    ImageGeneration,
    InlineSkill,
    LocalShell,
    LocalSkill,
    Location,
    MCPApproval,
    Network,
    ProgrammaticToolCalling,
    RemoteMCP,
    ServerSideTool,
    Shell,
    SkillReference,
    Svg,
    ToolFilter,
    ToolSearch,
    WebFetch,
    WebSearch,
)
from sidestream.tools.spec import ToolSpec

MODEL = PROVIDER.chat_model("gpt-5.6", Settings(api_key="sk-test", base_url="https://openai.example/v1"))
TOOL = ToolSpec("get_weather", "Weather of a city.", {"type": "object", "properties": {}})
USER = ChatMessage.user("Hello", DataPart(b"png", "image/png"))


def wire(options: Any = None, *server_side_tools: ServerSideTool) -> tuple[bytes | None, dict[str, str]]:
    """What would be sent: body and headers."""
    request = ModelRequest(messages=(USER,), tools=(TOOL,), server_side_tools=server_side_tools, options=options)
    call = MODEL.encode(request).call
    return call.body, call.headers


Tool = OpenAIServerSideTool

# Field → a value other than its default; a pair where the field means something only beside others.
OPTIONS: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_logprobs": 3,
    "max_output_tokens": 100,
    "max_tool_calls": 3,
    "parallel_tool_calls": False,
    "tool_choice": "required",
    "truncation": "auto",
    "store": False,
    "previous_response_id": "resp_1",
    "conversation": "conv_1",
    "include": ["message.input_image.image_url"],
    "reasoning": Reasoning(effort="low"),
    "verbosity": "low",
    "json_object": True,
    "metadata": {"team": "blue"},
    "service_tier": "flex",
    "prompt_cache_key": "key",
    "prompt_cache_options": PromptCache(ttl="12h"),
    "prompt_cache_retention": "24h",
    "safety_identifier": "user-1",
    "user": "user-1",
    "context_management": [ContextManagement(compact_threshold=1000)],
    "background": True,
    "moderation": Moderation(model="omni", input="block"),
    "image": ImageContext(context_compression="enabled"),
    "access_programs": AccessPrograms(cyber="standard"),
    "prompt": PromptTemplate(id="pmpt_1", version="2", variables={"city": "Bern"}),
    "include_obfuscation": True,
    "image_detail": "high",
    "function_options": {"get_weather": OpenAIFunctionOptions(defer_loading=True)},
    "namespaces": [ToolNamespace(name="weather", description="Weather", tools=["get_weather"])],
    "extra_body": {"brand_new": 1},
    "extra_headers": {"X-Trace": "1"},
    "organization": "org_1",
    "project": "proj_1",
    "server_side_tools": {Tool.WEB_SEARCH},
    "web_search_config": (WebSearch(context_size="low"), Tool.WEB_SEARCH),
    "image_generation_config": (ImageGeneration(partial_images=2), Tool.IMAGE_GENERATION),
    "file_search_config": (FileSearch(stores=["vs_1"]), Tool.FILE_SEARCH),
    "code_interpreter_config": (CodeInterpreter(file_ids=["file_1"]), Tool.CODE_INTERPRETER),
    "computer_use_config": (ComputerUse(environment="linux"), Tool.COMPUTER_USE),
    "mcp_config": (RemoteMCP(label="docs", url="https://mcp.example"), Tool.MCP),
    "shell_config": (Shell(local=True), Tool.SHELL),
    "apply_patch_config": (ApplyPatch(allowed_callers=["direct"]), Tool.APPLY_PATCH),
    "tool_search_config": (ToolSearch(local=True), Tool.TOOL_SEARCH),
    "custom_config": ([CustomTool(name="sql"), CustomTool(name="lisp")], Tool.CUSTOM),
}
NETWORK = Network(
    allowed_domains=["a.example"], domain_secrets=[DomainSecret(domain="a.example", name="KEY", value="v")]
)
CALLERS = ["direct", "programmatic"]

# Tool → (what it is made from at least, field → value). A dict as value holds the fields that it needs beside it.
TOOLS: dict[type[ServerSideTool], tuple[dict[str, Any], dict[str, Any]]] = {
    WebSearch: (
        {},
        {
            "context_size": "high",
            "location": Location(city="Bern", region="BE", country="CH", timezone="Europe/Zurich"),
            "allowed_domains": ["a.example"],
            "blocked_domains": UnsupportedError,
            "external_web_access": False,
            "max_uses": UnsupportedError,
            "content_types": {"content_types": ["image"], "version": "preview"},
            "version": "preview",
        },
    ),
    FileSearch: (
        {"stores": ["vs_1"]},
        {
            "stores": ["vs_1", "vs_2"],
            "max_results": 5,
            "ranker": "default-2024-11-15",
            "score_threshold": 0.5,
            "hybrid_search": HybridSearch(embedding_weight=1, text_weight=2),
            "filters": Combination(
                operator="or", filters=[Comparison(attribute="year", operator="in", value=[2020, 2021])]
            ),
        },
    ),
    CodeInterpreter: (
        {},
        {
            "container_id": "cntr_1",
            "reuse_container": True,
            "file_ids": ["file_1"],
            "memory_limit": "4g",
            "network": NETWORK,
            "allowed_callers": CALLERS,
            "version": UnsupportedError,
        },
    ),
    ImageGeneration: (
        {},
        {
            "partial_images": 3,
            "quality": "high",
            "size": "1536x1024",
            "output_format": "webp",
            "background": "transparent",
            "action": "edit",
            "moderation": "low",
            "compression": 50,
            "model": "gpt-image-2",
            "input_fidelity": "high",
            "mask_file_id": "file_1",
            "mask_url": "data:image/png;base64,AA==",
            "complexity": "high",
            "frame_count": 5,
            "frame_duration_ms": 100,
            "svg": Svg(model="gpt-5.6", effort="low"),
        },
    ),
    RemoteMCP: (
        {"label": "docs", "url": "https://mcp.example"},
        {
            "label": "wiki",
            "url": "https://other.example",
            "connector": {"connector": "connector_gmail", "url": None},
            "tunnel": {"tunnel": "tunnel_1", "url": None},
            "description": "Documents",
            "require_approval": MCPApproval(always=["delete"], never=ToolFilter(read_only=True)),
            "allowed_tools": ["read"],
            "headers": {"X-Key": "v"},
            "authorization": "token",
            "defer_loading": True,
            "allowed_callers": CALLERS,
        },
    ),
    Shell: (
        {},
        {
            "local": True,
            "container_id": "cntr_1",
            "file_ids": ["file_1"],
            "memory_limit": "4g",
            "network": Network(),
            "skills": [
                SkillReference(id="skill_1", version="2"),
                InlineSkill(name="a", description="b", archive=b"zip"),
            ],
            "allowed_callers": CALLERS,
        },
    ),
    LocalShell: ({}, {}),
    ApplyPatch: ({}, {"allowed_callers": CALLERS}),
    ComputerUse: ({}, {"display_width": 800, "display_height": 600, "environment": "mac"}),
    ToolSearch: (
        {},
        {
            "local": True,
            "description": "Finds tools",
            "parameters": {"parameters": {"type": "object"}},
            "version": UnsupportedError,
        },
    ),
    ProgrammaticToolCalling: ({}, {}),
    CustomTool: (
        {"name": "sql"},
        {
            "name": "lisp",
            "description": "Runs it",
            "syntax": {"syntax": "lark", "definition": "start: /a/"},
            "definition": {"syntax": "regex", "definition": "a+"},
            "asynchronous": True,
            "defer_loading": True,
            "allowed_callers": CALLERS,
        },
    ),
}
NESTED: dict[type[Any], dict[str, Any]] = {
    Reasoning: {"effort": "high", "summary": "auto", "context": "all_turns", "mode": "pro"},
    PromptCache: {"mode": "explicit", "ttl": "12h", "prewarm": True, "comparison_response_id": "resp_1"},
    OpenAIFunctionOptions: {
        "defer_loading": True,
        "asynchronous": True,
        "allowed_callers": ["direct"],
        "output_schema": {"type": "string"},
    },
}


@requirement("R46")
@pytest.mark.parametrize("field", OpenAIResponsesOptions.__struct_fields__)
def test_every_option_changes_request(field: str):
    value = OPTIONS[field]
    if isinstance(value, tuple):
        value, member = value
        with_it = OpenAIResponsesOptions(server_side_tools={member}, **{field: value})
        if member not in (Tool.FILE_SEARCH, Tool.MCP, Tool.CUSTOM):
            assert wire(with_it) != wire(OpenAIResponsesOptions(server_side_tools={member}))
    else:
        with_it = OpenAIResponsesOptions(**{field: value})
    assert wire(with_it) != wire(OpenAIResponsesOptions()) == wire()


def kwargs_of(field: str, value: Any) -> dict[str, Any]:
    if field in ("headers", "parameters") and not (isinstance(value, dict) and field in value):
        return {field: value}
    return value if isinstance(value, dict) else {field: value}


@requirement("R46")
@pytest.mark.parametrize(("tool", "field"), [(tool, field) for tool in SERVER_SIDE_TOOLS for field in TOOLS[tool][1]])
def test_every_tool_field_changes_request_or_raises(tool: type[ServerSideTool], field: str):
    base, samples = TOOLS[tool]
    value = samples[field]
    if value is UnsupportedError:
        with pytest.raises(UnsupportedError, match=field):
            wire(None, tool(**base, **{field: {"max_uses": 3, "version": "1"}.get(field, ["a.example"])}))
        return
    if field == "reuse_container":
        session = {"_responses_session": {"response_id": "resp_1", "container_id": "cntr_9"}}
        request = ModelRequest(
            messages=(USER, ChatMessage.model("Hi", metadata=session), USER),
            server_side_tools=(CodeInterpreter(reuse_container=True),),
        )
        assert b'"container":"cntr_9"' in (MODEL.encode(request).call.body or b"")
        return
    assert wire(None, tool(**{**base, **kwargs_of(field, value)})) != wire(None, tool(**base))


@requirement("R46")
def test_every_field_is_covered():
    assert OPTIONS.keys() == set(OpenAIResponsesOptions.__struct_fields__)
    assert TOOLS.keys() == SERVER_SIDE_TOOLS.keys()
    # Where a tool runs is decided before the request is made, and the API finds out the transport of an MCP server.
    elsewhere = {RemoteMCP: {"transport"}}
    assert all(
        samples.keys() == set(tool.__struct_fields__) - unsent_fields(tool) - elsewhere.get(tool, set())
        for tool, (_, samples) in TOOLS.items()
    )
    assert all(samples.keys() == set(config.__struct_fields__) for config, samples in NESTED.items())


@requirement("R46")
@pytest.mark.parametrize(
    ("config", "field"), [(config, field) for config, samples in NESTED.items() for field in samples]
)
def test_every_nested_option_field_changes_request(config: type[Any], field: str):
    name = {Reasoning: "reasoning", PromptCache: "prompt_cache_options"}.get(config)
    value = config(**{field: NESTED[config][field]})
    options = {name: value} if name else {"function_options": {"get_weather": value}}
    assert wire(OpenAIResponsesOptions(**options)) != wire()


@requirement("R46")
@pytest.mark.parametrize("skills", [[LocalSkill(name="a", description="b", path="/skills/a")]])
def test_local_skills_are_sent_with_local_shell(skills: list[LocalSkill]):
    assert wire(None, Shell(local=True, skills=skills)) != wire(None, Shell(local=True))


@requirement("R46")
def test_enum_and_portable_tools_send_same_request():
    enum_form = OpenAIResponsesOptions(
        server_side_tools={Tool.WEB_SEARCH, Tool.IMAGE_GENERATION},
        image_generation_config=ImageGeneration(quality="low"),
    )
    assert wire(enum_form) == wire(None, WebSearch(), ImageGeneration(quality="low"))
    assert wire(enum_form, WebSearch()) == wire(enum_form)


@requirement("R46")
def test_every_hosted_tool_has_enum_member():
    assert {tool.key for tool in SERVER_SIDE_TOOLS} == {str(member) for member in OpenAIServerSideTool}


@requirement("R46")
@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (lambda: OpenAIResponsesOptions(temperature=3), ["0", "2"]),
        (lambda: OpenAIResponsesOptions(top_logprobs=21), ["20"]),
        (lambda: OpenAIResponsesOptions(truncation="always"), ["auto", "disabled"]),  # pyright: ignore[reportArgumentType]
        (lambda: OpenAIResponsesOptions(safety_identifier="x" * 129), ["128"]),
        (lambda: OpenAIResponsesOptions(metadata={str(n): "x" for n in range(17)}), ["16"]),
        (lambda: Reasoning(effort="huge"), ["none", "minimal", "max"]),  # pyright: ignore[reportArgumentType]
        (lambda: OpenAIResponsesOptions(previous_response_id="resp_1", conversation="conv_1"), ["conversation"]),
        (lambda: OpenAIResponsesOptions(web_search_config=WebSearch()), ["WEB_SEARCH"]),
    ],
)
def test_invalid_option_error_lists_allowed_values(make: Any, allowed: list[str]):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert all(word in str(caught.value) for word in allowed)


@requirement("R46")
@pytest.mark.parametrize(
    "options",
    [
        OpenAIResponsesOptions(server_side_tools={Tool.FILE_SEARCH}),
        OpenAIResponsesOptions(function_options={"unknown": OpenAIFunctionOptions()}),
        OpenAIResponsesOptions(namespaces=[ToolNamespace(name="n", description="d", tools=["unknown"])]),
        OpenAIResponsesOptions(server_side_tools={Tool.WEB_SEARCH}, web_search_config=WebSearch(context_size="low")),
    ],
)
def test_options_conflicting_with_request_raise(options: OpenAIResponsesOptions):
    with pytest.raises(ConfigurationError):
        wire(options, WebSearch())


@requirement("R46")
def test_options_of_other_provider_raise_with_valid_fields():
    class OtherOptions: ...

    with pytest.raises(UnsupportedError) as caught:
        wire(OtherOptions())
    assert "OtherOptions" in str(caught.value)
    assert all(field in str(caught.value) for field in OpenAIResponsesOptions.__struct_fields__)


@requirement("R46")
def test_unsupported_tool_error_lists_supported_tools():
    with pytest.raises(UnsupportedError) as caught:
        wire(None, WebFetch())
    assert "WebFetch" in str(caught.value)
    assert all(tool.__name__ in str(caught.value) for tool in SERVER_SIDE_TOOLS)
