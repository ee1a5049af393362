"""OpenAI's list of models, and the differences between model families that affect settings. Pure."""

import re
from collections.abc import Mapping

from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ProtocolError
from sidestream.jsontext import JsonObject, is_array, objects, text_in
from sidestream.providers.protocol import ModelInfo
from sidestream.providers.shared.modalities import abilities
from sidestream.providers.shared.settings_mapping import Target, thinking_of

EFFORTS: Mapping[str, str] = {"off": "none", "on": "medium", "low": "low", "medium": "medium", "high": "high"}
"""Efforts, by thinking level. The newest models do not reason unless an effort is sent, so `on` maps to one."""


class Family(Struct, frozen=True):
    """A model family and its capabilities."""

    pattern: str
    reasons: bool = True
    can_turn_off: bool = True
    has_cache_switch: bool = False


FAMILIES = (
    Family(r"gpt-[34]|gpt-5-chat|chatgpt-4|davinci|babbage", reasons=False),
    Family(r"o\d|gpt-5(-|$)|gpt-5\.[1-5](?!\d).*-pro", can_turn_off=False),
    Family(r"gpt-5\.[1-5](?!\d)"),
    Family(r".*-pro(-|$)", can_turn_off=False, has_cache_switch=True),
    Family(r"", has_cache_switch=True),
)
"""Families, matched against the start of a model's name. The first match is used. Unknown names match the newest."""


def family_of(model: str) -> Family:
    """Return the family of a model, ignoring a fine-tuning or gateway prefix in its name."""
    name = model.removeprefix("ft:").rpartition("/")[2]
    return next(family for family in FAMILIES if re.match(family.pattern, name))


def effort_of(value: object, target: Target, efforts: Mapping[str, str] = EFFORTS) -> str | None:
    """Map the setting `thinking` to an effort, or to None if there is nothing to turn off.

    Raises UnsupportedError if the model does not support the value.
    """
    level, family = thinking_of(value), family_of(target.model)
    if isinstance(level, int):
        target.refuse(f"supports thinking levels, not a budget; use {', '.join(efforts)}")
    if level == "off" and not family.reasons:
        return None
    if not family.reasons:
        target.refuse("does not reason; remove thinking, or use a reasoning model")
    if level == "off" and not family.can_turn_off:
        target.refuse("cannot turn thinking off; use thinking='low' instead")
    if level not in efforts:
        target.refuse(f"does not support thinking={level!r}; use {', '.join(efforts)}")
    return efforts[level]


def cache_mode(value: bool, target: Target) -> str:
    """Map the setting `cache` to a caching mode. Without explicit breakpoints, `explicit` caches nothing.

    Raises UnsupportedError if the model has no switch for caching.
    """
    if not family_of(target.model).has_cache_switch:
        target.refuse("always caches prompts and does not support the cache setting; models from gpt-5.6 on do")
    return "implicit" if value else "explicit"


INPUT_LIMITS = ("context_length", "max_model_len", "context_window", "max_context_length", "meta.n_ctx_train")
"""Fields with the size of the context window. The first one present is used."""

OUTPUT_LIMITS = ("max_completion_tokens", "top_provider.max_completion_tokens")

_KINDS = {"embed": ("embeddings",), "image": ("media",), "dall-e": ("media",)}
"""Model kinds, by a substring of the model's name."""


def read_models(body: bytes) -> list[ModelInfo]:
    """Parse a list of models, either bare or in an object's `data`. Raises ProtocolError if there is no list."""
    try:
        answer = jsontext.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the list of models is not valid JSON") from error
    entries = answer if is_array(answer) else jsontext.as_object(answer).get("data")
    if not is_array(entries):
        raise ProtocolError("the response has no list of models")
    return [_info(entry) for entry in objects(entries) if text_in(entry, "id")]


def _info(entry: JsonObject) -> ModelInfo:
    name = str(entry["id"])
    return ModelInfo(
        name=name,
        kinds=next((kinds for mark, kinds in _KINDS.items() if mark in name.lower()), ("chat",)),
        display_name=text_in(entry, "name") or text_in(entry, "display_name"),
        description=text_in(entry, "description"),
        max_input_tokens=_first(entry, INPUT_LIMITS),
        max_output_tokens=_first(entry, OUTPUT_LIMITS),
        **abilities(entry),
        capabilities={key: value for key, value in entry.items() if key not in ("id", "object")},
    )


def _first(entry: JsonObject, paths: tuple[str, ...]) -> int | None:
    for path in paths:
        value: object = entry
        for step in path.split("."):
            value = jsontext.as_object(value).get(step)
        if type(value) is int and value > 0:
            return value
    return None
