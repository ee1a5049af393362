"""Resolves model names to files and server settings.

A name is that of the embedded model or of an added one, or a path. Options may follow it, as in
`local:PATH.gguf?context=16384&threads=4&gpu_layers=20`. They override the environment variables below.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.providers.local.files import CHAT, EMBEDDINGS, models_folder
from sidestream.providers.local.gguf import GgufInfo, read_gguf

ENDING = ".gguf"
CONTEXT_VARIABLE = "SIDESTREAM_LOCAL_CONTEXT"
THREADS_VARIABLE = "SIDESTREAM_LOCAL_THREADS"
GPU_VARIABLE = "SIDESTREAM_LOCAL_GPU_LAYERS"
_VARIABLES = {"context": CONTEXT_VARIABLE, "threads": THREADS_VARIABLE, "gpu_layers": GPU_VARIABLE}
EMBEDDED_CONTEXT_TOKENS = 8192
"""Context length that the embedded model was trained with."""
DEFAULT_CONTEXT_TOKENS = 16_384
"""Maximum default context of other models: enough for tools, and small enough for most machines."""


class LlamaSetup(Struct, frozen=True, kw_only=True):
    """The settings of a server."""

    context_tokens: int
    threads: int
    gpu_layers: int = 0


class AddedModel(Struct, frozen=True, kw_only=True):
    """A model registered by `sidestream local add`."""

    name: str
    path: str
    sha256: str | None = None
    options: dict[str, int] = {}


class ModelSource(Struct, frozen=True, kw_only=True):
    """A model file and its server settings."""

    name: str
    path: str
    runtime: LlamaSetup
    is_embedded: bool = False
    uses_own_template: bool = False
    """Whether our template is used, since the file's own does not support tools."""
    has_tools: bool = True


def added_folder() -> Path:
    """Return the folder in which added models are registered."""
    return models_folder() / "added"


def added_models() -> list[AddedModel]:
    """List the added models, sorted by name. Unreadable registrations are skipped."""
    found: list[AddedModel] = []
    for path in sorted(added_folder().glob("*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=AddedModel))
        except (OSError, msgspec.DecodeError):
            continue
    return found


def is_of_this_machine(name: str) -> bool:
    """Return whether a name is a path or sets server options, which only the operator of this machine may choose."""
    base, _, options = name.partition("?")
    return bool(options) or (base.lower().endswith(ENDING) and all(base != model.name for model in added_models()))


def source_of(name: str) -> ModelSource:
    """Resolve a model's name. Raises ConfigurationError, with advice, if the file is missing or not a chat model."""
    base, _, query = name.partition("?")
    given = _options(query, name)
    if base == CHAT.model:
        return ModelSource(name=base, path="", runtime=_runtime(given, EMBEDDED_CONTEXT_TOKENS, 1), is_embedded=True)
    added = next((model for model in added_models() if model.name == base), None)
    if added is None and not base.lower().endswith(ENDING):
        known = ", ".join([CHAT.model, EMBEDDINGS.model, *(model.name for model in added_models())])
        raise ConfigurationError(
            f"unknown local model {base!r}; use {known}, local:PATH{ENDING}, or `sidestream local add` to add it"
        )
    path = os.path.abspath(os.path.expanduser(added.path if added else base))
    info = read_gguf(path)
    _check_chat(info)
    default = min(info.context_tokens or DEFAULT_CONTEXT_TOKENS, DEFAULT_CONTEXT_TOKENS)
    options = {**(added.options if added else {}), **given}
    return ModelSource(
        name=base,
        path=path,
        runtime=_runtime(options, default, max(1, (os.cpu_count() or 2) // 2)),
        uses_own_template=not info.has_tools and info.is_chatml,
        has_tools=info.has_tools or info.is_chatml,
    )


def _check_chat(info: GgufInfo) -> None:
    if info.chat_template is None:
        raise ConfigurationError(
            f"{info.path} has no chat template: it is a base or embeddings model; use its instruct or chat variant"
        )


def _options(query: str, name: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in _VARIABLES:
            raise ConfigurationError(f"local:{name}: unknown option {key!r}; use {', '.join(_VARIABLES)}")
        found[key] = _count(value, f"local:{name}: {key}", minimum=0 if key == "gpu_layers" else 1)
    return found


def _runtime(given: dict[str, int], context: int, threads: int) -> LlamaSetup:
    values: dict[str, Any] = {"context": context, "threads": threads, "gpu_layers": 0}
    for key, variable in _VARIABLES.items():
        text = os.environ.get(variable, "").strip()
        if text:
            values[key] = _count(text, variable, minimum=0 if key == "gpu_layers" else 1)
    values |= given
    return LlamaSetup(context_tokens=values["context"], threads=values["threads"], gpu_layers=values["gpu_layers"])


def _count(text: str, name: str, minimum: int) -> int:
    if not text.isdecimal() or int(text) < minimum:
        what = "a positive integer" if name == THREADS_VARIABLE else f"an integer of at least {minimum}"
        raise ConfigurationError(f"{name} must be {what}, not {text!r}")
    return int(text)
