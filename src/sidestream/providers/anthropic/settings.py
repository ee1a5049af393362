"""Conversion of portable settings to Anthropic's options."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from sidestream.providers.anthropic.options import DEFAULT_MAX_TOKENS, AnthropicThinking
from sidestream.providers.anthropic.versions import Generation, generation
from sidestream.providers.model_settings import BUDGETS
from sidestream.providers.shared.settings_mapping import (
    TOOL_CHOICES,
    Row,
    Target,
    as_option,
    stop_list,
    thinking_of,
    thinks,
)

MIN_BUDGET = 1024
ALWAYS_THINKING = ("mythos", "fable")
"""Parts of the names of models whose thinking cannot be turned off."""


class Sampling(Struct, frozen=True):
    """The thinking and sampling controls of a generation of models."""

    first: Generation
    thinking: tuple[Literal["adaptive", "enabled"], ...]
    samples: bool
    """Whether it supports temperature and top_p."""


GENERATIONS = (
    Sampling((4, 7), ("adaptive",), samples=False),
    Sampling((4, 6), ("adaptive", "enabled"), samples=True),
    Sampling((0, 0), ("enabled",), samples=True),
)
"""Controls by generation. The first match counts. Models of other vendors get the last row."""


def _sampling(model: str) -> Sampling:
    numbers = generation(model) or (0, 0)
    return next(row for row in GENERATIONS if numbers >= row.first)


def _temperature(value: float, target: Target) -> Mapping[str, Any]:
    _check_sampling("temperature", target)
    if value > 1:
        target.refuse(f"supports a temperature from 0 to 1, not {value:g}")
    if value != 1 and thinks(target.settings):
        target.refuse("supports only temperature=1 while it thinks; remove temperature, or set thinking='off'")
    return {"temperature": value}


def _top_p(value: float, target: Target) -> Mapping[str, Any]:
    _check_sampling("top_p", target)
    if value < 0.95 and thinks(target.settings):
        target.refuse("supports top_p only from 0.95 to 1 while it thinks; remove top_p, or set thinking='off'")
    return {"top_p": value}


def _check_sampling(name: str, target: Target) -> None:
    if not _sampling(target.model).samples:
        target.refuse(f"does not support {name}; models before Claude 4.7 do")


def _thinking(value: Any, target: Target) -> Mapping[str, Any]:
    level, forms = thinking_of(value), _sampling(target.model).thinking
    if level == "off":
        if any(name in target.model for name in ALWAYS_THINKING):
            target.refuse("cannot turn thinking off; use thinking='low' instead")
        return {"thinking": AnthropicThinking(type="disabled")}
    if isinstance(level, int):
        if "enabled" not in forms:
            target.refuse("supports thinking levels, not a budget; use on, low, medium or high")
        if level < MIN_BUDGET:
            target.refuse(f"needs a thinking budget of at least {MIN_BUDGET} tokens, not {level}")
        return _budget(level)
    tokens = BUDGETS["medium" if level == "on" else level]
    if "adaptive" not in forms:
        return _budget(_fitting(tokens, target))
    fields: dict[str, Any] = {"thinking": AnthropicThinking(type="adaptive", display="summarized")}
    fields |= {} if level == "on" else {"effort": level}
    has_limit = target.settings.max_tokens is not None or target.options.max_tokens is not None
    # Thinking counts as output, so with the same limit it could leave nothing for the answer.
    return fields if has_limit else fields | {"max_tokens": DEFAULT_MAX_TOKENS + tokens}


def _budget(tokens: int) -> Mapping[str, Any]:
    return {"thinking": AnthropicThinking(type="enabled", budget_tokens=tokens)}


def _fitting(tokens: int, target: Target) -> int:
    """Return the budget of a level. If the output limit is too small for it, half of the limit stays for the text."""
    limit = target.settings.max_tokens or target.options.max_tokens
    if limit is None or tokens < limit:
        return tokens
    if limit <= MIN_BUDGET:
        target.refuse(f"needs max_tokens above {MIN_BUDGET} to think, not {limit}")
    return max(MIN_BUDGET, limit // 2)


def _cache(value: bool, target: Target) -> Mapping[str, Any]:
    """Enable or disable caching. The API caches nothing by default."""
    if not value:
        return {"cache_control": None, "prompt_cache": None}
    is_chosen = target.options.prompt_cache is not None or target.options.cache_control is not None
    return {} if is_chosen else {"cache_control": "5m"}


def _tool_choice(value: str, target: Target) -> Mapping[str, Any]:
    if value == "auto":
        return {"tool_choice": value}
    given = target.options.thinking
    if thinks(target.settings) or (target.settings.thinking is None and given is not None and given.type != "disabled"):
        target.refuse("cannot be forced to call a tool while it thinks; set thinking='off'")
    return {"tool_choice": "any" if value in TOOL_CHOICES else {"type": "tool", "name": value}}


SETTINGS: Mapping[str, Row] = {
    "temperature": _temperature,
    "top_p": _top_p,
    "max_tokens": as_option("max_tokens"),
    "stop": stop_list,
    "thinking": _thinking,
    "cache": _cache,
    "tool_choice": _tool_choice,
}
"""Portable setting → its conversion. The API has no seed."""
