"""Validation of what callers pass in, whose errors tell what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from sidestream.agent.settings import TransportName
from sidestream.errors import ConfigurationError
from sidestream.limits import Limits
from sidestream.providers.protocol import ChatModel
from sidestream.text.reprs import shown
from sidestream.tools.configs import Config
from sidestream.tools.server_side import TOOLS, ServerSideTool
from sidestream.tools.tool import ExternalTool, Tool
from sidestream.tools.toolset import Toolset

if TYPE_CHECKING:
    from sidestream.agent.settings import Tools
    from sidestream.messages.message import ChatMessage
    from sidestream.output import OutputType

_WORDY = {"message_metadata", "result_metadata", "tool_errors"}
"""Settings whose values are words."""

_CREDENTIALS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "api_key": (lambda value: isinstance(value, str), "a string"),
    "base_url": (lambda value: isinstance(value, str), "a string"),
    "headers": (lambda value: isinstance(value, Mapping), "a dict of strings"),
    "auth": (callable, "a function that returns headers"),
}


def check_credentials(given: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if the URL or a credential has the wrong type. The error does not show its value."""
    for name, (is_valid, wanted) in _CREDENTIALS.items():
        value = given.get(name)
        if value is not None and not is_valid(value):
            raise ConfigurationError(f"{name} must be {wanted}, not {type(value).__name__}")
    headers: Mapping[Any, Any] = given.get("headers") or {}
    if wrong := [name for name, value in headers.items() if not isinstance(name, str) or not isinstance(value, str)]:
        raise ConfigurationError(f"headers must be a dict of strings; the value of {wrong[0]!r:.60} is not one")


