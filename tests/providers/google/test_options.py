"""Every field of the options reaches the wire, and portable tools mean what they say or raise."""

import json
from typing import Any

import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.messages.message import ChatMessage
from sidestream.providers.google import (
    PROVIDER,
    GoogleComputerUse,
    GoogleEnvironment,
    GoogleEnvironmentSource,
    GoogleFileSearch,
    GoogleFunctionOptions,
    GoogleImageOutput,
    GoogleInteractionsOptions,
    GoogleMaps,
    GoogleOptions,
    GoogleSafetySetting,
    GoogleSearch,
    GoogleServerSideTool,
    GoogleThinking,
)
from sidestream.providers.protocol import ModelRequest, Settings
from sidestream.tools.server_side import (
    ApplyPatch,
    CodeInterpreter,
    Combination,
    Comparison,
    ComputerUse,
    FileSearch,
    ImageGeneration,
    Location,
    RemoteMCP,
    ServerSideTool,
    Shell,
    ToolFilter,
    WebFetch,
    WebSearch,
)
from sidestream.tools.spec import ToolSpec

SETTINGS = Settings(api_key="key-0123456789", base_url="https://gemini.example")
MODELS = {
    GoogleOptions: PROVIDER.chat_model("gemini-3-flash-preview", SETTINGS),
    GoogleInteractionsOptions: PROVIDER.chat_model("interactions/gemini-3-flash-preview", SETTINGS),
}
TOOL = ToolSpec("weather", "Weather of a city.", {"type": "object", "properties": {}})
Tool = GoogleServerSideTool


def request(options: Any, *server_side_tools: ServerSideTool) -> ModelRequest:
    return ModelRequest(
        messages=(ChatMessage.user("Hi"),), tools=(TOOL,), server_side_tools=server_side_tools, options=options
    )


def wire(options: Any, *server_side_tools: ServerSideTool) -> tuple[Any, dict[str, str]]:
    """What would be sent: body and headers."""
    call = MODELS[type(options)].encode(request(options, *server_side_tools)).call
    return json.loads(call.body or b""), call.headers


def body(*server_side_tools: ServerSideTool, options: Any = None) -> dict[str, Any]:
    return wire(options or GoogleOptions(), *server_side_tools)[0]


def interaction(*server_side_tools: ServerSideTool, **options: Any) -> dict[str, Any]:
    return wire(GoogleInteractionsOptions(**options), *server_side_tools)[0]


SHARED: dict[str, Any] = {
    "server_side_tools": {Tool.CODE_EXECUTION},
    "google_search_config": ({"server_side_tools": {Tool.GOOGLE_SEARCH}}, GoogleSearch(search_types=["web", "image"])),
    "file_search": GoogleFileSearch(stores=["s"], top_k=3, metadata_filter="a = 1"),
    "maps_grounding": GoogleMaps(enable_widget=True, latitude=1.5, longitude=2.5),
    "computer_use": GoogleComputerUse(
        environment="mobile", excluded_functions=["x"], detect_prompt_injection=True, disabled_safety_policies=["p"]
    ),
    "extra_tools": [{"enterpriseWebSearch": {}}],
    "safety_settings": [GoogleSafetySetting(category="HARM_CATEGORY_HARASSMENT", threshold="OFF", method="SEVERITY")],
    "cached_content": "cachedContents/1",
    "service_tier": "flex",
    "store": False,
    "labels": {"a": "b"},
    "continuation_token": "t",
    "extra_body": {"new": 1},
    "extra_headers": {"X-Test": "1"},
    "max_output_tokens": 9,
    "seed": 4,
    "stop_sequences": ["END"],
    "temperature": 0.5,
    "top_p": 0.5,
    "response_mime_type": "application/json",
    "response_modalities": ["text", "image"],
}
"""Field → a value other than its default; a pair where the field means something only beside others."""

