"""Portable settings as options of OpenAI Responses."""

from collections.abc import Mapping
from typing import Any

from sidestream.providers.openai.model_families import cache_mode, effort_of
from sidestream.providers.openai.responses.options import PromptCache, Reasoning
from sidestream.providers.shared.settings_mapping import TOOL_CHOICES, Row, Target, as_option


def _thinking(value: Any, target: Target) -> Mapping[str, Any]:
    effort: Any = effort_of(value, target)
    if effort is None:
        return {}
    return {"reasoning": Reasoning(effort=effort) if effort == "none" else Reasoning(effort=effort, summary="auto")}


def _cache(value: bool, target: Target) -> Mapping[str, Any]:
    mode: Any = cache_mode(value, target)
    return {"prompt_cache_options": PromptCache(mode=mode)}


def _tool_choice(value: str, target: Target) -> Mapping[str, Any]:
    return {"tool_choice": value if value in TOOL_CHOICES else {"type": "function", "name": value}}


SETTINGS: Mapping[str, Row] = {
    "temperature": as_option("temperature"),
    "top_p": as_option("top_p"),
    "max_tokens": as_option("max_output_tokens"),
    "thinking": _thinking,
    "cache": _cache,
    "tool_choice": _tool_choice,
}
"""Portable setting → how it is expressed. The API has no stop texts and no seed."""
