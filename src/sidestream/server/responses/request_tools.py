"""The tools of a request: client functions, tools hosted by providers, and MCP servers from an allow-list."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from sidestream.errors import ConfigurationError
from sidestream.jsontext import Json, JsonObject, as_list, as_object, is_array, is_object, objects, without_none
from sidestream.server.errors import RequestError
from sidestream.server.http.request_functions import check_names, function_fields, unknown_tool
from sidestream.server.http.requests import checked
from sidestream.server.settings import ServerSettings, offers_index
from sidestream.tools.server_side import INDEX, TOOLS, FileSearch, ServerSideTool

_TEXT_INPUT: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Arguments of a tool whose input is a string."""
_MAX_NAME = 64
_SECRET = ("authorization", "headers")
"""Fields of an MCP server that are neither stored nor echoed."""


T = TypeVar("T")


class RequestTools(Struct, frozen=True, kw_only=True):
    """The tools of one request."""

    functions: tuple[JsonObject, ...] = ()
    """Client functions, as the fields of an `ExternalTool`."""
    custom: tuple[str, ...] = ()
    """Names of the client functions whose input is a string."""
    namespaces: JsonObject = {}
    """Namespace and name of the functions in a namespace, by the name that the model sees."""
    hosted: tuple[JsonObject, ...] = ()
    """Server-side tools, in the form that a `Job` uses."""
    shown: tuple[JsonObject, ...] = ()
    """Tools as echoed by the response."""
    allowed: tuple[str, ...] | None = None
    """Names of the tools that the model may use. None means all."""
    choice: str | None = None
    """Function that the model must call first, or "required" for any tool."""
    secrets: tuple[ServerSideTool, ...] = ()
    """MCP servers with their secrets, replacing the hosted tools of the same label."""

    @property
    def has_secrets(self) -> bool:
        return bool(self.secrets)

    @property
    def param(self) -> str | None:
        """The parameter at fault if the agent cannot be called this way, usually because of hosted tools."""
        return "tools" if self.hosted else None


class _Function(Struct):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


def tools_of(given: Sequence[JsonObject], settings: ServerSettings) -> RequestTools:
    """Parse the tools. Raises RequestError if one is unknown, malformed or not allowed."""
    found = RequestTools()
    for index, tool in enumerate(given):
        at = f"tools[{index}]"
        kind = tool.get("type")
        handler = _HANDLERS.get(str(kind))
        if handler is None:
            known = ", ".join(sorted(_HANDLERS))
            raise RequestError(
                400, f"unsupported tool type {kind!r:.80}; use one of {known}", param=f"{at}.type", code="unknown_tool"
            )
        found = handler(found, tool, at, settings)
    named = [(index, tool) for index, tool in enumerate(given) if tool.get("type") in _NAMED]
    check_names([(str(tool["name"]), f"tools[{index}].name") for index, tool in named])
    return found


def allowed_tools(tools: RequestTools, choice: str | JsonObject | None) -> RequestTools:
    """Apply `tool_choice` to the tools. Raises RequestError if it names an unknown tool or none."""
    if choice == "none":
        return replace(tools, allowed=())
    if not is_object(choice):
        is_required = choice == "required" and bool(tools.functions or tools.hosted)
        return replace(tools, choice=choice if is_required else None)
    if choice.get("type") == "allowed_tools":
        chosen = [(_chosen(entry), f"tool_choice.tools[{i}]") for i, entry in enumerate(objects(choice.get("tools")))]
        if not chosen:
            raise RequestError(400, "tools must name at least one tool", param="tool_choice.tools")
    else:
        chosen = [(_chosen(choice), "tool_choice")]
    functions = {str(function["name"]) for function in tools.functions}
    known = functions | {str(tool.get("label") or tool["name"]) for tool in tools.hosted}
    for name, at in chosen:
        if name not in known:
            raise unknown_tool(name, at)
    if choice.get("type") in _NAMED:
        return replace(tools, choice=chosen[0][0])
    # A hosted tool is forced by offering no other, because only some providers can name it.
    must_call = choice.get("mode") == "required" or choice.get("type") != "allowed_tools"
    allowed = tuple(dict.fromkeys(name for name, _ in chosen))
    return replace(tools, allowed=allowed, choice="required" if must_call else None)


