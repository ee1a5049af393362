"""Base class of typed actions, which are msgspec values for function parameters, and safety checks.

pydantic validates the arguments of functions. The hooks let it accept these values without importing pydantic.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from sidestream.jsontext import is_object

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema


class ActionValue(Struct, frozen=True, omit_defaults=True):
    """A frozen value that can be the type of a function's parameter. Unknown fields are ignored."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        return _validator(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        return _inline_schema(cls)


class Tagged:
    """A mark for a union of action values in `Annotated`, so that its member is chosen by its `type`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        # The JSON schema needs the same type, but pydantic does not pass it there.
        self._source = source
        return _validator(source)

    def __get_pydantic_json_schema__(self, schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        return _inline_schema(self._source)


def _validator(kind: Any) -> "CoreSchema":
    from pydantic_core import core_schema

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None

    return core_schema.no_info_plain_validator_function(convert)


def _inline_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type, without references."""
    (schema,), components = msgspec.json.schema_components((kind,), ref_template="{name}")

    def resolved(node: Any) -> Any:
        if is_object(node):
            if "$ref" in node:
                return resolved(components[node["$ref"]])
            return {key: resolved(value) for key, value in node.items() if key not in ("discriminator", "title")}
        return [resolved(entry) for entry in cast(Sequence[Any], node)] if isinstance(node, list | tuple) else node

    return resolved(schema)


class SafetyCheck(ActionValue, frozen=True):
    """Why the provider wants a person to look before the call is made."""

    id: str
    code: str | None = None
    message: str | None = None
