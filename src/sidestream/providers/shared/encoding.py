"""Options and request bodies, as all encoders handle them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.jsontext import JsonObject, is_object
from sidestream.messages.message import ChatMessage
from sidestream.parts import StreamPart
from sidestream.providers.protocol import FileUpload
from sidestream.tools.configs import Config, defaults_of, unsent_fields
from sidestream.tools.spec import ToolSpec

OptionsT = TypeVar("OptionsT", bound=Config)
ContextT = TypeVar("ContextT")


class EncodedRequest(Struct, Generic[ContextT], frozen=True, kw_only=True):
    """A request body with its headers, warnings, notices and the context for its decoder."""

    body: JsonObject
    context: ContextT
    first: int = 0
    """Index of the first message that is sent. The provider has the earlier ones."""
    others: Sequence[ChatMessage] | None = None
    """Sent messages that are not plain text. None means that the encoder has not told them apart."""
    headers: Mapping[str, str] = {}
    warnings: tuple[str, ...] = ()
    notices: tuple[StreamPart, ...] = ()
    needs: tuple[str, ...] = ()
    uploads: tuple[FileUpload, ...] = ()
    names_uploads: bool = False
    defers_output: bool = False
    in_background: bool = False


def checked_options(options: Any, default: OptionsT, api: str) -> OptionsT:
    """Return the options, or the default if there are none. Raises UnsupportedError for options of another API."""
    if options is None:
        return default
    expected = type(default)
    if isinstance(options, expected):
        return options
    fields = ", ".join(expected.__struct_fields__)
    raise UnsupportedError(
        f"{api}: options must be {expected.__name__}, not {type(options).__name__}; its fields are {fields}"
    )


def given(config: Config, names: Mapping[str, str] | None = None) -> JsonObject:
    """Return the fields that differ from their defaults, under their API names."""
    config.register_secrets()
    defaults, unsent = defaults_of(type(config)), unsent_fields(type(config))
    wire = {name: name for name in defaults} if names is None else names
    return {
        wire[name]: list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType]
        for name in wire
        if name not in unsent and (value := getattr(config, name)) != defaults[name]
    }


def merged(body: JsonObject, extra: JsonObject) -> JsonObject:
    """Merge extra parameters into a body. They take precedence, and objects are merged field by field."""
    if not extra:
        return body
    result = dict(body)
    for name, value in extra.items():
        old = result.get(name)
        result[name] = {**old, **value} if is_object(old) and is_object(value) else value
    return result


def nothing_to_send() -> ConfigurationError:
    """Return the error for a history without content."""
    return ConfigurationError("nothing to send: the history has no message with text, files or tool results")


def check_function_options(named: Iterable[str], tools: Iterable[ToolSpec]) -> None:
    """Check the tools named in options. Raises ConfigurationError if the request does not have one of them."""
    unknown = set(named) - {spec.name for spec in tools}
    if unknown:
        raise ConfigurationError(f"function_options names unknown tools: {', '.join(sorted(unknown))}")


def loose_warning(spec: ToolSpec) -> str:
    """Return the warning for a strict tool whose schema does not allow strict mode."""
    return f"the schema of the tool {spec.name} does not allow strict mode, so its input may not follow it"