GENERATE: dict[str, Any] = SHARED | {
    "top_k": 40,
    "candidate_count": 2,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.2,
    "response_logprobs": True,
    "logprobs": 3,
    "response_schema": {"type": "OBJECT"},
    "response_format": [{"text": {}}],
    "media_resolution": "low",
    "thinking": GoogleThinking(include_thoughts=True, budget=-1, level="low"),
    "image": GoogleImageOutput(
        aspect_ratio="16:9",
        size="2K",
        output_format="jpeg",
        compression=80,
        person_generation="x",
        prominent_people="y",
    ),
    "speech_config": {"voiceConfig": {}},
    "audio_timestamp": True,
    "audio_transcription": {"x": 1},
    "translation": {"x": 1},
    "enable_affective_dialog": True,
    "enable_enhanced_civic_answers": True,
    "routing": {"x": 1},
    "model_selection": {"x": 1},
    "function_calling": "any",
    "allowed_function_names": ["weather"],
    "stream_function_call_arguments": True,
    "function_options": {"weather": GoogleFunctionOptions(behavior="NON_BLOCKING", response_schema={"type": "string"})},
    "include_server_side_tool_invocations": True,
}
INTERACT: dict[str, Any] = SHARED | {
    "thinking_level": "low",
    "thinking_summaries": "none",
    "tool_choice": "validated",
    "image_config": {"aspect_ratio": "1:1"},
    "speech_config": [{"voice": "x"}],
    "video_config": {"x": 1},
    "transcription_config": {"x": 1},
    "response_format": {"type": "audio"},
    "background": True,
    "previous_interaction_id": "v1_x",
    "environment": GoogleEnvironment(
        environment_id="e",
        sources=[GoogleEnvironmentSource(type="inline", target="/a", content="x", encoding="utf-8", source="s")],
        network={"allowlist": []},
        env={"A": {"value": "b"}},
    ),
    "agent": True,
    "agent_config": {"type": "dynamic"},
    "webhook_config": {"uris": []},
}
ELSEWHERE = {"typed_output_beside_tools"}
"""Fields that shape the request only where there is an output type; test_encode.py has them."""


@requirement("R46")
@pytest.mark.parametrize(("kind", "values"), [(GoogleOptions, GENERATE), (GoogleInteractionsOptions, INTERACT)])
def test_every_option_field_changes_request(kind: type, values: dict[str, Any]):
    assert values.keys() | ELSEWHERE == set(kind.__struct_fields__)
    for name, value in values.items():
        beside, chosen = value if isinstance(value, tuple) else ({}, value)
        assert wire(kind(**beside, **{name: chosen})) != wire(kind(**beside)), name


def test_generation_settings_use_api_names():
    config = body(options=GoogleOptions(**{name: GENERATE[name] for name in ("thinking", "image", "media_resolution")}))
    assert config["generationConfig"] == {
        "mediaResolution": "MEDIA_RESOLUTION_LOW",
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": -1, "thinkingLevel": "LOW"},
        "imageConfig": {
            "aspectRatio": "16:9",
            "imageSize": "2K",
            "personGeneration": "x",
            "prominentPeople": "y",
            "imageOutputOptions": {"compressionQuality": 80, "mimeType": "image/jpeg"},
        },
    }


@requirement("R61")
def test_enum_members_and_portable_tools_are_equivalent():
    pairs = [
        (Tool.CODE_EXECUTION, CodeInterpreter(), {"codeExecution": {}}),
        (Tool.GOOGLE_SEARCH, WebSearch(), {"googleSearch": {}}),
        (Tool.URL_CONTEXT, WebFetch(), {"urlContext": {}}),
    ]
    for member, portable, expected in pairs:
        options = GoogleOptions(server_side_tools={member})
        assert body(options=options) == body(portable) == body(portable, options=options)
        assert body(portable)["tools"][0] == expected


@requirement("R61")
def test_file_search_option_and_portable_tool_are_equivalent():
    expected = {
        "fileSearch": {
            "fileSearchStoreNames": ["fileSearchStores/a", "fileSearchStores/b"],
            "topK": 5,
            "metadataFilter": 'author = "Ann"',
        }
    }
    option = GoogleFileSearch(stores=["a", "fileSearchStores/b"], top_k=5, metadata_filter='author = "Ann"')
    portable = FileSearch(
        stores=["a", "fileSearchStores/b"], max_results=5, filters=Comparison(attribute="author", value="Ann")
    )
    assert body(options=GoogleOptions(file_search=option))["tools"][0] == expected
    assert body(portable)["tools"][0] == expected


