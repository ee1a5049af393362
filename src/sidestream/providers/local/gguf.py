"""Reads the headers of GGUF model files: name, size, context and chat template."""

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from sidestream.errors import ConfigurationError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ENTRIES = 10_000
"""Maximum keys of a header. Models have a few dozen."""
MAX_TEXT_BYTES = 16 * 1024 * 1024
"""Maximum length of a string. Chat templates have up to a few hundred kilobytes."""
MAX_ITEMS = 5_000_000
"""Maximum entries of a list. Vocabularies have up to a few hundred thousand."""
MAX_TENSORS = 100_000
KV_BYTES = 2
"""Bytes per number in the KV cache, at the default precision."""
OVERHEAD_BYTES = 300 * 1024 * 1024
"""Memory that a server needs besides the weights and the context."""

_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _LIST = 8, 9


class GgufInfo(Struct, frozen=True, kw_only=True):
    """The header of a model file."""

    path: str
    size_bytes: int
    architecture: str
    name: str | None = None
    context_tokens: int | None = None
    """Context length that the model was trained with."""
    layers: int = 0
    width: int = 0
    heads: int = 0
    kv_heads: int = 0
    key_length: int = 0
    chat_template: str | None = None

    @property
    def has_tools(self) -> bool:
        """Whether the chat template supports tools."""
        return self.chat_template is not None and "tools" in self.chat_template

    @property
    def is_chatml(self) -> bool:
        """Whether messages are in ChatML, for which we have our own template."""
        return self.chat_template is not None and "<|im_start|>" in self.chat_template

    def memory_bytes(self, context_tokens: int) -> int:
        """Estimate the memory that the model needs with a context of this size."""
        head = self.key_length or (self.width // self.heads if self.heads else 0)
        cache = 2 * self.layers * context_tokens * (self.kv_heads or self.heads) * head * KV_BYTES
        return self.size_bytes + cache + OVERHEAD_BYTES


def read_gguf(path: str | os.PathLike[str]) -> GgufInfo:
    """Read the header of a file. Raises ConfigurationError if it cannot be read or is not a complete GGUF file."""
    file = Path(path)
    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            values = _header(opened, size)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror or error}") from None
    except (struct.error, ValueError, EOFError) as error:
        raise ConfigurationError(f"{file} is not a complete GGUF file: {error}") from None
    architecture = str(values.get("general.architecture", ""))

    def number(key: str) -> int:
        value = values.get(f"{architecture}.{key}")
        value = value[0] if isinstance(value, list) and value else value  # pyright: ignore[reportUnknownVariableType]
        return value if isinstance(value, int) else 0

    template, name = values.get("tokenizer.chat_template"), values.get("general.name")
    return GgufInfo(
        path=str(file),
        size_bytes=size,
        architecture=architecture,
        name=name if isinstance(name, str) else None,
        context_tokens=number("context_length") or None,
        layers=number("block_count"),
        width=number("embedding_length"),
        heads=number("attention.head_count"),
        kv_heads=number("attention.head_count_kv"),
        key_length=number("attention.key_length"),
        chat_template=template if isinstance(template, str) else None,
    )


def _header(file: BinaryIO, size: int) -> dict[str, Any]:
    if file.read(4) != MAGIC:
        raise ValueError("it does not start with the bytes GGUF")
    version, tensors, entries = _number(file, "<I"), _number(file, "<Q"), _number(file, "<Q")
    if version not in VERSIONS:
        raise ValueError(f"version {version} is not supported")
    if entries > MAX_ENTRIES or tensors > MAX_TENSORS:
        raise ValueError("its header is too large")
    values: dict[str, Any] = {}
    for _ in range(entries):
        key = _text(file)
        values[key] = _value(file, _number(file, "<I"))
    last = 0
    for _ in range(tensors):
        _text(file)
        dimensions = _number(file, "<I")
        if dimensions > 8:
            raise ValueError("a tensor has too many dimensions")
        file.seek(8 * dimensions + 4, os.SEEK_CUR)
        last = max(last, _number(file, "<Q"))
    if tensors and file.tell() + last >= size:
        raise ValueError("it is truncated")
    return values


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind == _LIST:
        item, count = _number(file, "<I"), _number(file, "<Q")
        if count > MAX_ITEMS:
            raise ValueError("a list is too long")
        return _list(file, item, count)
    if kind not in _NUMBERS:
        raise ValueError(f"unknown value type {kind}")
    return _number(file, _NUMBERS[kind])


def _list(file: BinaryIO, item: int, count: int) -> list[Any]:
    """Read the first entry of a list of numbers, and skip everything else, such as vocabularies."""
    if item in _NUMBERS:
        width = struct.calcsize(_NUMBERS[item])
        first = [_number(file, _NUMBERS[item])] if count else []
        file.seek(width * max(0, count - 1), os.SEEK_CUR)
        return first
    if item != _TEXT:
        raise ValueError("nested lists are not supported")
    for _ in range(count):
        length = _number(file, "<Q")
        if length > MAX_TEXT_BYTES:
            raise ValueError("a string is too long")
        file.seek(length, os.SEEK_CUR)
    return []


def _text(file: BinaryIO) -> str:
    length = _number(file, "<Q")
    if length > MAX_TEXT_BYTES:
        raise ValueError("a string is too long")
    data = file.read(length)
    if len(data) < length:
        raise EOFError("it is truncated")
    return data.decode("utf-8", "replace")


def _number(file: BinaryIO, form: str) -> Any:
    data = file.read(struct.calcsize(form))
    return struct.unpack(form, data)[0]
