"""Portable settings as options of Chat Completions, in the dialect of each server."""

from collections.abc import Callable, Mapping
from typing import Any

from sidestream.providers.openai.chat.context import Dialect
from sidestream.providers.openai.chat.options import ChatPromptCache
from sidestream.providers.openai.model_families import cache_mode, effort_of
from sidestream.providers.shared.settings_mapping import TOOL_CHOICES, Row, Target, as_option, thinking_of

Fields = Mapping[str, Any]


def settings_of(dialect: Dialect) -> dict[str, Row]:
    """Portable setting → how it is expressed to a server that speaks this dialect."""
    rows: dict[str, Row] = {
        "temperature": as_option("temperature"),
        "top_p": as_option("top_p"),
        "max_tokens": as_option("max_completion_tokens"),
        "stop": as_option("stop"),
        "seed": lambda value, target: {"seed": value} if dialect.seed == "seed" else _extra({dialect.seed: value}),
        "thinking": lambda value, target: THINKING[dialect.thinking](value, target, dialect),
        "tool_choice": _tool_choice,
    }
    if dialect.cache is not None:
        rows["cache"] = CACHES[dialect.cache]
    return rows


def _tool_choice(value: str, target: Target) -> Fields:
    return {"tool_choice": value if value in TOOL_CHOICES else {"type": "function", "function": {"name": value}}}


def _extra(fields: Fields) -> Fields:
    return {"extra_body": fields}


def _family_effort(value: Any, target: Target, dialect: Dialect) -> Fields:
    """OpenAI's own models, which are known by name."""
    effort = effort_of(value, target)
    return {} if effort is None else {"reasoning_effort": effort}


def _effort(value: Any, target: Target, dialect: Dialect) -> Fields:
    return {"reasoning_effort": _level(value, target, dialect)}


def _reasoning(value: Any, target: Target, dialect: Dialect) -> Fields:
    """An object that has levels and budgets."""
    level = thinking_of(value)
    if isinstance(level, int):
        return _extra({"reasoning": {"max_tokens": level}})
    return _extra({"reasoning": {"enabled": True} if level == "on" else {"effort": _level(value, target, dialect)}})


def _template(value: Any, target: Target, dialect: Dialect) -> Fields:
    """The model's chat template switches thinking; some templates have levels too."""
    level = _level(value, target, dialect)
    fields = {"enable_thinking": level != "none"}
    has_level = thinking_of(value) not in ("on", "off")
    extra = _extra({"chat_template_kwargs": fields | ({"reasoning_effort": level} if has_level else {})})
    return {**extra, "reasoning_effort": level} if has_level else extra


def _none(value: Any, target: Target, dialect: Dialect) -> Fields:
    if thinking_of(value) != "off":
        target.refuse("does not reason; remove thinking")
    return {}


def _level(value: Any, target: Target, dialect: Dialect) -> str:
    level = thinking_of(value)
    if isinstance(level, int):
        target.refuse(f"has levels of thinking, no budget; use {', '.join(dialect.efforts)}")
    if level not in dialect.efforts:
        target.refuse(f"does not support thinking={level!r}; use {', '.join(dialect.efforts)}")
    return dialect.efforts[level]


THINKING: Mapping[str, Callable[[Any, Target, Dialect], Fields]] = {
    "openai": _family_effort,
    "effort": _effort,
    "reasoning": _reasoning,
    "template": _template,
    "none": _none,
}
"""`Dialect.thinking` → how the setting is expressed."""


def _cache_mode(value: bool, target: Target) -> Fields:
    mode: Any = cache_mode(value, target)
    return {"prompt_cache_options": ChatPromptCache(mode=mode)}


CACHES: Mapping[str, Row] = {
    "prompt_cache_options": _cache_mode,
    "cache_prompt": lambda value, target: _extra({"cache_prompt": value}),
}
"""`Dialect.cache` → how the setting is expressed."""
