"""Conversion of portable settings to Gemini's options, for both of its APIs."""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from sidestream.providers.google.options import GoogleThinking
from sidestream.providers.model_settings import BUDGETS
from sidestream.providers.shared.settings_mapping import TOOL_CHOICES, Row, Target, as_option, stop_list, thinking_of


class Thinker(Struct, frozen=True):
    """The thinking controls of a family of models."""

    pattern: re.Pattern[str]
    levels: tuple[str, ...] = ()
    has_budget: bool = True
    can_turn_off: bool = False


LEVELS = ("low", "medium", "high")
THINKERS = (
    Thinker(re.compile(r"gemini-(1|2\.0)|gemini-2\.\d.*image|gemma|learnlm"), has_budget=False),
    Thinker(re.compile(r"gemini-2\.\d-pro")),
    Thinker(re.compile(r"gemini-2"), can_turn_off=True),
    Thinker(re.compile(r"gemini-3-pro"), levels=("low", "high")),
    Thinker(re.compile(r""), levels=LEVELS),
)
"""Families by the beginning of the model's name. The first match counts. Names without a number mean the newest
model."""


def _thinker(model: str) -> Thinker:
    name = model.rpartition("/")[2]
    return next(thinker for thinker in THINKERS if thinker.pattern.match(name))


def _checked_level(value: Any, target: Target) -> str | int | None:
    """Return the level or budget, or None if the model has no thinking to turn off.

    Raises UnsupportedError if the model does not support the value.
    """
    level, thinker = thinking_of(value), _thinker(target.model)
    does_think = bool(thinker.levels) or thinker.has_budget
    if level == "off":
        if does_think and not thinker.can_turn_off:
            target.refuse("cannot turn thinking off; use thinking='low' instead")
        return level if does_think else None
    if not does_think:
        target.refuse("does not think; remove thinking, or use Gemini 2.5 or newer")
    if thinker.levels and level in LEVELS and level not in thinker.levels:
        target.refuse(f"does not support thinking={level!r}; use on, {', '.join(thinker.levels)} or a budget")
    return level


def _thinking(value: Any, target: Target) -> Mapping[str, Any]:
    level = _checked_level(value, target)
    if level is None:
        return {}
    if level == "off":
        return {"thinking": GoogleThinking(budget=0)}
    if isinstance(level, int):
        return {"thinking": GoogleThinking(include_thoughts=True, budget=level)}
    if _thinker(target.model).levels:
        named: Any = None if level == "on" else level
        return {"thinking": GoogleThinking(include_thoughts=True, level=named)}
    return {"thinking": GoogleThinking(include_thoughts=True, budget=-1 if level == "on" else BUDGETS[level])}


def _tool_choice(value: str, target: Target) -> Mapping[str, Any]:
    if value == "auto":
        return {"function_calling": value}
    names = {} if value in TOOL_CHOICES else {"allowed_function_names": [value]}
    return {"function_calling": "any", **names}


def _interaction_tool_choice(value: str, target: Target) -> Mapping[str, Any]:
    if value not in TOOL_CHOICES:
        target.refuse("cannot be forced to call one function in this API; use tool_choice='required'")
    return {"tool_choice": "any" if value == "required" else value}


SETTINGS: Mapping[str, Row] = {
    "temperature": as_option("temperature"),
    "top_p": as_option("top_p"),
    "max_tokens": as_option("max_output_tokens"),
    "stop": stop_list,
    "seed": as_option("seed"),
    "thinking": _thinking,
    "tool_choice": _tool_choice,
}
"""Portable setting → its conversion. Prompts are cached without a setting."""


def _interaction_thinking(value: Any, target: Target) -> Mapping[str, Any]:
    level = _checked_level(value, target)
    if level is None:
        return {}
    if level == "off" or isinstance(level, int):
        target.refuse("supports thinking levels in this API, not a budget or off; use on, low, medium or high")
    return {"thinking_summaries": "auto"} | ({} if level == "on" else {"thinking_level": level})


INTERACTIONS_SETTINGS: Mapping[str, Row] = {
    **SETTINGS,
    "thinking": _interaction_thinking,
    "tool_choice": _interaction_tool_choice,
}
"""Portable setting → its conversion, for the Interactions API."""


def _no_agent_has(value: Any, target: Target) -> Mapping[str, Any]:
    target.refuse("is an agent and does not support this setting; use GoogleInteractionsOptions(agent_config=…)")


AGENT_SETTINGS: Mapping[str, Row] = dict.fromkeys(INTERACTIONS_SETTINGS, _no_agent_has)
"""Portable setting → its refusal, for agents of that API, which have their own configuration."""
