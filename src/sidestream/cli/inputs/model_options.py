"""The values of `-o`: portable settings, the provider's own options, and limits of a run, each under its name."""

import difflib
from typing import Any

import msgspec
from msgspec import Struct

from sidestream.cli.inputs.field_values import read_fields, read_value
from sidestream.errors import ConfigurationError
from sidestream.limits import Limits
from sidestream.providers.model_settings import ModelSettings
from sidestream.providers.protocol import ChatModel, HasOptions
from sidestream.tools.configs import allowed_values, config_fields


class ModelOptions(Struct, frozen=True, kw_only=True):
    """What the options say, sorted by where it is passed."""

    settings: dict[str, Any] = {}
    options: Any = None
    limits: dict[str, Any] = {}


def read_options(model: ChatModel, given: tuple[tuple[str, str], ...], *, skips_unknown: bool = False) -> ModelOptions:
    """The options of a model. Raises ConfigurationError for an unknown name, with the nearest one, or a wrong value.

    `skips_unknown`: the options were given for another provider, so what this one does not have is left out.
    """
    portable = config_fields(ModelSettings)
    kind = model.options_type if isinstance(model, HasOptions) else None
    own = config_fields(kind) if kind is not None else {}
    limits = {field.name: field.type for field in msgspec.structs.fields(Limits)}
    sorted_by: dict[str, list[tuple[str, str]]] = {"settings": [], "options": [], "limits": []}
    for path, text in given:
        name = path.partition(".")[0].replace("-", "_")
        place = next(
            (place for place, names in (("settings", portable), ("options", own), ("limits", limits)) if name in names),
            None,
        )
        if place is not None:
            sorted_by[place].append((path, text))
        elif not skips_unknown:
            raise ConfigurationError(_unknown(name, model, [*portable, *own, *limits]))
    owner = f"-o ({model.provider})"
    options = read_fields(kind, sorted_by["options"], owner) if kind is not None else {}
    return ModelOptions(
        settings=read_fields(ModelSettings, sorted_by["settings"], "-o"),
        options=kind(**options) if kind is not None and options else None,
        limits={
            name.replace("-", "_"): read_value(limits[name.replace("-", "_")], text, f"-o {name}")
            for name, text in sorted_by["limits"]
        },
    )


def _unknown(name: str, model: ChatModel, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"sidestream models options {model.provider} lists them"
    return f"-o: {model.provider} has no option {name!r}; {hint}"


def described_options(name: str) -> list[tuple[str, dict[str, str]]]:
    """What can be set for a model: title, and name of an option → its values."""
    from sidestream.providers.protocol import Settings
    from sidestream.providers.registry import ModelString, find_provider

    parsed = ModelString.parse(name)
    provider = find_provider(parsed.provider)
    # No key is needed to describe a model.
    settings = Settings(auth=dict[str, str])
    model = provider.chat_model(parsed.models.get("chat") or provider.default_models.get("chat", ""), settings)
    supported = getattr(model, "portable_settings", frozenset[str]())
    portable = {name: kind for name, (kind, _) in config_fields(ModelSettings).items() if name in supported}
    described = [("settings", {name: _values(kind) for name, kind in portable.items()})]
    if isinstance(model, HasOptions):
        own = config_fields(model.options_type)
        options = {name: _values(kind) for name, (kind, _) in own.items()}
        described.append((f"options of {model.provider} ({model.options_type.__name__})", options))
    return described


def _values(kind: Any) -> str:
    return allowed_values(kind).removesuffix(" or nothing")
