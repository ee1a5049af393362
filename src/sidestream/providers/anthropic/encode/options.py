"""Options as parameters of the request, and the beta headers that go with them."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject, objects
from sidestream.providers.anthropic.context import RESULT_TOOL
from sidestream.providers.anthropic.encode.tools import closed
from sidestream.providers.anthropic.options import (
    DEFAULT_MAX_TOKENS,
    AnthropicOptions,
    AnthropicThinking,
    ClearThinking,
    ClearToolUses,
    Compact,
)
from sidestream.providers.anthropic.server_side import AnthropicTool
from sidestream.providers.anthropic.versions import BETAS
from sidestream.providers.protocol import Compaction, OutputSchema
from sidestream.tools.server_side import ServerSideTool

PLAIN_OPTIONS = ("temperature", "top_p", "top_k", "service_tier", "speed", "inference_geo", "fallback_credit_token")
"""Options that are sent unchanged under their own names."""


def parameters_of(options: AnthropicOptions) -> JsonObject:
    """The parameters that depend on options alone."""
    body: JsonObject = {"max_tokens": _max_tokens(options)}
    body |= {name: value for name in PLAIN_OPTIONS if (value := getattr(options, name)) is not None}
    if options.stop_sequences:
        body["stop_sequences"] = list(options.stop_sequences)
    if options.user_id is not None:
        body["metadata"] = {"user_id": options.user_id}
    if options.thinking is not None:
        body["thinking"] = _thinking(options.thinking)
    if options.cache_control is not None:
        body["cache_control"] = {"type": "ephemeral", "ttl": options.cache_control}
    if options.previous_message_id is not None:
        body["diagnostics"] = {"previous_message_id": options.previous_message_id}
    if options.context_management:
        body["context_management"] = {"edits": [_edit(edit) for edit in options.context_management]}
    if options.compaction is not None:
        body["compaction"] = {"type": "summarize", **_set(options.compaction)}
    if options.fallbacks == "default":
        body["fallbacks"] = "default"
    elif options.fallbacks:
        body["fallbacks"] = [{"model": entry} if isinstance(entry, str) else entry for entry in options.fallbacks]
    return body


def compaction_of(compaction: Compaction | None, options: AnthropicOptions) -> JsonObject:
    """The parameter that lets the server compact the conversation, unless options say how; threads do not allow it."""
    if compaction is None or options.context_management or options.compaction is not None or options.thread is not None:
        return {}
    return {"context_management": {"edits": [_edit(Compact(trigger_tokens=compaction.at_tokens))]}}


def _max_tokens(options: AnthropicOptions) -> int:
    """Thinking counts as output, so its budget is added to the default."""
    budget = (options.thinking.budget_tokens if options.thinking is not None else None) or 0
    if options.max_tokens is None:
        return DEFAULT_MAX_TOKENS + budget
    if budget and options.max_tokens <= budget:
        raise ConfigurationError(
            f"max_tokens={options.max_tokens} must exceed budget_tokens={budget} of thinking; raise it"
        )
    return options.max_tokens


def _thinking(thinking: AnthropicThinking) -> JsonObject:
    body = {key: value for key, value in _set(thinking).items() if key != "prefix_mismatch"}
    if thinking.prefix_mismatch is not None:
        body["block_binding"] = {"prefix_mismatch_behavior": thinking.prefix_mismatch}
    return {"type": thinking.type, **body}


def _edit(edit: ClearToolUses | ClearThinking | Compact) -> JsonObject:
    kind = str(edit.__struct_config__.tag)
    match edit:
        case ClearThinking(keep=int() as turns):
            return {"type": kind, "keep": {"type": "thinking_turns", "value": turns}}
        case Compact(trigger_tokens=int() as tokens):
            rest = {key: value for key, value in _set(edit).items() if key != "trigger_tokens"}
            return {"type": kind, "trigger": {"type": "input_tokens", "value": tokens}, **rest}
        case _:
            return {"type": kind, **_set(edit)}


def _set(config: Any) -> JsonObject:
    """The fields that are set."""
    return {
        name: list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType]
        for name, value in asdict(config).items()
        if value not in (None, ())
    }


def tool_choice_of(options: AnthropicOptions, *, forces_result: bool) -> JsonObject | None:
    """Which tools the model may or must call. A tool cannot be forced while the model thinks."""
    choice: JsonObject | None = None
    if isinstance(options.tool_choice, str):
        choice = {"type": options.tool_choice}
    elif options.tool_choice is not None:
        choice = dict(options.tool_choice)
    thinks = options.thinking is not None and options.thinking.type != "disabled"
    if forces_result and not thinks and choice is None:
        choice = {"type": "tool", "name": RESULT_TOOL}
    if options.parallel_tool_calls is None:
        return choice
    return {**(choice or {"type": "auto"}), "disable_parallel_tool_use": not options.parallel_tool_calls}


def output_config_of(options: AnthropicOptions, schema: OutputSchema | None) -> JsonObject | None:
    """Effort, budget, and the schema that the answer must follow."""
    config: JsonObject = {"effort": options.effort} if options.effort else {}
    if options.task_budget is not None:
        config["task_budget"] = {"type": "tokens", **_set(options.task_budget)}
    if schema is not None:
        config["format"] = {"type": "json_schema", "schema": closed(schema.schema)}
    return config or None


def betas_of(
    options: AnthropicOptions, body: JsonObject, server_side: list[ServerSideTool], *, blocks: Sequence[str]
) -> tuple[str, ...]:
    """The beta headers, each once: those that features of the request need, then those in the options.

    `blocks`: the types of blocks in its messages that need one.
    """
    features = [*_features(options, body), *blocks]
    chosen = [BETAS[feature] for feature in features if feature in BETAS]
    chosen += [beta for tool in server_side if isinstance(tool, AnthropicTool) for beta in tool.betas]
    return tuple(dict.fromkeys((*(chosen if options.chooses_betas else ()), *options.betas)))


def _features(options: AnthropicOptions, body: JsonObject) -> list[str]:
    tools = objects(body.get("tools"))
    features = [str(tool["type"]) for tool in tools if "type" in tool]
    features += [f"{tool['type']}.tools" for tool in tools if tool.get("type") == "mcp_toolset" and "tools" in tool]
    features += [*body, *body.get("output_config", ()), *body.get("thinking", ())]
    edits = objects(body.get("context_management", {}).get("edits"))
    features += [str(edit.get("type")) for edit in edits]
    if options.thinking is not None:
        features.append(f"display.{options.thinking.display}")
    return [*features, f"speed.{options.speed}"]