@requirement("R61")
def test_maps_grounding_sends_widget_and_location():
    maps = GoogleMaps(enable_widget=True, latitude=50.9, longitude=6.9, language="de")
    sent = body(options=GoogleOptions(maps_grounding=maps))
    assert sent["tools"][0] == {"googleMaps": {"enableWidget": True}}
    assert sent["toolConfig"]["retrievalConfig"] == {
        "latLng": {"latitude": 50.9, "longitude": 6.9},
        "languageCode": "de",
    }
    with pytest.raises(ConfigurationError):
        GoogleMaps(latitude=1)


def test_search_sends_types_times_and_domains():
    search = GoogleSearch(
        search_types=["web", "image"],
        start_time="2026-01-01T00:00:00Z",
        end_time="2026-02-01T00:00:00Z",
        exclude_domains=["x.example"],
        blocking_confidence="BLOCK_LOW_AND_ABOVE",
    )
    options = GoogleOptions(server_side_tools={Tool.GOOGLE_SEARCH}, google_search_config=search)
    assert body(options=options)["tools"][0] == {
        "googleSearch": {
            "excludeDomains": ["x.example"],
            "blockingConfidence": "BLOCK_LOW_AND_ABOVE",
            "searchTypes": {"webSearch": {}, "imageSearch": {}},
            "timeRangeFilter": {"startTime": "2026-01-01T00:00:00Z", "endTime": "2026-02-01T00:00:00Z"},
        }
    }
    portable = WebSearch(blocked_domains=["x.example"], content_types=["text"])
    assert body(portable)["tools"][0] == {
        "googleSearch": {"excludeDomains": ["x.example"], "searchTypes": {"webSearch": {}}}
    }
    with pytest.raises(ConfigurationError, match="GOOGLE_SEARCH"):
        GoogleOptions(google_search_config=search)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Comparison(attribute="a", operator="gte", value=3), "a >= 3"),
        (Comparison(attribute="a", operator="ne", value='x"y\\'), 'a != "x\\"y\\\\"'),
        (Comparison(attribute="a", operator="in", value=["x", 2]), 'a = "x" OR a = 2'),
        (Comparison(attribute="a", operator="nin", value=["x", 2]), 'a != "x" AND a != 2'),
        (Comparison(attribute="a", value=True), "a = true"),
        (
            Combination(
                operator="or", filters=[Comparison(attribute="a", value=1), Comparison(attribute="b", value=2)]
            ),
            "(a = 1) OR (b = 2)",
        ),
    ],
)
def test_filters_use_api_syntax(value: Any, expected: str):
    sent = body(FileSearch(stores=["s"], filters=value))
    assert sent["tools"][0]["fileSearch"]["metadataFilter"] == expected


def test_image_generation_is_output_modality():
    sent = body(ImageGeneration(size="1536x1024", output_format="jpeg", compression=80))
    assert sent["generationConfig"] == {
        "responseModalities": ["TEXT", "IMAGE"],
        "imageConfig": {
            "aspectRatio": "3:2",
            "imageOutputOptions": {"compressionQuality": 80, "mimeType": "image/jpeg"},
        },
    }
    assert [next(iter(tool)) for tool in sent["tools"]] == ["functionDeclarations"]
    assert "toolConfig" not in sent


def test_mcp_servers_share_one_tool_and_keep_headers():
    sent = body(
        RemoteMCP(
            label="a",
            url="https://a.example",
            require_approval="never",
            headers={"X": "1"},
            authorization="token-123456",
        ),
        RemoteMCP(label="b", url="https://b.example", require_approval="never"),
    )
    assert sent["tools"][0] == {
        "mcpServers": [
            {
                "name": "a",
                "streamableHttpTransport": {
                    "url": "https://a.example",
                    "headers": {"X": "1", "Authorization": "Bearer token-123456"},
                },
            },
            {"name": "b", "streamableHttpTransport": {"url": "https://b.example"}},
        ]
    }


