"""Parses model abilities from the model lists of servers, in the various forms that they use. Pure."""

from collections.abc import Mapping
from typing import Any

from sidestream.jsontext import JsonObject, as_object, is_array

_INPUTS = {
    "images_in": ("image", "images", "vision"),
    "documents_in": ("file", "pdf", "document"),
    "audio_in": ("audio",),
}
_OUTPUTS = {"images_out": ("image", "images")}
_PARAMETERS = {
    "client_tools": ("tools",),
    "thinking": ("reasoning", "include_reasoning", "thinking"),
    "typed_output": ("structured_outputs", "response_format"),
}
_FLAGS = {
    "images_in": ("vision", "image_input", "images"),
    "documents_in": ("pdf_input", "document_input"),
    "audio_in": ("audio", "audio_input"),
    "thinking": ("thinking", "reasoning"),
    "client_tools": ("function_calling", "tools", "tool_use"),
    "typed_output": ("structured_outputs", "json_schema"),
}
"""Flag names, by ability."""


def abilities(entry: JsonObject) -> dict[str, Any]:
    """Return the ModelInfo fields that an entry reports, as booleans. Others are left out."""
    inputs, outputs = _modalities(entry)
    found = _named(inputs, _INPUTS) | _named(outputs, _OUTPUTS)
    found |= _named(_texts(entry.get("supported_parameters")), _PARAMETERS)
    flags = entry.get("capabilities")
    if is_array(flags):
        # A list names what a model can do; a missing name does not prove that it cannot.
        return found | {ability: True for ability, is_there in _named(_texts(flags), _FLAGS).items() if is_there}
    return found | _flags_in(as_object(flags)) | _flags_in(entry)


def _flags_in(flags: Mapping[str, Any]) -> dict[str, bool]:
    """Parse flags such as `{"vision": true}` or `{"vision": {"supported": true}}`."""
    found: dict[str, bool] = {}
    for ability, names in _FLAGS.items():
        values = [_flag(flags[name]) for name in names if name in flags]
        known = [value for value in values if value is not None]
        if known:
            found[ability] = any(known)
    return found


def _flag(value: Any) -> bool | None:
    value = as_object(value).get("supported", value)
    return value if isinstance(value, bool) else None


def _modalities(entry: JsonObject) -> tuple[list[str] | None, list[str] | None]:
    """Return the input and output modalities, each None if the entry does not say."""
    places = (entry, as_object(entry.get("architecture")))
    inputs = next((_texts(place["input_modalities"]) for place in places if "input_modalities" in place), None)
    outputs = next((_texts(place["output_modalities"]) for place in places if "output_modalities" in place), None)
    both = entry.get("modalities")
    inputs = _texts(both) if inputs is None else inputs
    sides = as_object(both)
    inputs = _texts(sides["input"]) if inputs is None and "input" in sides else inputs
    outputs = _texts(sides["output"]) if outputs is None and "output" in sides else outputs
    written = places[1].get("modality")
    if inputs is None and isinstance(written, str) and "->" in written:
        # For example `text+image->text`.
        before, _, after = written.partition("->")
        return before.split("+"), after.split("+")
    return inputs, outputs


def _texts(value: Any) -> list[str] | None:
    return [str(entry).lower() for entry in value] if is_array(value) else None


def _named(names: list[str] | None, abilities: Mapping[str, tuple[str, ...]]) -> dict[str, bool]:
    if names is None:
        return {}
    return {ability: any(word in names for word in words) for ability, words in abilities.items()}
