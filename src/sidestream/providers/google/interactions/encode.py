"""Encoding of `POST /interactions`, and the choice of the session that it continues. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sidestream.errors import UnsupportedError
from sidestream.jsontext import JsonObject, is_object, without_none
from sidestream.messages.references import Replays
from sidestream.messages.sessions import find_anchor
from sidestream.providers.google.computer import screen_of
from sidestream.providers.google.context import some_text
from sidestream.providers.google.encode.contents import system_instruction
from sidestream.providers.google.encode.request import FINAL_ANSWER_PROMPT, defers_output, unfinished
from sidestream.providers.google.encode.server_side import PORTABLE, WHO, mcp_headers, server_side_tools_of, store_names
from sidestream.providers.google.interactions.encode_steps import StepsTarget, encode_steps
from sidestream.providers.google.interactions.options import (
    REPLAY_KEY,
    SESSION_KEY,
    GoogleAllowedDomain,
    GoogleEnvironment,
    GoogleInteractionsOptions,
    InteractionContext,
)
from sidestream.providers.google.options import (
    GoogleComputerUse,
    GoogleFileSearch,
    GoogleImageOutput,
    GoogleMaps,
    GoogleSearch,
    GoogleServerSideTool,
)
from sidestream.providers.google.settings import AGENT_SETTINGS, INTERACTIONS_SETTINGS
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared.continuation import (
    LastContainer,
    SessionStart,
    find_session,
    last_container,
    mismatch,
    replay_notices,
    start_after,
)
from sidestream.providers.shared.encoding import EncodedRequest, checked_options, given, merged, nothing_to_send
from sidestream.providers.shared.hosting import allowed_names, refuse_approval, refuse_others
from sidestream.providers.shared.settings_mapping import with_settings
from sidestream.tools.server_side import CodeInterpreter, RemoteMCP, ServerSideTool


def continue_from(request: ModelRequest, options: GoogleInteractionsOptions, model: str, base_url: str) -> SessionStart:
    """Return where to continue. A session from the options wins over one in the history."""
    messages = request.messages
    previous = options.previous_interaction_id
    if previous is not None:
        return start_after(find_session(messages, SESSION_KEY, "interaction_id", previous), previous)
    if options.store is False:
        return SessionStart()
    if "session" in request.without:
        return SessionStart(reason="refused")
    anchor = find_anchor(messages, SESSION_KEY)
    if anchor is None or some_text(anchor.session, "interaction_id") is None:
        return SessionStart()
    reason = mismatch(anchor, messages, model, base_url)
    return start_after(anchor, anchor.session["interaction_id"]) if reason is None else SessionStart(reason=reason)


_AGENT = re.compile(r"deep-research|antigravity|codemender|agents/")


API = "The Interactions API"
_DEFAULT = GoogleInteractionsOptions()


def encode_interaction(request: ModelRequest, model: str, base_url: str) -> EncodedRequest[InteractionContext]:
    """Encode a request. Raises ConfigurationError if the API cannot serve it."""
    options = checked_options(request.options, _DEFAULT, API)
    is_agent = options.agent if options.agent is not None else bool(_AGENT.match(model))
    rows = AGENT_SETTINGS if is_agent else INTERACTIONS_SETTINGS
    options, left_out = with_settings(options, request.settings, rows, API, model)
    server_side = server_side_tools_of(request, options, INTERACTIONS_PORTABLE)
    tools = [] if "tools" in request.without else _tools(request, options, server_side)
    defers = defers_output(request, options.typed_output_beside_tools, model, tools)
    messages, token = unfinished(request.messages, SESSION_KEY, REPLAY_KEY)
    finished = ModelRequest(messages=tuple(messages), options=options, without=request.without)
    start = continue_from(finished, options, model, base_url)
    replays = Replays(request.replays)
    target = StepsTarget(model=model, base_url=base_url, replays=replays, has_tools=bool(tools))
    steps, warnings = encode_steps(finished.messages, start.index, target)
    if "tools" in request.without and (not steps or steps[-1]["type"] not in ("user_input", "function_result")):
        steps.append({"type": "user_input", "content": [{"type": "text", "text": FINAL_ANSWER_PROMPT}]})
    system = system_instruction(request.messages, request.system)
    code = next((tool for tool in server_side if isinstance(tool, CodeInterpreter)), None)
    last = LastContainer()
    if options.environment is None and code is not None and code.container_id is None and code.reuse_container:
        last = last_container(request.messages, (SESSION_KEY,), base_url, "environment_id")
    body: JsonObject = {
        "agent" if is_agent else "model": model.removeprefix("agents/") if is_agent else model,
        "input": steps or None,
        "system_instruction": "\n\n".join(part["text"] for part in system["parts"]) if system else None,
        "tools": tools or None,
        "previous_interaction_id": start.previous_id,
        "generation_config": given(options, {name: name for name in _GENERATION}) or None,
        "response_format": _response_format(request, options, server_side, with_schema=not defers),
        "environment": _environment(options, code, last),
        "safety_settings": [without_none(given(s, _SAFETY)) for s in options.safety_settings] or None,
        "continuation_token": options.continuation_token or token,
        **given(options, {name: name for name in _ROOT}),
        "stream": request.stream,
    }
    body = merged(without_none(body), options.extra_body)
    if not body.keys() & {"input", "continuation_token"}:
        raise nothing_to_send()
    return EncodedRequest(
        body=body,
        headers=options.extra_headers,
        context=_context(request, options, server_side, model, base_url, drafts=defers),
        first=start.index,
        warnings=(*warnings, *left_out),
        notices=(*replay_notices(start.reason, replays), *last.notices),
        needs=tuple(replays.needed),
        defers_output=defers,
        in_background=body.get("background") is True,
    )


_GENERATION = (
    "max_output_tokens",
    "seed",
    "stop_sequences",
    "thinking_level",
    "thinking_summaries",
    "tool_choice",
    "temperature",
    "top_p",
    "image_config",
    "speech_config",
    "video_config",
    "transcription_config",
)
_ROOT = (
    "response_mime_type",
    "response_modalities",
    "store",
    "background",
    "agent_config",
    "service_tier",
    "labels",
    "webhook_config",
    "cached_content",
)
_SAFETY = {"category": "category", "threshold": "threshold", "method": "method"}


def _context(
    request: ModelRequest,
    options: GoogleInteractionsOptions,
    server_side: list[Any],
    model: str,
    base_url: str,
    *,
    drafts: bool,
) -> InteractionContext:
    return InteractionContext(
        store=options.store is not False,
        model=model,
        base_url=base_url,
        messages=request.messages,
        drafts=drafts,
        screen=screen_of(server_side),
        functions=frozenset(spec.name for spec in request.tools),
    )


def _code(tool: CodeInterpreter) -> CodeInterpreter:
    refuse_others(tool, WHO, "container_id", "reuse_container")
    return tool


def _mcp(tool: RemoteMCP) -> RemoteMCP:
    refuse_others(tool, WHO, "label", "url", "headers", "authorization", "allowed_tools", "require_approval")
    if tool.url is None:
        raise UnsupportedError("Google connects to MCP servers by URL only; set RemoteMCP(url=…)")
    refuse_approval(tool, WHO)
    allowed_names(tool, WHO)
    return tool


INTERACTIONS_PORTABLE: dict[type[ServerSideTool], Callable[[Any], Any]] = {
    **PORTABLE,
    CodeInterpreter: _code,
    RemoteMCP: _mcp,
}
"""Portable tool → its conversion for this API. Code may continue in an environment."""


def _search_tool(tool: GoogleSearch) -> JsonObject:
    for name in ("start_time", "end_time", "exclude_domains", "blocking_confidence"):
        if getattr(tool, name):
            raise UnsupportedError(f"the Interactions API does not support GoogleSearch({name}=…)")
    types = {"search_types": [f"{kind}_search" for kind in tool.search_types]} if tool.search_types else {}
    return {"type": "google_search", **types}


def _file_search_tool(tool: GoogleFileSearch) -> JsonObject:
    names = {"top_k": "top_k", "metadata_filter": "metadata_filter"}
    return {"type": "file_search", "file_search_store_names": store_names(tool), **given(tool, names)}


def _maps_tool(tool: GoogleMaps) -> JsonObject:
    for name in ("language", "grounding_types"):
        if getattr(tool, name):
            raise UnsupportedError(f"the Interactions API does not support GoogleMaps({name}=…)")
    names = ("enable_widget", "latitude", "longitude")
    return {"type": "google_maps", **given(tool, {name: name for name in names})}


def _computer_tool(tool: GoogleComputerUse) -> JsonObject:
    names = {
        "excluded_functions": "excluded_predefined_functions",
        "detect_prompt_injection": "enable_prompt_injection_detection",
        "disabled_safety_policies": "disabled_safety_policies",
    }
    return {"type": "computer_use", "environment": tool.environment, **given(tool, names)}


def _mcp_tool(tool: RemoteMCP) -> JsonObject:
    body: JsonObject = {"type": "mcp_server", "name": tool.label, "url": tool.url}
    headers = mcp_headers(tool)
    if headers:
        body["headers"] = headers
    if tool.allowed_tools is not None:
        body["allowed_tools"] = [{"tools": allowed_names(tool, WHO)}]
    return body


_ENTRIES: Mapping[type, Callable[[Any], JsonObject]] = {
    GoogleServerSideTool: lambda tool: {"type": str(tool)},
    CodeInterpreter: lambda tool: {"type": "code_execution"},
    GoogleSearch: _search_tool,
    GoogleFileSearch: _file_search_tool,
    GoogleMaps: _maps_tool,
    GoogleComputerUse: _computer_tool,
    RemoteMCP: _mcp_tool,
}
"""Server-side tool → its entry in `tools`."""


def _tools(request: ModelRequest, options: GoogleInteractionsOptions, server_side: list[Any]) -> list[JsonObject]:
    tools = [_ENTRIES[type(tool)](tool) for tool in server_side if type(tool) in _ENTRIES]
    functions = [
        {"type": "function", "name": spec.name, "description": spec.description, "parameters": spec.parameters}
        for spec in request.tools
    ]
    return [*tools, *options.extra_tools, *functions]


def _response_format(
    request: ModelRequest, options: GoogleInteractionsOptions, server_side: list[Any], *, with_schema: bool
) -> Any:
    chosen: Any = options.response_format
    formats: list[JsonObject] = [chosen] if is_object(chosen) else list(chosen or ())
    if request.output_schema is not None and with_schema:
        formats.append({"type": "text", "mime_type": "application/json", "schema": request.output_schema.schema})
    formats += [_image_format(tool) for tool in server_side if isinstance(tool, GoogleImageOutput)]
    if not formats:
        return None
    return formats[0] if len(formats) == 1 else formats


def _image_format(image: GoogleImageOutput) -> JsonObject:
    form: JsonObject = {"type": "image", **given(image, {"aspect_ratio": "aspect_ratio", "size": "image_size"})}
    if image.compression is not None:
        raise UnsupportedError("the Interactions API does not support image compression; leave out compression")
    return form | ({"mime_type": f"image/{image.output_format}"} if image.output_format else {})


def _network(network: Sequence[GoogleAllowedDomain] | JsonObject | str) -> Any:
    if isinstance(network, str) or is_object(network):
        return network
    names = {"domain": "domain", "credential": "credential", "headers": "transform"}
    return {"allowlist": [given(entry, names) for entry in network if isinstance(entry, GoogleAllowedDomain)]}


def _environment(options: GoogleInteractionsOptions, code: CodeInterpreter | None, last: LastContainer) -> Any:
    chosen = options.environment
    if isinstance(chosen, GoogleEnvironment):
        body: JsonObject = {"type": "remote", **given(chosen, {"environment_id": "environment_id"})}
        if chosen.network is not None:
            body["network"] = _network(chosen.network)
        if chosen.sources:
            fields = ("type", "source", "target", "content", "encoding")
            body["sources"] = [
                without_none({name: getattr(source, name) for name in fields}) for source in chosen.sources
            ]
        variables = {
            name: value if is_object(value) else {"value": value} for name, value in (chosen.env or {}).items()
        }
        return body | ({"env": variables} if variables else {})
    if chosen is not None:
        return chosen
    return None if code is None else code.container_id or last.id
