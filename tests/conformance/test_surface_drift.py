"""What the vendors' SDKs offer beside the calls we make: every resource, beta header and tool is used, or out by reason."""

import re
from functools import cached_property
from importlib import import_module
from typing import Any, get_args, get_type_hints

import pytest

from requirements import requirement
from sidestream.providers.anthropic.versions import BETAS, VERSIONS

_AGENTS = "a vendor's own agent loop: a fourth stream dialect beside the model APIs; Sidestream runs the loop itself"
_ADMIN = "administration of an account, not a conversation"
_BATCH = "answers hours later, in bulk; a run streams"
_TRAINING = "trains or evaluates models"
_LIVE = "audio both ways over a socket; a run is text and files"
_EVENTS = "calls a server of yours; runs are awaited, streamed or polled"
_UPLOADED = "managed in the console or by the vendor's SDK; requests refer to it by id"
_SDK = "of the client object itself, no resource"

ANTHROPIC_USED = {"messages": "runs", "models": "list_models", "files": "uploads and downloads", "beta": "see below"}
ANTHROPIC_OUT = {
    "skills": _UPLOADED,
    "user_profiles": _UPLOADED,
    "organization": _ADMIN,
    "middleware": _SDK,
    "open_telemetry": _SDK,
}
ANTHROPIC_BETA_USED = {"messages": "runs", "models": "list_models", "files": "uploads and downloads"}
ANTHROPIC_BETA_OUT = {
    "agents": _AGENTS,
    "sessions": _AGENTS,
    "environments": _AGENTS,
    "deployments": _AGENTS,
    "deployment_runs": _AGENTS,
    "memory_stores": _AGENTS,
    "vaults": _AGENTS,
    "dreams": _AGENTS,
    "tunnels": _ADMIN,
    "organization": _ADMIN,
    "skills": _UPLOADED,
    "user_profiles": _UPLOADED,
    "webhooks": _EVENTS,
}
OPENAI_USED = {
    "responses": "runs of openai-responses",
    "chat": "runs of openai",
    "embeddings": "embed",
    "files": "uploads and downloads",
    "containers": "files of the code interpreter",
    "vector_stores": "stores of files",
    "models": "list_models",
    "beta": "see below",
}
OPENAI_OUT = {
    "admin": _ADMIN,
    "audio": _LIVE,
    "batches": _BATCH,
    "completions": "the API before chat; no tools",
    "content_provenance_checks": "checks files, no conversation",
    "conversations": "a session is kept by previous_response_id",
    "decisions": "a classification, no conversation",
    "evals": _TRAINING,
    "fine_tuning": _TRAINING,
    "images": "images are made by the image generation tool",
    "live": _LIVE,
    "moderations": "moderation is an option of a run",
    "realtime": _LIVE,
    "safety": _ADMIN,
    "skills": _UPLOADED,
    "uploads": "files in parts; files are uploaded whole",
    "videos": "makes videos, no conversation",
    "webhooks": _EVENTS,
}
OPENAI_BETA_USED = {"chat": "runs of openai", "responses": "runs of openai-responses"}
OPENAI_BETA_OUT = {
    "agents": _AGENTS,
    "assistants": "shut down in favour of responses",
    "threads": "of assistants",
    "chatkit": "a widget for web pages",
    "realtime": _LIVE,
}
GOOGLE_USED = {
    "models": "runs, embed, list_models",
    "interactions": "runs of google:interactions/…",
    "credentials": "secrets of environments",
    "environments": "files of environments; created with an interaction",
    "files": "uploads and downloads",
    "file_search_stores": "stores of files",
}
GOOGLE_OUT = {
    "agents": _AGENTS,
    "aio": _SDK,
    "vertexai": _SDK,
    "chats": _SDK,
    "operations": "of uploads to stores, which are polled here; and of videos",
    "auth_tokens": _LIVE,
    "batches": _BATCH,
    "caches": _UPLOADED,
    "triggers": "start interactions by a schedule, without a client",
    "tunings": _TRAINING,
    "voices": _UPLOADED,
    "webhooks": _EVENTS,
}

PROPERTIES = {
    "auth_headers",
    "base_url",
    "custom_auth",
    "default_headers",
    "default_query",
    "qs",
    "timeout",
    "user_agent",
}
"""What the classes of clients have beside resources."""

SURFACES: dict[str, tuple[str, str, dict[str, str], dict[str, str]]] = {
    "anthropic": ("anthropic", "Anthropic", ANTHROPIC_USED, ANTHROPIC_OUT),
    "anthropic beta": ("anthropic.resources.beta", "Beta", ANTHROPIC_BETA_USED, ANTHROPIC_BETA_OUT),
    "openai": ("openai", "OpenAI", OPENAI_USED, OPENAI_OUT),
    "openai beta": ("openai.resources.beta", "Beta", OPENAI_BETA_USED, OPENAI_BETA_OUT),
    "google": ("google.genai", "Client", GOOGLE_USED, GOOGLE_OUT),
}