def _chosen(entry: JsonObject) -> str:
    kind = str(entry.get("type"))
    if kind in ("function", "custom"):
        return str(entry.get("name"))
    if kind == "mcp":
        return str(entry.get("server_label"))
    return _KEYS.get(kind, kind)


Handler = Callable[[RequestTools, JsonObject, str, ServerSettings], RequestTools]


def _function(found: RequestTools, tool: JsonObject, at: str, settings: ServerSettings) -> RequestTools:
    function = _checked(tool, _Function, at)
    fields = function_fields(at, function.name, function.description, function.parameters, function.strict)
    shown = {**tool, "parameters": function.parameters, "strict": function.strict}
    return replace(found, functions=(*found.functions, fields), shown=(*found.shown, shown))


def _custom(found: RequestTools, tool: JsonObject, at: str, settings: ServerSettings) -> RequestTools:
    function = _checked(tool, _Function, at)
    description, format = function.description or "", as_object(tool.get("format"))
    if isinstance(definition := format.get("definition"), str):
        description += f"\n\nThe input must follow this grammar ({format.get('syntax')}):\n{definition}"
    fields = function_fields(at, function.name, description, _TEXT_INPUT)
    return replace(
        found,
        functions=(*found.functions, fields),
        custom=(*found.custom, function.name),
        shown=(*found.shown, tool),
    )


class _Namespace(Struct):
    name: Annotated[str, Meta(min_length=1)]
    tools: list[JsonObject]


def _namespace(found: RequestTools, tool: JsonObject, at: str, settings: ServerSettings) -> RequestTools:
    """Add the functions of a namespace under joined names, because most models have no namespaces."""
    space = _checked(tool, _Namespace, at)
    known = {str(function["name"]) for function in found.functions}
    for index, entry in enumerate(space.tools):
        place = f"{at}.tools[{index}]"
        handler, name = _HANDLERS.get(str(entry.get("type"))), entry.get("name")
        if entry.get("type") not in _NAMED or handler is None or not isinstance(name, str):
            message = "a namespace must hold functions and custom tools"
            raise RequestError(400, message, param=f"{place}.type", code="unknown_tool")
        joined = joined_name(space.name, name)
        if joined in known:
            raise RequestError(400, f"duplicate tool name {name!r}", param=f"{place}.name")
        known.add(joined)
        added = handler(found, {**entry, "name": joined}, place, settings)
        namespaces = {**found.namespaces, joined: [space.name, name]}
        found = replace(added, namespaces=namespaces, shown=found.shown)
    return replace(found, shown=(*found.shown, tool))


