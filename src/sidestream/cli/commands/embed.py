"""`sidestream embed` and `sidestream similar`: texts as vectors, and texts ranked by them."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidestream.cli import exit_codes
from sidestream.cli.inputs.options import MODEL

if TYPE_CHECKING:
    from sidestream.cli.commands.embedding_entries import Entry

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
    """Convert texts to vectors: those given, files, or the lines of standard input.

    Each line of the output is a JSON object with id, text and vector; `sidestream similar` reads such a file.
    """
    from sidestream import jsontext
    from sidestream.cli.commands.embedding_entries import embedded, read_files, read_lines
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
    """Rank texts by their similarity to TEXT: the lines of files, or of standard input.

    A FILE that `sidestream embed` wrote is not embedded again; use the same model.
    """
    from sidestream import jsontext
    from sidestream.agent.embeddings import cosine_similarity
    from sidestream.cli.commands.embedding_entries import embedded, read_entries
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