REFUSED: list[ServerSideTool] = [
    WebSearch(context_size="high"),
    WebSearch(location=Location(city="Köln")),
    WebSearch(allowed_domains=["x.example"]),
    WebSearch(max_uses=2),
    WebFetch(max_uses=2),
    CodeInterpreter(container_id="c"),
    CodeInterpreter(reuse_container=True),
    FileSearch(stores=["s"], ranker="x"),
    ImageGeneration(partial_images=2),
    ImageGeneration(size="1000x999"),
    ImageGeneration(output_format="webp"),
    RemoteMCP(label="a", connector="c"),
    RemoteMCP(label="a", url="https://a.example", require_approval="always"),
    RemoteMCP(label="a", url="https://a.example"),
    RemoteMCP(label="a", url="https://a.example/sse", require_approval="never", transport="sse"),
    Shell(),
    ApplyPatch(),
    ComputerUse(),
]


@requirement("R46")
@pytest.mark.parametrize("tool", REFUSED, ids=repr)
def test_unsupported_tool_raises(tool: ServerSideTool):
    with pytest.raises(UnsupportedError):
        body(tool)


def test_unsupported_tool_error_lists_supported_tools():
    with pytest.raises(UnsupportedError, match=r"CodeInterpreter, ComputerUse, FileSearch, .*WebSearch"):
        body(Shell())


def test_conflicting_tool_settings_raise():
    with pytest.raises(ConfigurationError):
        body(FileSearch(stores=["a"]), options=GoogleOptions(file_search=GoogleFileSearch(stores=["b"])))
    with pytest.raises(ConfigurationError):
        wire(GoogleOptions(function_options={"other": GoogleFunctionOptions()}))


def test_interactions_encode_same_tools_in_own_form():
    sent = interaction(
        WebSearch(content_types=["text"]),
        WebFetch(),
        CodeInterpreter(),
        FileSearch(stores=["s"], max_results=2),
        RemoteMCP(
            label="m", url="https://m.example", require_approval="never", allowed_tools=ToolFilter(names=["ask"])
        ),
        maps_grounding=GoogleMaps(latitude=1, longitude=2, enable_widget=True),
    )
    assert sent["tools"] == [
        {"type": "google_search", "search_types": ["web_search"]},
        {"type": "url_context"},
        {"type": "code_execution"},
        {"type": "file_search", "file_search_store_names": ["fileSearchStores/s"], "top_k": 2},
        {"type": "mcp_server", "name": "m", "url": "https://m.example", "allowed_tools": [{"tools": ["ask"]}]},
        {"type": "google_maps", "enable_widget": True, "latitude": 1.0, "longitude": 2.0},
        {
            "type": "function",
            "name": "weather",
            "description": "Weather of a city.",
            "parameters": {"type": "object", "properties": {}},
        },
    ]


def test_interactions_encode_images_and_environments():
    sent = interaction(ImageGeneration(size="1024x1024"), CodeInterpreter(container_id="env_1"))
    assert sent["response_format"] == {"type": "image", "aspect_ratio": "1:1"}
    assert sent["environment"] == "env_1"
    assert interaction(environment=GoogleEnvironment(environment_id="e"))["environment"] == {
        "type": "remote",
        "environment_id": "e",
    }


@pytest.mark.parametrize(
    "tool",
    [
        WebSearch(blocked_domains=["x.example"]),
        RemoteMCP(label="a", url="https://a.example"),
        RemoteMCP(
            label="a", url="https://a.example", require_approval="never", allowed_tools=ToolFilter(read_only=True)
        ),
        ImageGeneration(compression=50),
        CodeInterpreter(memory_limit="4g"),
        Shell(),
    ],
    ids=repr,
)
def test_interactions_reject_unsupported_tool(tool: ServerSideTool):
    with pytest.raises(UnsupportedError):
        interaction(tool)


def test_options_of_other_api_raise_with_right_name():
    with pytest.raises(UnsupportedError, match="GoogleInteractionsOptions"):
        MODELS[GoogleInteractionsOptions].encode(request(GoogleOptions()))
    with pytest.raises(UnsupportedError, match="GoogleOptions"):
        MODELS[GoogleOptions].encode(request(GoogleInteractionsOptions()))


def test_secrets_stay_out_of_reprs():
    options = GoogleOptions(extra_headers={"Authorization": "canary-123456"})
    environment = GoogleInteractionsOptions(environment=GoogleEnvironment(env={"KEY": {"value": "canary-123456"}}))
    assert "canary" not in repr(options) + repr(environment)
