"""Our tables of events, blocks, deltas, tools and parameters against the types of the vendor's SDK."""

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from providers.anthropic.messages_wire import EVERY_BLOCK
from requirements import requirement
from sidestream.providers.anthropic.decode.blocks import BLOCKS, DELTAS
from sidestream.providers.anthropic.decode.decoder import EVENTS, IGNORED
from sidestream.providers.anthropic.decode.outcome import REASONS
from sidestream.providers.anthropic.decode.text import SOURCES
from sidestream.providers.anthropic.encode.replay import CITATIONS, RULES
from sidestream.providers.anthropic.options import AnthropicOptions
from sidestream.providers.anthropic.versions import API_VERSION, BETAS, VERSIONS

pytest.importorskip("anthropic", reason="the vendor's SDK is not installed, so drift from it was not tested")
import anthropic.types as stable
import anthropic.types.beta as beta
from anthropic import _constants
from anthropic.types.anthropic_beta_param import AnthropicBetaParam
from anthropic.types.beta.beta_raw_message_stream_event import BetaRawMessageStreamEvent
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaParams
from anthropic.types.message_create_params import MessageCreateParamsBase


def members(union: Any) -> list[Any]:
    """The classes of a union, whatever it is wrapped in."""
    if get_origin(union) is Annotated:
        return members(get_args(union)[0])
    if get_origin(union) in (Union, types.UnionType):
        return [member for part in get_args(union) for member in members(part)]
    return [union]


def names(union: Any) -> set[str]:
    """The `type` of each member of a union, from its Literal."""
    found: set[str] = set()
    for member in members(union):
        found |= set(literals(fields(member).get("type")))
    return found


def fields(member: Any) -> dict[str, Any]:
    """The fields of a model or a TypedDict with their types."""
    if hasattr(member, "model_fields"):
        return {name: field.annotation for name, field in member.model_fields.items()}
    return get_type_hints(member, include_extras=True) if isinstance(member, type) else {}


def literals(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return [value for part in get_args(kind) for value in literals(part)]


@pytest.mark.parametrize("union", [stable.RawMessageStreamEvent, BetaRawMessageStreamEvent], ids=["stable", "beta"])
def test_every_vendor_event_is_decoded(union: Any):
    assert names(union) <= EVENTS.keys()


@pytest.mark.parametrize("union", [stable.ContentBlock, beta.BetaContentBlock], ids=["stable", "beta"])
def test_every_vendor_block_is_decoded_and_resent(union: Any):
    assert names(union) <= BLOCKS.keys()
    assert names(union) <= RULES.keys() | {"text"}


@pytest.mark.parametrize("union", [stable.RawContentBlockDelta, beta.BetaRawContentBlockDelta], ids=["stable", "beta"])
def test_every_vendor_delta_is_decoded(union: Any):
    assert names(union) <= DELTAS.keys()


def test_tables_match_vendor_types_exactly():
    # The SDK raises the one and drops the other before its users see them.
    assert EVENTS.keys() | IGNORED.keys() == names(BetaRawMessageStreamEvent) | {"error", "ping"}
    assert BLOCKS.keys() == names(beta.BetaContentBlock)
    assert DELTAS.keys() == names(beta.BetaRawContentBlockDelta)


def test_vendor_unions_are_not_empty():
    assert len(names(stable.ContentBlock)) >= 12
    assert len(names(beta.BetaContentBlock)) >= 18
    assert len(names(BetaRawMessageStreamEvent)) >= 6


def test_scripts_cover_every_decoded_block():
    assert EVERY_BLOCK.keys() == BLOCKS.keys()
    for kind, script in EVERY_BLOCK.items():
        assert kind in {block["type"] for block in script.response()["content"]}


def test_vendor_citations_and_stop_reasons_are_known():
    assert names(stable.TextCitation) == SOURCES.keys() == CITATIONS.keys()
    assert set(literals(beta.BetaStopReason)) == REASONS.keys()
    assert set(literals(stable.StopReason)) <= REASONS.keys()


@pytest.mark.parametrize("kind", sorted(CITATIONS))
def test_resent_citation_fields_match_vendor(kind: str):
    (param,) = [m for m in members(stable.TextCitationParam) if kind in literals(fields(m)["type"])]
    assert set(CITATIONS[kind]) == fields(param).keys()


@pytest.mark.parametrize("kind", sorted(RULES))
def test_resent_block_fields_match_vendor(kind: str):
    taken = [m for m in members(beta.BetaContentBlockParam) if not hasattr(m, "model_fields")]
    (param,) = [m for m in taken if kind in literals(fields(m)["type"])]
    rule = RULES[kind]
    assert {*rule.required, *rule.optional} <= fields(param).keys()
    needed = {name for name, annotation in fields(param).items() if "Required[" in str(annotation)}
    assert needed - {"type"} <= {*rule.required, *rule.optional}


def test_tool_versions_and_beta_headers_exist_at_vendor():
    tools = names(beta.BetaToolUnionParam)
    for tool, versions in VERSIONS.items():
        for _, version in versions:
            assert f"{tool}_{version}" in tools
    assert set(BETAS.values()) <= set(literals(AnthropicBetaParam))


REACHED = {
    "model": "the model string",
    "messages": "the history",
    "system": "the agent's system prompt",
    "tools": "the agent's tools",
    "mcp_servers": "RemoteMCP",
    "container": "CodeInterpreter and skills",
    "output_config": "effort, task_budget, and the output type",
    "metadata": "user_id",
    "diagnostics": "previous_message_id",
    "stream": "the way the agent is called",
}
"""Parameters of the vendor that are set in another way than by an option of their name."""


@requirement("R51")
@pytest.mark.parametrize("params", [MessageCreateParamsBase, BetaParams], ids=["stable", "beta"])
def test_every_vendor_parameter_can_be_set(params: Any):
    ours = set(AnthropicOptions.__struct_fields__)
    assert params.__annotations__.keys() - ours - REACHED.keys() == set()


def test_api_version_matches_vendor():
    assert API_VERSION == _constants.ANTHROPIC_API_VERSION