def joined_name(namespace: str, name: str) -> str:
    """Return the name under which a model sees a function of a namespace."""
    joined = f"{namespace}__{name}"
    if len(joined) <= _MAX_NAME:
        return joined
    digest = blake2b(joined.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{joined[: _MAX_NAME - 9]}_{digest}"


def _hosted(key: str, fields_of: Callable[[JsonObject], JsonObject]) -> Handler:
    def handler(found: RequestTools, tool: JsonObject, at: str, settings: ServerSettings) -> RequestTools:
        _check_secrets(tool, at)
        given = without_none(fields_of(tool))
        made = _converted(TOOLS[key], given, at)
        if isinstance(made, FileSearch):
            given |= _searched(made, at, settings)
        return replace(found, hosted=(*found.hosted, {"name": key, **given}), shown=(*found.shown, tool))

    return handler


def _check_secrets(tool: JsonObject, at: str) -> None:
    for name in ("container", "environment"):
        policy = as_object(as_object(tool.get(name)).get("network_policy"))
        if policy.get("domain_secrets") is not None:
            place = f"{at}.{name}.network_policy.domain_secrets"
            message = "domain_secrets is not supported, because it would be stored with the request"
            raise RequestError(400, message, param=place, code="unsupported_parameter")


def _searched(tool: FileSearch, at: str, settings: ServerSettings) -> JsonObject:
    """Return where the search runs: in the provider's stores or in this machine's index, never at a local path.

    Raises RequestError if the request names a store that it may not search.
    """
    if list(tool.stores) == [INDEX] and offers_index(settings):
        return {}
    if tool.is_local:
        message = (
            f"vector_store_ids must name stores of the provider{f', or {INDEX!r}' if offers_index(settings) else ''}"
        )
        raise RequestError(400, message, param=f"{at}.vector_store_ids")
    return {"execution": "provider"}


def _mcp(found: RequestTools, tool: JsonObject, at: str, settings: ServerSettings) -> RequestTools:
    label = tool.get("server_label")
    if not isinstance(label, str) or not label:
        raise RequestError(400, "server_label is required", param=f"{at}.server_label")
    if tool.get("connector_id") is not None or tool.get("tunnel_id") is not None:
        raise RequestError(
            400,
            "connector_id and tunnel_id are not supported; use server_url",
            param=f"{at}.connector_id",
            code="unsupported_parameter",
        )
    url = tool.get("server_url")
    if not isinstance(url, str):
        raise RequestError(400, "server_url is required", param=f"{at}.server_url")
    _check_host(url, f"{at}.server_url", settings)
    given: JsonObject = {
        "label": label,
        "url": url,
        "description": tool.get("server_description"),
        "require_approval": _approval(tool.get("require_approval")),
        "allowed_tools": _filter(tool.get("allowed_tools")),
        "headers": tool.get("headers"),
        "authorization": tool.get("authorization"),
    }
    given = without_none(given)
    whole = _converted(TOOLS["mcp"], given, at)
    public = {name: value for name, value in given.items() if name not in _SECRET}
    shown = {name: value for name, value in tool.items() if name not in _SECRET}
    return replace(
        found,
        hosted=(*found.hosted, {"name": "mcp", **public}),
        shown=(*found.shown, shown),
        secrets=(*found.secrets, whole) if len(public) < len(given) else found.secrets,
    )


def _check_host(url: str, at: str, settings: ServerSettings) -> None:
    """Raise RequestError unless the operator has allowed the host, as others could be machines of this network."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        port = parts.port
    except ValueError:
        raise RequestError(400, "the URL is not valid", param=at, code="invalid_url") from None
    if parts.scheme not in ("https", "http") or not host or parts.username is not None:
        raise RequestError(
            400, "the URL must be http or https and must not contain a user", param=at, code="invalid_url"
        )
    names = {name.lower() for name in settings.mcp_hosts}
    if host not in names and f"{host}:{port}" not in names:
        message = f"MCP servers at {host!r} are not allowed; the server's operator can allow the host"
        raise RequestError(403, message, type="permission_error", param=at, code="mcp_host_refused")


def _approval(given: Json) -> Json:
    match given:
        case None | "always" | "never":
            return given
        case _:
            lists = as_object(given)
            return {name: _filter(lists.get(name)) or () for name in ("always", "never")}


def _filter(given: Json) -> Json:
    if not is_object(given):
        return given
    fields: JsonObject = {"names": as_list(given.get("tool_names")), "read_only": given.get("read_only")}
    return without_none(fields)


def _web_search(tool: JsonObject) -> JsonObject:
    place = as_object(tool.get("user_location"))
    location = {name: place[name] for name in ("city", "region", "country", "timezone") if place.get(name) is not None}
    return {
        "context_size": tool.get("search_context_size"),
        "location": location or None,
        "allowed_domains": as_object(tool.get("filters")).get("allowed_domains"),
        "external_web_access": tool.get("external_web_access"),
        "content_types": tool.get("search_content_types"),
    }


def _file_search(tool: JsonObject) -> JsonObject:
    ranking = as_object(tool.get("ranking_options"))
    return {
        "stores": tool.get("vector_store_ids"),
        "max_results": tool.get("max_num_results"),
        "ranker": ranking.get("ranker"),
        "score_threshold": ranking.get("score_threshold"),
        "hybrid_search": ranking.get("hybrid_search"),
        "filters": _search_filter(tool.get("filters")),
    }


def _search_filter(given: Json) -> Json:
    """Convert a file search filter, leaving the validation to our own type."""
    if not is_object(given):
        return given
    if given.get("type") in ("and", "or"):
        inner = given.get("filters")
        filters = [_search_filter(each) for each in inner] if is_array(inner) else inner
        return {"type": "combination", "operator": given["type"], "filters": filters}
    return {
        "type": "comparison",
        "operator": given.get("type"),
        "attribute": given.get("key"),
        "value": given.get("value"),
    }


def _code_interpreter(tool: JsonObject) -> JsonObject:
    container = tool.get("container")
    if isinstance(container, str):
        return {"container_id": container}
    return _container(as_object(container))


def _container(options: JsonObject) -> JsonObject:
    """Return the settings of a new container."""
    policy = options.get("network_policy")
    domains = as_object(policy).get("allowed_domains")
    network = None if policy is None else {"allowed_domains": domains} if domains is not None else {}
    return {"file_ids": options.get("file_ids"), "memory_limit": options.get("memory_limit"), "network": network}


def _image_generation(tool: JsonObject) -> JsonObject:
    same = (
        *("model", "action", "background", "quality", "size", "output_format", "partial_images", "moderation"),
        *("input_fidelity", "complexity", "frame_count", "frame_duration_ms"),
    )
    mask, svg = as_object(tool.get("input_image_mask")), as_object(tool.get("svg"))
    drawing = {"model": svg.get("model"), "effort": as_object(svg.get("reasoning")).get("effort")}
    return {
        **{name: tool.get(name) for name in same},
        "compression": tool.get("output_compression"),
        "mask_file_id": mask.get("file_id"),
        "mask_url": mask.get("image_url"),
        "svg": without_none(drawing) or None,
    }


def _shell(tool: JsonObject) -> JsonObject:
    environment = as_object(tool.get("environment"))
    return {"container_id": environment.get("container_id"), **_container(environment)}


_NAMED = frozenset({"function", "custom"})
_KEYS = {
    "web_search": "web_search",
    "web_search_2025_08_26": "web_search",
    "web_search_preview": "web_search",
    "web_search_preview_2025_03_11": "web_search",
    "file_search": "file_search",
    "code_interpreter": "code_interpreter",
    "image_generation": "image_generation",
    "shell": "shell",
    "mcp": "mcp",
}
"""Our tool keys by the API's tool types."""
_FIELDS: dict[str, Callable[[JsonObject], JsonObject]] = {
    "web_search": _web_search,
    "file_search": _file_search,
    "code_interpreter": _code_interpreter,
    "image_generation": _image_generation,
    "shell": _shell,
}
_HANDLERS: dict[str, Handler] = {
    "function": _function,
    "custom": _custom,
    "namespace": _namespace,
    **{kind: _hosted(key, _FIELDS[key]) for kind, key in _KEYS.items() if key in _FIELDS},
    "mcp": _mcp,
}
"""Parsers by the API's tool types."""


def _converted(kind: type[ServerSideTool], given: JsonObject, at: str) -> ServerSideTool:
    try:
        return msgspec.convert(given, kind)
    except (ConfigurationError, msgspec.ValidationError, UnicodeEncodeError) as error:
        raise RequestError(400, str(error), param=at) from None


def _checked(tool: JsonObject, shape: type[T], at: str) -> T:
    try:
        return checked(tool, shape)
    except RequestError as error:
        raise RequestError(400, error.message, param=f"{at}.{error.param}" if error.param else at) from None
