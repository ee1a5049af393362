"""Encoding of the body and beta headers of `POST /v1/messages`. Pure."""

import itertools
from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject, is_object, objects, without_none
from sidestream.messages.message import ChatMessage, DataPart, LinkPart
from sidestream.messages.references import Replays
from sidestream.output import OutputSchema
from sidestream.providers.anthropic.context import (
    INLINE_TOOLS,
    PROVIDER_NAME,
    RESULT_TOOL,
    SESSION_KEY,
    MessagesContext,
)
from sidestream.providers.anthropic.encode.messages import EncodedMessages, MessagesTarget, encode_messages
from sidestream.providers.anthropic.encode.replay import (
    ToolPlan,
    addition_blocks,
    first_after_summary,
    note_of,
    plan_tools,
)
from sidestream.providers.anthropic.encode.tools import (
    MessagesTools,
    closed,
    encode_tools,
    result_tool,
    server_side_tools_of,
)
from sidestream.providers.anthropic.options import (
    DEFAULT_MAX_TOKENS,
    AnthropicOptions,
    AnthropicThinking,
    AnthropicTool,
    ClearThinking,
    ClearToolUses,
    Compact,
)
from sidestream.providers.anthropic.settings import SETTINGS
from sidestream.providers.anthropic.threads import CREATE_ONLY, is_paused, start_thread
from sidestream.providers.anthropic.versions import BETAS, has_inline_tools, has_native_output
from sidestream.providers.protocol import CompactionPlan, ModelRequest
from sidestream.providers.shared.attachments import ContainerFiles
from sidestream.providers.shared.continuation import LastContainer, last_container, replay_notices
from sidestream.providers.shared.encoding import EncodedRequest, checked_options, given, merged, nothing_to_send
from sidestream.providers.shared.settings_mapping import with_settings
from sidestream.tools.server_side import CodeInterpreter, ServerSideTool

PLAIN_OPTIONS = ("temperature", "top_p", "top_k", "service_tier", "speed", "inference_geo", "fallback_credit_token")
"""Options that are sent unchanged under their own names."""


def parameters_of(options: AnthropicOptions) -> JsonObject:
    """Return the parameters that depend only on options."""
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


def compaction_of(compaction: CompactionPlan | None, options: AnthropicOptions) -> JsonObject:
    """Return the parameter that lets the server compact the conversation.

    It is empty if the options configure that themselves, or if they use a thread, which does not allow it.
    """
    if compaction is None or options.context_management or options.compaction is not None or options.thread is not None:
        return {}
    return {"context_management": {"edits": [_edit(Compact(trigger_tokens=compaction.at_tokens))]}}


def _max_tokens(options: AnthropicOptions) -> int:
    """Return the output limit. Thinking counts as output, so its budget is added to the default."""
    budget = (options.thinking.budget_tokens if options.thinking is not None else None) or 0
    if options.max_tokens is None:
        return DEFAULT_MAX_TOKENS + budget
    if budget and options.max_tokens <= budget:
        raise ConfigurationError(
            f"max_tokens={options.max_tokens} must exceed the thinking budget_tokens={budget}; raise max_tokens"
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
    """Return the fields that are set."""
    return {
        name: list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType]
        for name, value in asdict(config).items()
        if value not in (None, ())
    }


def tool_choice_of(options: AnthropicOptions, *, forces_result: bool) -> JsonObject | None:
    """Return which tools the model may or must call. A tool cannot be forced while the model thinks."""
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
    """Return the effort, the task budget, and the schema that the answer must follow."""
    config: JsonObject = {"effort": options.effort} if options.effort else {}
    if options.task_budget is not None:
        config["task_budget"] = {"type": "tokens", **_set(options.task_budget)}
    if schema is not None:
        config["format"] = {"type": "json_schema", "schema": closed(schema.schema)}
    return config or None


