"""Client functions, schemas and reasoning in requests, checked before a run starts."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.messages.message import ChatMessage, MessagePart, ThinkingPart
from sidestream.output import output_type
from sidestream.output.json_schema import inline_root
from sidestream.server.errors import RequestError
from sidestream.tools.tool import ExternalTool

NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}
ANY_OBJECT: JsonObject = {"type": "object"}
"""Schema of an answer that may be any JSON object."""


Declared = tuple[str, str, str | None, JsonObject | None, bool | None]
"""Path, name, description, schema and strictness of a function in a request."""


def functions_of(declared: Sequence[Declared], *, schema_name: str = "parameters") -> tuple[JsonObject, ...]:
    """Convert the functions of a request to the form that jobs use. Raises RequestError if one is invalid."""
    check_names([(name, f"{at}.name") for at, name, *_ in declared])
    return tuple(function_fields(*entry, schema_name=schema_name) for entry in declared)


def function_fields(
    at: str,
    name: str,
    description: str | None,
    schema: JsonObject | None,
    strict: bool | None = None,
    *,
    schema_name: str = "parameters",
) -> JsonObject:
    """Return the fields of an `ExternalTool` for the function at path `at`. Raises RequestError if they are invalid."""
    fields: JsonObject = {"name": name, "description": description or "", "schema": schema or NO_ARGUMENTS}
    if strict is not None:
        fields["strict"] = strict
    for given, place in (({**fields, "schema": NO_ARGUMENTS}, "name"), (fields, schema_name)):
        try:
            msgspec.convert(given, ExternalTool)
        except (ConfigurationError, msgspec.ValidationError, UnicodeEncodeError) as error:
            raise RequestError(400, str(error), param=f"{at}.{place}") from None
        except RecursionError:
            raise RequestError(400, "the schema is nested too deeply", param=f"{at}.{place}") from None
    return fields


def checked_output(schema: JsonObject, at: str) -> JsonObject:
    """Return a checked answer schema. Raises RequestError if it is invalid or does not describe an object."""
    try:
        rooted = inline_root(dict(schema)) if "$ref" in schema else schema
        whole = {"type": "object", **rooted} if "properties" in rooted else rooted
        is_wrapped = output_type(whole).is_wrapped
    except RecursionError:
        raise RequestError(400, "the schema is nested too deeply", param=at) from None
    except (ConfigurationError, UnicodeEncodeError, LookupError, TypeError) as error:
        raise RequestError(400, f"invalid schema: {error}", param=at) from None
    if is_wrapped:
        raise RequestError(400, "the schema must describe an object, with type 'object'", param=at)
    return whole


def prompt_last(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with trailing instructions moved before the prompt, which a run needs last.

    Instructions after tool results go before the calls, so that nothing comes between the two.
    """
    end = len(messages)
    while end and messages[end - 1].role == "system":
        end -= 1
    place = max(end - 1, 0)
    while place and messages[place].role == "tool":
        place -= 1
    return [*messages[:place], *messages[end:], *messages[place:end]]


def with_reasoning(messages: Iterable[ChatMessage], provider: str) -> list[ChatMessage]:
    """Return messages whose reasoning goes back to this provider, the one of the agent that the client names."""
    return [_bound(message, provider) if message.role == "model" else message for message in messages]


def _bound(message: ChatMessage, provider: str) -> ChatMessage:
    def bound(part: MessagePart) -> MessagePart:
        has_data = isinstance(part, ThinkingPart) and (part.signature or part.encrypted_content)
        return replace(part, provider=provider) if has_data else part

    return replace(message, parts=tuple(map(bound, message.parts)))


def unknown_tool(name: str | None, at: str) -> RequestError:
    """Return the error for a tool choice that names an unknown tool."""
    return RequestError(
        400, f"unknown tool {name!r:.80}; name one of the request's tools", param=at, code="unknown_tool"
    )


def check_names(names: Sequence[tuple[str, str]]) -> None:
    """Raise RequestError if two functions share a name. `names` holds pairs of a name and its path."""
    known: set[str] = set()
    for name, at in names:
        if name in known:
            raise RequestError(400, f"duplicate tool name {name!r}", param=at)
        known.add(name)
