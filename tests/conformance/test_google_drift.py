"""Our tables of parts, fields, events, steps and reasons against the unions of the vendor's SDK, both ways."""

from enum import Enum
from importlib import import_module
from typing import Any, get_args

import pytest

from requirements import requirement
from sidestream.providers.google.decode.content import BESIDE, PARTS, PASSED_ON, TOOL_TYPES
from sidestream.providers.google.decode.decoder import CANDIDATE_FIELDS, CHUNK_FIELDS
from sidestream.providers.google.decode.grounding import SOURCES
from sidestream.providers.google.decode.outcome import REASONS
from sidestream.providers.google.interactions import decode, steps
from sidestream.providers.google.interactions.decode import STATUSES

pytest.importorskip(
    "google.genai", reason="google-genai is not installed: our tables were not compared with the vendor's unions"
)

types = import_module("google.genai.types")
interactions = import_module("google.genai._gaos.types.interactions")


def fields(model: Any) -> set[str]:
    """The names of a model's fields on the wire."""
    return {field.alias or name for name, field in model.model_fields.items()}


def values(enum: type[Enum]) -> set[str]:
    """The values of an enum, without the one that says nothing."""
    return {member.value for member in enum if not member.value.endswith("UNSPECIFIED")}


def variants(union: Any, key: str) -> set[str]:
    """The discriminator of each model in a union, from its Literal."""
    (models, *_) = get_args(union)
    found = {name for model in get_args(models) for name in get_args(model.model_fields[key].annotation)}
    return found - {"UNKNOWN"}


def test_every_vendor_part_kind_is_accounted_for():
    assert fields(types.Part) == PARTS.keys() | PASSED_ON.keys() | BESIDE.keys()
    assert not PARTS.keys() & PASSED_ON.keys()
    assert all(PASSED_ON.values())
    assert all(BESIDE.values())


SDK_ONLY = {"sdkHttpResponse", "automaticFunctionCallingHistory", "parsed"}
"""Fields that the SDK adds to a response itself."""
VERTEX_ONLY = {"MODEL_ARMOR", "JAILBREAK"}
"""Reasons that the SDK lists for blocked prompts only, and that Vertex gives for blocked answers too."""
SERVER_ONLY = {"MISSING_THOUGHT_SIGNATURE"}
"""Reasons that the API documents and this SDK does not list yet."""
ROOT_OF_OURS = {"error": "in a stream, in place of a status"}


def test_response_and_candidate_fields_are_decoded():
    assert fields(types.GenerateContentResponse) - SDK_ONLY == CHUNK_FIELDS.keys() - ROOT_OF_OURS.keys()
    assert fields(types.Candidate) == CANDIDATE_FIELDS.keys()


@requirement("R65")
def test_block_reasons_are_content_filter_finish_reasons():
    assert values(types.BlockedReason) >= VERTEX_ONLY
    named = values(types.BlockedReason) - {"OTHER"}
    assert {reason: REASONS[reason] for reason in named} == dict.fromkeys(named, "content-filter")


@requirement("R65")
def test_every_vendor_finish_reason_is_mapped():
    assert values(types.FinishReason) | {"FINISH_REASON_UNSPECIFIED"} | VERTEX_ONLY | SERVER_ONLY == REASONS.keys()


def test_every_vendor_tool_type_has_key():
    assert values(types.ToolType) == TOOL_TYPES.keys()


@requirement("R62")
def test_every_vendor_grounding_kind_becomes_source():
    assert fields(types.GroundingChunk) == SOURCES.keys()


@requirement("R66")
def test_interaction_events_are_decoded_or_ignored_with_reason():
    assert variants(interactions.InteractionSSEEvent, "event_type") == decode.EVENTS.keys()
    assert variants(interactions.Step, "type") == steps.STEPS.keys() | steps.IGNORED_STEPS.keys()
    assert variants(interactions.StepDeltaData, "type") == steps.DELTAS.keys() | steps.IGNORED_DELTAS.keys()
    assert all({**steps.IGNORED_STEPS, **steps.IGNORED_DELTAS}.values())


@requirement("R66")
def test_every_interaction_status_is_mapped():
    annotation = interactions.Interaction.model_fields["status"].annotation
    assert {name for name in literals(annotation) if isinstance(name, str)} == STATUSES.keys()


def test_interaction_annotations_are_sources_or_have_reason():
    assert variants(interactions.Annotation, "type") == steps.SOURCES.keys() | steps.NO_SOURCES.keys()
    assert all(steps.NO_SOURCES.values())


def literals(annotation: Any) -> set[Any]:
    """All that Literals inside of an annotation allow."""
    arguments = get_args(annotation)
    return {leaf for argument in arguments for leaf in (literals(argument) or {argument})}


def test_vendor_unions_are_not_empty():
    assert {"text", "functionCall", "toolCall"} <= fields(types.Part)
    assert {"step.start", "error"} <= variants(interactions.InteractionSSEEvent, "event_type")
    assert len(variants(interactions.Step, "type")) >= 21
    assert len(values(types.FinishReason)) >= 19
