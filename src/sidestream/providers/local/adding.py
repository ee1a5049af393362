"""Registers the user's own model files, and estimates which models fit into memory."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.files.folders import write_private
from sidestream.providers.local.files import CHAT, EMBEDDINGS, PACKAGES, digest
from sidestream.providers.local.gguf import GgufInfo, read_gguf
from sidestream.providers.local.install import whole_copy
from sidestream.providers.local.sources import (
    DEFAULT_CONTEXT_TOKENS,
    EMBEDDED_CONTEXT_TOKENS,
    ENDING,
    AddedModel,
    added_folder,
    added_models,
)

_NAME = re.compile(r"[\w.-]+")


class ListedModel(Struct, frozen=True, kw_only=True):
    """A local model with its memory needs."""

    name: str
    kind: str
    path: str | None
    size_bytes: int | None = None
    context_tokens: int | None = None
    memory_bytes: int | None = None
    """Memory that the model needs."""
    fits: bool | None = None
    """Whether that much memory is available now. None means unknown."""
    problem: str | None = None
    has_tools: bool | None = None


def name_of(path: str) -> str:
    """Derive a model's name from its file, in lower case and without the extension."""
    base = os.path.basename(path)
    stem = base[: -len(ENDING)] if base.lower().endswith(ENDING) else base
    return check_name(re.sub(r"[^\w.-]+", "-", stem.lower()).strip("-."))


def check_name(name: str) -> str:
    """Return the name. Raises ConfigurationError if it is not allowed for a model."""
    if not _NAME.fullmatch(name) or name in (CHAT.model, EMBEDDINGS.model) or name.startswith("."):
        raise ConfigurationError(f"invalid model name {name!r}; choose another with --name")
    return name


def register(name: str, path: Path, *, sha256: str | None, options: dict[str, int]) -> GgufInfo:
    """Register a file as a local model. Raises ConfigurationError if it is not a chat model or the digest differs."""
    info = read_gguf(path)
    if info.chat_template is None:
        raise ConfigurationError(
            f"{path} has no chat template: it is a base or embeddings model; add its instruct or chat variant"
        )
    if sha256 is not None and digest(path) != sha256.lower():
        raise ConfigurationError(f"{path} is not the expected file: its SHA-256 digest is not {sha256}")
    model = AddedModel(name=name, path=str(path.resolve()), sha256=sha256, options=options)
    try:
        write_private(added_folder() / f"{name}.json", msgspec.json.encode(model).decode())
    except OSError as error:
        raise ConfigurationError(f"cannot write {added_folder()}: {error.strerror or error}") from error
    return info


def forget(name: str, report: Callable[[str], None]) -> bool:
    """Remove an added model, but keep its file. Returns False if there is no model of this name."""
    model = next((model for model in added_models() if model.name == name), None)
    if model is None:
        return False
    (added_folder() / f"{name}.json").unlink(missing_ok=True)
    report(f"{name}: removed; {model.path} was kept")
    return True


def listed() -> list[ListedModel]:
    """List all local models with their memory needs."""
    free = available_memory()
    found: list[ListedModel] = []
    for package in PACKAGES.values():
        folder = whole_copy(package)
        path = folder / package.files[0].path if folder else None
        if package is CHAT and path is not None:
            found.append(_listed(package.model, str(path), EMBEDDED_CONTEXT_TOKENS, free))
            continue
        problem = None if path else "not installed; run `sidestream local install`"
        size = package.files[0].size_bytes
        found.append(
            ListedModel(
                name=package.model, kind=package.kind, path=path and str(path), size_bytes=size, problem=problem
            )
        )
    found += [_listed(model.name, model.path, model.options.get("context"), free) for model in added_models()]
    return found


def _listed(name: str, path: str, context: int | None, free: int | None) -> ListedModel:
    try:
        info = read_gguf(path)
    except ConfigurationError as error:
        return ListedModel(name=name, kind="chat", path=path, problem=str(error))
    tokens = context or min(info.context_tokens or DEFAULT_CONTEXT_TOKENS, DEFAULT_CONTEXT_TOKENS)
    needed = info.memory_bytes(tokens)
    return ListedModel(
        name=name,
        kind="chat",
        path=path,
        size_bytes=info.size_bytes,
        context_tokens=tokens,
        memory_bytes=needed,
        fits=None if free is None else needed <= free,
        has_tools=info.has_tools or info.is_chatml,
    )


def available_memory() -> int | None:
    """Return the available memory in bytes, or None if the system does not say."""
    if sys.platform == "linux":
        try:
            text = Path("/proc/meminfo").read_text()
        except OSError:
            return None
        found = re.search(r"MemAvailable:\s+(\d+) kB", text)
        return int(found[1]) * 1024 if found else None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