def resources(client: type) -> set[str]:
    """The resources of a client's class: its properties, without those of its connection."""
    found = {
        name
        for kind in client.__mro__
        for name, value in vars(kind).items()
        if isinstance(value, cached_property | property) and not name.startswith(("_", "with_"))
    }
    return found - PROPERTIES


@requirement("R51", "R31", "R66")
@pytest.mark.parametrize("name", SURFACES)
def test_every_vendor_resource_is_used_or_excluded_with_reason(name: str):
    module, client, used, out = SURFACES[name]
    pytest.importorskip(module, reason=f"{module} is not installed: its resources were not compared with our tables")
    assert resources(getattr(import_module(module), client)) == used.keys() | out.keys()
    assert not used.keys() & out.keys()
    assert all(used.values())
    assert all(out.values())


_STABLE = "on the stable surface: no header needed"
_REPLACED = "an older version of a header that is sent"
_CHOICE = "a choice of the caller: AnthropicOptions(betas=…)"
BETAS_OUT = {
    **dict.fromkeys(("agent-memory-2026-07-22", "dreaming-2026-04-21", "managed-agents-2026-04-01"), _AGENTS),
    **dict.fromkeys(
        ("fallback-credit-2026-06-01", "server-side-fallback-2026-06-01", "mcp-client-2025-04-04"), _REPLACED
    ),
    **dict.fromkeys(
        (
            "code-execution-2025-05-22",
            "extended-cache-ttl-2025-04-11",
            "files-api-2025-04-14",
            "cache-diagnosis-2026-04-07",
            "message-batches-2024-09-24",
            "model-context-window-exceeded-2025-08-26",
            "pdfs-2024-09-25",
            "prompt-caching-2024-07-31",
            "skills-2025-10-02",
            "structured-outputs-2025-11-13",
            "token-counting-2024-11-01",
            "user-profiles-2026-03-24",
            "user-profiles-2026-08-18",
            "user-profiles-2026-09-04",
        ),
        _STABLE,
    ),
    **dict.fromkeys(
        (
            "context-1m-2025-08-07",
            "dev-full-thinking-2025-05-14",
            "interleaved-thinking-2025-05-14",
            "output-128k-2025-02-19",
            "output-300k-2026-03-24",
            "thinking-token-count-2026-05-13",
            "token-efficient-tools-2025-02-19",
        ),
        _CHOICE,
    ),
    **dict.fromkeys(
        (
            "admin-user-sign-out-2026-10-08",
            "analytics-usage-cost-2026-08-24",
            "ce-plugins-2026-09-01",
            "ce-user-management-2026-07-13",
            "experimental-claude-tag-2026-10-21",
            "mcp-tunnels-2026-06-22",
            "spend-limit-reads-2026-09-26",
            "telemetry-destinations-2026-08-11",
            "webhooks-2026-10-07",
        ),
        _ADMIN,
    ),
    "mid-conversation-tool-changes-2026-07-01": "tools are added by value (inline-tools), not by reference",
    "mid-conversation-output-config-2026-07-01": "options hold for a whole run",
    "mid-conversation-system-clear-at-2026-08-21": "system messages stay in the history",
}
"""Beta headers of the vendor that no feature chooses, each with its reason."""


def _literals(kind: Any) -> set[str]:
    arguments = get_args(kind)
    return {leaf for part in arguments for leaf in (_literals(part) or {part}) if isinstance(leaf, str)}


@requirement("R51")
def test_every_anthropic_beta_is_used_or_excluded_with_reason():
    module = pytest.importorskip("anthropic.types.anthropic_beta_param", reason="the vendor's SDK is not installed")
    assert _literals(module.AnthropicBetaParam) == {*BETAS.values(), *BETAS_OUT}
    assert not BETAS_OUT.keys() & set(BETAS.values())


TOOLS_ELSEWHERE = {
    "custom": "functions",
    "mcp_toolset": "RemoteMCP",
    "computer_toolset": "ComputerUse, by tool_versions",
}


@requirement("R51")
def test_every_anthropic_tool_has_config():
    beta = pytest.importorskip("anthropic.types.beta", reason="the vendor's SDK is not installed")
    found: set[str] = set()
    for member in get_args(beta.BetaToolUnionParam):
        found |= _literals(get_type_hints(member, include_extras=True).get("type"))
    assert len(found) >= 28
    kinds = {re.sub(r"_\d{8}$", "", name) for name in found}
    assert kinds == VERSIONS.keys() | TOOLS_ELSEWHERE.keys()