def betas_of(
    options: AnthropicOptions, body: JsonObject, server_side: list[ServerSideTool], *, blocks: Sequence[str]
) -> tuple[str, ...]:
    """Return the beta headers that the request's features need, then those in the options, each once.

    `blocks` are the block types in its messages that need one.
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


RESULT_INSTRUCTION = f"When everything else is done, give the final answer by calling the tool {RESULT_TOOL}, alone."
_UNCACHED = frozenset({"thinking", "redacted_thinking"})


DISPLAY_NAME = "Anthropic"
_DEFAULT = AnthropicOptions()


def encode_request(
    request: ModelRequest, model: str, base_url: str, provider: str = PROVIDER_NAME
) -> EncodedRequest[MessagesContext]:
    """Encode a request. Raises ConfigurationError if the API cannot serve it."""
    options = checked_options(request.options, _DEFAULT, DISPLAY_NAME)
    options, left_out = with_settings(options, request.settings, SETTINGS, DISPLAY_NAME, model)
    server_side = server_side_tools_of(request, options)
    tools = encode_tools(request, options, server_side, model)
    plan = _plan(request, tools, options, model, base_url)
    offered = [*plan.top, *tools.entries]
    thread = start_thread(request, options.thread, offered, model, base_url)
    replays = Replays(request.replays)
    has_session = "session" not in request.without
    summary = first_after_summary(request.messages, model, base_url, replays) if has_session else 0
    start = max(thread.begin, summary)
    leading = _instructions(request.messages[:start])
    shift = start - len(leading)
    target = MessagesTarget(
        model=model,
        base_url=base_url,
        provider=provider,
        replays=replays,
        citations=options.document_citations,
        has_session=has_session,
        has_thinking="thinking" not in request.without,
        first=max(thread.first - shift, 0),
        servers=frozenset(str(server["name"]) for server in tools.mcp_servers),
        added_tools={place - shift: added for place, added in plan.added.items() if place >= start},
    )
    messages = encode_messages((*leading, *request.messages[start:]), target)
    if not messages.messages and not (thread.is_continued and is_paused(request.messages)):
        raise nothing_to_send()
    note = plan.note
    if plan.new and _may_add(messages):
        messages.messages.append({"role": "system", "content": addition_blocks(plan.new)})
        note = note_of(plan.new)
    if not thread.is_continued:
        _upload(messages.messages, server_side)
    last = _container(request, server_side, messages, base_url)
    container = last.id
    files = _fill_container(request, server_side, messages.messages, last, base_url)
    by_tool = _answers_by_tool(request, options, model)
    system = [text for text in (request.system, *messages.system) if text and text.strip()]
    has_others = bool(offered)
    if by_tool and request.output_schema is not None:
        if has_others:
            system.append(RESULT_INSTRUCTION)
        offered.append(result_tool(request.output_schema))

    body: JsonObject = {"model": model, **parameters_of(options), **compaction_of(request.compaction, options)}
    body |= {"system": "\n\n".join(system) or None, "messages": messages.messages, "tools": offered or None}
    body["mcp_servers"] = tools.mcp_servers or None
    body["tool_choice"] = tool_choice_of(options, forces_result=by_tool and not has_others)
    body["output_config"] = output_config_of(options, None if by_tool else request.output_schema)
    body["container"] = _container_form(container, options, is_paused=bool(messages.waiting))
    body["stream"] = request.stream
    body["thread"] = thread.parameter
    if thread.is_continued:
        body |= dict.fromkeys(CREATE_ONLY)
    body = without_none(body)
    if options.prompt_cache is not None:
        _cache(body, {"type": "ephemeral", "ttl": options.prompt_cache})
    return EncodedRequest(
        body=merged(body, options.extra_body),
        headers=_headers(options, betas_of(options, body, server_side, blocks=_special_blocks(messages))),
        context=MessagesContext(
            model=model,
            base_url=base_url,
            has_result_tool=by_tool,
            waiting=messages.waiting,
            delivered=_delivered(request.messages),
            client_names=tools.client_names,
            container_id=container,
            tools_note=note,
            thread_note=thread.note,
            messages=request.messages if thread.parameter is not None else None,
            is_compaction=options.compaction is not None,
            files_note={} if files is None else files.note(),
        ),
        warnings=(*messages.warnings, *tools.warnings, *left_out),
        notices=(*replay_notices(thread.reason, replays), *last.notices),
        needs=tuple(replays.needed),
        uploads=() if files is None else tuple(files.missing),
        names_uploads=files is not None and files.is_named,
    )


def _plan(
    request: ModelRequest, tools: MessagesTools, options: AnthropicOptions, model: str, base_url: str
) -> ToolPlan:
    """Plan where each client tool is offered. All are at the top, unless tools can be added to the conversation."""
    inline = options.inline_tools
    if inline is None:
        # A summary within a turn replaces the messages that add tools. One of the whole conversation repeats them.
        compacts = request.compaction or options.context_management
        inline = has_inline_tools(model) and not compacts
    if not inline:
        return ToolPlan(top=tools.functions)
    if INLINE_TOOLS in request.without:
        return ToolPlan(top=tools.functions, note=note_of(tools.functions, is_top=True))
    return plan_tools(request.messages, tools.functions, base_url)


def _instructions(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Return the system messages at the beginning."""
    return tuple(itertools.takewhile(lambda message: message.role == "system", messages))


def _may_add(messages: EncodedMessages) -> bool:
    """Return whether tools can be added now.

    A paused answer must stay last, so the tools are added to the next request then.
    """
    return not messages.waiting and bool(messages.messages) and messages.messages[-1]["role"] != "assistant"


