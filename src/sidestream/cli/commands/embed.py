"""The `sidestream embed` and `sidestream similar` commands."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from sidestream.agent.agent import Agent
from sidestream.cli import exit_codes, key_file
from sidestream.cli.display import formatting
from sidestream.cli.inputs.default_model import EMBEDDED, check_model
from sidestream.cli.inputs.options import MODEL
from sidestream.cli.interrupts import run_async
from sidestream.cli.stdio import stdin_bytes
from sidestream.providers.embedding import EmbeddingsResult
from sidestream.providers.registry import ModelString, installed_providers

MAX_BYTES = 64_000_000
"""Maximum file size, in bytes. More than any provider embeds at once."""


class Entry(Struct, frozen=True):
    """A text and its vector."""

    id: str
    text: str
    vector: list[float]


def embedded(
    texts: Sequence[tuple[str, str]], model: str | None, base_url: str | None = None, *, shows_usage: bool = False
) -> list[Entry]:
    """Embed (id, text) pairs and return them with their vectors."""
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
    """Read each file as one (path, text) pair. Raises UsageError if a file cannot be read."""
    return [(str(file), _decoded(_read(file), str(file))) for file in files]


def read_lines(file: Path | None) -> list[tuple[str, str]]:
    """Read the non-blank lines of a file or standard input, with their numbers. Raises UsageError if there are none."""
    name = "standard input" if file is None else str(file)
    data = stdin_bytes(MAX_BYTES) if file is None else _read(file)
    lines = _decoded(data, name).splitlines()
    found = [(f"{'' if file is None else f'{file}:'}{number}", line) for number, line in enumerate(lines, 1)]
    kept = [(id, line) for id, line in found if line.strip()]
    if not kept:
        raise click.UsageError(f"{name} contains no text")
    return kept


def read_entries(files: Sequence[Path]) -> tuple[list[Entry], list[tuple[str, str]]]:
    """Read entries that already have vectors, and texts that do not. Raises UsageError if a file cannot be read."""
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
        raise click.UsageError(f"{file} is not a file written by sidestream embed: {error}") from None


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


MODEL_HELP = (
    "Model to use: PROVIDER or PROVIDER:MODEL. Defaults to the first provider with a key and embeddings, else the "
    "embedded model."
)


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT…]")
@click.option(
    "-i",
    "--input",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Embed a file as one text. Can be repeated.",
)
@click.option("-m", "--model", type=MODEL, metavar="MODEL", help=MODEL_HELP)
@click.option("--base-url", metavar="URL", help="Base URL of the provider's API.")
@click.option("-u", "--usage", is_flag=True, help="Show tokens and cost at the end.")
def embed(texts: tuple[str, ...], files: tuple[Path, ...], model: str | None, base_url: str | None, usage: bool) -> int:
    """Convert texts to vectors. Texts are arguments, files or lines of standard input.

    Each line of the output is a JSON object with id, text and vector; `sidestream similar` reads such a file.
    """
    from sidestream import jsontext
    from sidestream.cli.display.screen import write

    entries = [*read_files(files), *((f"text {number}", text) for number, text in enumerate(texts, 1))]
    if not entries:
        entries = read_lines(None)
    for entry in embedded(entries, model, base_url, shows_usage=usage):
        write(sys.stdout.buffer, jsontext.dumps(entry) + b"\n")
    return exit_codes.OK


@click.command()
@click.argument("text")
@click.argument("files", nargs=-1, metavar="[FILE…]", type=click.Path(path_type=Path))
@click.option("-n", "limit", type=click.IntRange(min=1), default=10, show_default=True, help="Maximum number of texts.")
@click.option("-m", "--model", type=MODEL, metavar="MODEL", help=MODEL_HELP)
@click.option("--base-url", metavar="URL", help="Base URL of the provider's API.")
@click.option("--json", "as_json", is_flag=True, help="Print each text as a line of JSON.")
def similar(
    text: str, files: tuple[Path, ...], limit: int, model: str | None, base_url: str | None, as_json: bool
) -> int:
    """Rank texts by their similarity to TEXT. Texts are lines of files or of standard input.

    A FILE that `sidestream embed` wrote is not embedded again; use the same model.
    """
    from sidestream import jsontext
    from sidestream.agent.embeddings import cosine_similarity
    from sidestream.cli.display.screen import one_line, write

    known, plain = read_entries(files)
    query, *fresh = embedded([("", text), *plain], model, base_url)
    ranked: Sequence[tuple[float, Entry]] = sorted(
        ((cosine_similarity(query.vector, entry.vector), entry) for entry in [*known, *fresh]),
        key=lambda pair: pair[0],
        reverse=True,
    )
    for score, entry in ranked[:limit]:
        if as_json:
            fields = {"id": entry.id, "text": entry.text, "score": round(score, 6)}
            write(sys.stdout.buffer, jsontext.dumps(fields) + b"\n")
        else:
            write(sys.stdout, f"{score:.3f}  {one_line(entry.id, 60)}  {one_line(entry.text, 120)}\n")
    return exit_codes.OK
