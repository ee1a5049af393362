"""What encoders share. Pure."""

from collections.abc import Mapping

from sidestream.configs import Config, config_fields
from sidestream.jsontext import JsonObject


def given(config: Config, names: Mapping[str, str] | None = None) -> JsonObject:
    """The fields that differ from their defaults, under their names on the wire."""
    fields = config_fields(type(config))
    wire = {name: name for name in fields} if names is None else names
    return {
        wire[name]: list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType]
        for name in wire
        if (value := getattr(config, name)) != fields[name][1]
    }