def _special_blocks(messages: EncodedMessages) -> list[str]:
    """Return the types of blocks that need a beta header."""
    found = {block["type"] for message in messages.messages for block in message["content"]}
    return [kind for kind in ("tool_addition", "mcp_tool_listing") if kind in found]


def _headers(options: AnthropicOptions, betas: tuple[str, ...]) -> dict[str, str]:
    named = {
        "anthropic-beta": ",".join(betas),
        "anthropic-user-profile-id": options.user_profile_id,
        "anthropic-workspace-id": options.workspace_id,
    }
    return {name: value for name, value in named.items() if value} | options.extra_headers


def _answers_by_tool(request: ModelRequest, options: AnthropicOptions, model: str) -> bool:
    if request.output_schema is None:
        return False
    if options.typed_output is not None:
        return options.typed_output == "tool"
    return not has_native_output(model)


def _container(
    request: ModelRequest, server_side: list[ServerSideTool], messages: EncodedMessages, base_url: str
) -> LastContainer:
    """Return the container to use.

    A tool may name it. Otherwise it is the last one, if the tool reuses it or it has work in progress.
    """
    if "container" in request.without:
        return LastContainer()
    tool = next((tool for tool in server_side if isinstance(tool, CodeInterpreter)), None)
    if tool is not None and tool.container_id is not None:
        return LastContainer(tool.container_id)
    if not messages.waiting and not (tool is not None and tool.reuse_container):
        return LastContainer()
    return last_container(request.messages, (SESSION_KEY,), base_url)


def _container_form(container: str | None, options: AnthropicOptions, *, is_paused: bool) -> Any:
    """Encode the container with the skills to load, or as a plain id.

    The API requires a plain id if there are no skills. A paused answer has already loaded them.
    """
    if not options.skills or (is_paused and container is not None):
        return container
    names = {"id": "skill_id", "version": "version"}
    skills = [{"type": skill.type, **given(skill, names)} for skill in options.skills]
    return {**({"id": container} if container else {}), "skills": skills}


def _upload(messages: list[JsonObject], server_side: list[ServerSideTool]) -> None:
    """Add the files for the container to the first user message."""
    files = [file_id for tool in server_side if isinstance(tool, CodeInterpreter) for file_id in tool.file_ids]
    first = next((message for message in messages if message["role"] == "user"), None)
    if files and first is not None:
        uploads = [{"type": "container_upload", "file_id": file_id} for file_id in files]
        first["content"] = [*first["content"], *uploads]


def _fill_container(
    request: ModelRequest,
    server_side: list[ServerSideTool],
    messages: list[JsonObject],
    last_used: LastContainer,
    base_url: str,
) -> ContainerFiles | None:
    """Add the conversation's files for the container to the last user message, and what was lost with an old one."""
    tool = next((tool for tool in server_side if isinstance(tool, CodeInterpreter)), None)
    last = next((message for message in reversed(messages) if message["role"] == "user"), None)
    if tool is None or last is None:
        return None
    files = ContainerFiles(request, (SESSION_KEY,), base_url, is_left=last_used.is_left)
    given = [part for part in tool.files if isinstance(part, DataPart)]
    uploads = [{"type": "container_upload", "file_id": file_id} for file_id in files.ids(given, last_used.id)]
    lost = files.restored(given)
    last["content"] = [*last["content"], *uploads, *([{"type": "text", "text": lost}] if lost else [])]
    return files


def _delivered(messages: Sequence[ChatMessage]) -> frozenset[str]:
    """Return the links and files that this turn has already delivered."""
    found: set[str] = set()
    for message in reversed(messages):
        if message.role == "user":
            break
        found |= {part.url for part in message.parts if isinstance(part, LinkPart)}
        session = message.metadata.get(SESSION_KEY)
        found |= {str(file_id) for file_id in session.get("files", ())} if is_object(session) else set()
    return frozenset(found)


def _cache(body: JsonObject, control: JsonObject) -> None:
    """Mark the end of each stable section (system prompt, tools, history) for caching."""
    if "system" in body:
        body["system"] = [{"type": "text", "text": body["system"], "cache_control": control}]
    tool = next((tool for tool in reversed(body.get("tools", [])) if not tool.get("defer_loading")), None)
    if tool is not None:
        # The API refuses the mark on tools with deferred loading.
        tool["cache_control"] = control
    for message in reversed(body["messages"]):
        for place in range(len(message["content"]) - 1, -1, -1):
            block = message["content"][place]
            if block["type"] not in _UNCACHED:
                message["content"][place] = {**block, "cache_control": control}
                return
