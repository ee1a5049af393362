"""Texts and their vectors for `sidestream embed` and `sidestream similar`."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from sidestream.agent.agent import Agent
from sidestream.cli import key_file
from sidestream.cli.display import formatting
from sidestream.cli.inputs.default_model import EMBEDDED, check_model
from sidestream.cli.interrupts import run_async
from sidestream.cli.stdio import stdin_bytes
from sidestream.providers.embedding import EmbeddingsResult
from sidestream.providers.registry import ModelString, installed_providers

MAX_BYTES = 64_000_000
"""Of one file: more than any provider embeds at once."""


class Entry(Struct, frozen=True):
    """A text and its vector."""

    id: str
    text: str
    vector: list[float]


def embedded(
    texts: Sequence[tuple[str, str]], model: str | None, base_url: str | None = None, *, shows_usage: bool = False
) -> list[Entry]:
    """The texts with their vectors; each comes with its id."""
    key_file.load()
    agent = Agent(_model_string(model), base_url=base_url)

    async def work() -> EmbeddingsResult:
        async with agent:
            return await agent.embed_documents([text for _, text in texts])

    result = run_async(work())
    if shows_usage:
        click.echo(f"usage: {formatting.usage(result.usage)}", err=True)
    pairs = zip(texts, result.vectors, strict=True)
    return [Entry(id, text, list(vector)) for (id, text), vector in pairs]


def _model_string(model: str | None) -> str:
    if model is None:
        return next(
            (info.name for info in installed_providers() if info.has_key and "embeddings" in info.default_models),
            EMBEDDED,
        )
    check_model(model)
    parsed = ModelString.parse(model)
    name = parsed.models.get("embeddings") or parsed.models.get("chat")
    return f"{parsed.provider}?embeddings={name}" if name else parsed.provider


def read_files(files: Iterable[Path]) -> list[tuple[str, str]]:
    """Each file as one text, under its path. Raises UsageError."""
    return [(str(file), _decoded(_read(file), str(file))) for file in files]


def read_lines(file: Path | None) -> list[tuple[str, str]]:
    """The lines of a file, or of standard input, that are not blank, with their numbers. Raises UsageError."""
    name = "standard input" if file is None else str(file)
    data = stdin_bytes(MAX_BYTES) if file is None else _read(file)
    lines = _decoded(data, name).splitlines()
    found = [(f"{'' if file is None else f'{file}:'}{number}", line) for number, line in enumerate(lines, 1)]
    kept = [(id, line) for id, line in found if line.strip()]
    if not kept:
        raise click.UsageError(f"{name} has no text")
    return kept


def read_entries(files: Sequence[Path]) -> tuple[list[Entry], list[tuple[str, str]]]:
    """The entries that have vectors already, and the texts that have none. Raises UsageError."""
    known: list[Entry] = []
    plain: list[tuple[str, str]] = []
    for file in files:
        if file.suffix == ".jsonl":
            known += _stored(file)
        else:
            plain += read_lines(file)
    return known, plain if files else read_lines(None)


def _stored(file: Path) -> list[Entry]:
    try:
        return [msgspec.json.decode(line, type=Entry) for line in _read(file).splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{file} is not what sidestream embed writes: {error}") from None


def _read(file: Path) -> bytes:
    try:
        with file.expanduser().open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise click.UsageError(f"{file} is too large: files are limited to {MAX_BYTES // 1_000_000} MB")
    return data


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise click.UsageError(f"{name} is not UTF-8 text") from None