def check_settings(given: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if a setting of an agent or a call has the wrong type or an unknown value."""
    if not given:
        return
    for name in given.keys() & _WORDY:
        words = _words_of(name)
        if given[name] not in words:
            raise ConfigurationError(f"{name}={given[name]!r} is unknown; use {', '.join(map(repr, words))}")
    transport = given.get("transport")
    if isinstance(transport, str) and transport not in get_args(TransportName):
        raise ConfigurationError(f"transport={transport!r} is unknown; use 'http', 'websocket' or a Transport")
    limits = given.get("limits")
    if "limits" in given and not isinstance(limits, Limits):
        raise ConfigurationError(f"limits must be Limits(…), not {shown(limits)}, e.g. limits=Limits(max_steps=8)")
    prices = given.get("prices")
    if prices is not None and not _are_prices(prices):
        raise ConfigurationError(
            "prices must map models to prices in US dollars per million tokens, e.g. "
            "prices={'groq:llama-4': Price(input=0.2, output=0.6)}"
        )
    options = given.get("options")
    if isinstance(options, type):
        raise ConfigurationError(f"options must be an instance: options={options.__name__}(…)")


def _words_of(setting: str) -> tuple[str, ...]:
    from sidestream.messages.fold import MessageMetadata
    from sidestream.results.results import ResultMetadata
    from sidestream.run.settings import ToolErrors

    types = {"message_metadata": MessageMetadata, "result_metadata": ResultMetadata, "tool_errors": ToolErrors}
    return get_args(types[setting])


def _are_prices(prices: Any) -> bool:
    from sidestream.prices.price import Price

    return isinstance(prices, Mapping) and all(
        isinstance(name, str) and ":" in name and isinstance(price, Price)
        for name, price in prices.items()  # pyright: ignore[reportUnknownVariableType]
    )


def checked_model(model: Any) -> ChatModel:
    """Return the model object. Raises ConfigurationError for anything else."""
    if isinstance(model, ChatModel) and not isinstance(model, type):
        return model
    raise ConfigurationError(
        f"the model must be a string such as 'anthropic' or 'openai-responses:gpt-5.6', or a ChatModel, not "
        f"{shown(model)}"
    )


def checked_output(spec: Any) -> OutputType[Any] | None:
    """Read an output type. Text needs none, since agents answer with it anyway."""
    if spec is None or spec is str:
        return None
    from sidestream.output import output_type

    return output_type(spec)


def checked_history(history: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the messages as a list. Raises ConfigurationError for anything that is not a message."""
    from sidestream.messages.message import ChatMessage

    if not isinstance(history, list | tuple) and (
        isinstance(history, ChatMessage | str | Mapping) or not isinstance(history, Iterable)  # pyright: ignore[reportUnnecessaryIsInstance]
    ):
        raise ConfigurationError(f"history must be a list of ChatMessage, not {shown(history)}")
    messages = list(history)
    if [*map(type, messages)].count(ChatMessage) < len(messages):
        wrong = next(item for item in messages if type(item) is not ChatMessage)
        raise ConfigurationError(
            f"history contains {shown(wrong)}; it must hold ChatMessage objects, e.g. result.messages, or those of "
            "messages_from_json"
        )
    return messages


def checked_tools(tools: Tools) -> list[Tool | ExternalTool | Toolset | Callable[..., Any]]:
    """Return the client tools. Raises ConfigurationError for anything but functions, Tools and tool servers."""
    items = _items("tools", tools, "tools=[get_weather]")
    for item in items:
        if isinstance(item, ServerSideTool) or _is_class_of(item, ServerSideTool):
            name = item.__name__ if isinstance(item, type) else type(item).__name__
            raise ConfigurationError(
                f"{name} is a server-side tool, which the provider runs: pass it as server_side_tools=[{name}(…)]"
            )
        if isinstance(item, str):
            raise ConfigurationError(f"tools must hold functions, not the name {item!r}{_tool_hint(item)}")
        is_tool = _is_class_of(item, Tool) or _is_class_of(item, ExternalTool)
        if is_tool or (isinstance(item, type) and hasattr(item, "aclose")):
            raise ConfigurationError(f"{item.__name__} is a class; pass an instance: tools=[{item.__name__}(…)]")
        if not isinstance(item, Tool | ExternalTool | Toolset) and not callable(item):
            raise ConfigurationError(f"tools must hold functions, Tool objects or MCP servers, not {shown(item)}")
    return items


def checked_server_side_tools(tools: Iterable[ServerSideTool]) -> tuple[ServerSideTool, ...]:
    """Return the server-side tools. Raises ConfigurationError for anything else."""
    items = _items("server_side_tools", tools, "server_side_tools=[WebSearch()]")
    for item in items:
        if isinstance(item, ServerSideTool):
            continue
        if _is_class_of(item, ServerSideTool):
            name = item.__name__
            raise ConfigurationError(f"{name} is a class; pass an instance: server_side_tools=[{name}(…)]")
        if isinstance(item, str):
            raise ConfigurationError(
                f"server_side_tools must hold objects, not the name {str(item)!r}{_tool_hint(item)}"
            )
        if isinstance(item, Config):
            raise ConfigurationError(
                f"{type(item).__name__} is a configuration of one provider; it belongs to a field of its options"
            )
        if isinstance(item, Tool | ExternalTool | Toolset) or callable(item):
            raise ConfigurationError(f"{shown(item)} runs on this machine: pass it as tools=[…]")
        raise ConfigurationError(f"server_side_tools must hold tools such as WebSearch(), not {shown(item)}")
    return tuple(items)


def _items(setting: str, given: Any, example: str) -> list[Any]:
    if isinstance(given, list | tuple):
        return list(given)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(given, str | Mapping | Toolset) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{setting} must be a list, e.g. {example}, not {shown(given)}")
    return list(given)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _tool_hint(name: str) -> str:
    tool = TOOLS.get(str(name))
    return f"; write server_side_tools=[{tool.__name__}(…)]" if tool is not None else ""


def _is_class_of(item: Any, kind: type) -> bool:
    return isinstance(item, type) and issubclass(item, kind)
