"""The `sidestream local` commands, which manage local models' files."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidestream.cli import exit_codes
from sidestream.cli.display.screen import one_line, write
from sidestream.jsontext import without_none

if TYPE_CHECKING:
    from sidestream.providers.local.adding import ListedModel

_MB = 1_000_000


@click.group()
def local() -> None:
    """Install the embedded models, and add models of your own."""


@local.command()
def install() -> int:
    """Download the model files (180 MB) and verify their digests. Files that are already installed are kept.

    Exits with code 1 if the runtime is missing.
    """
    from sidestream.providers.local.install import install, status

    install(_print_progress)
    lines, is_complete = status()
    if not is_complete:
        _print_progress(lines[-1])
    return exit_codes.OK if is_complete else exit_codes.FAILED


@local.command()
def status() -> int:
    """Show which files are installed and intact. Exits with code 1 if any is missing."""
    from sidestream.providers.local.install import status

    lines, is_complete = status()
    for line in lines:
        print(line)
    return exit_codes.OK if is_complete else exit_codes.FAILED


@local.command()
@click.argument("path")
@click.option("--name", metavar="NAME", help="Name of the model. Defaults to the file's name.")
@click.option("--sha256", metavar="DIGEST", help="Expected SHA-256 digest of the file.")
@click.option("--context", type=click.IntRange(1), metavar="TOKENS", help="Context size, in tokens.")
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Number of processor threads.")
@click.option("--gpu-layers", type=click.IntRange(0), metavar="N", help="Number of layers to run on the GPU.")
def add(
    path: str,
    name: str | None,
    sha256: str | None,
    context: int | None,
    threads: int | None,
    gpu_layers: int | None,
) -> int:
    """Register a GGUF file as a local model, to use as `-m local:NAME`. The file stays where it is."""
    from sidestream.providers.local import adding

    given = {"context": context, "threads": threads, "gpu_layers": gpu_layers}
    options = without_none(given)
    chosen = adding.check_name(name) if name else adding.name_of(path)
    info = adding.register(chosen, Path(os.path.expanduser(path)), sha256=sha256, options=options)
    tools = "tools" if info.has_tools or info.is_chatml else "no tools"
    context_size = f"{info.context_tokens:,} tokens" if info.context_tokens else "unknown context"
    write(
        sys.stdout,
        f"{chosen}: {one_line(info.name or info.architecture)}, {info.size_bytes // _MB} MB, {context_size}, {tools}\n"
        f'Use it with: sidestream -m local:{chosen} "…"\n',
    )
    return exit_codes.OK


@local.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print each model as a line of JSON.")
def list_models(as_json: bool) -> int:
    """List local models, and which of them fit into this machine's memory."""
    from sidestream import jsontext
    from sidestream.providers.local.adding import available_memory, listed

    for model in listed():
        if as_json:
            write(sys.stdout.buffer, jsontext.dumps(model) + b"\n")
        else:
            write(sys.stdout, f"{model.name}  {one_line(_described(model))}\n")
    free = available_memory()
    if free is not None and not as_json:
        write(sys.stdout, f"{free // _MB:,} MB of memory are available\n")
    return exit_codes.OK


@local.command()
@click.argument("names", nargs=-1, metavar="[NAME…]")
def remove(names: tuple[str, ...]) -> int:
    """Remove the files that `install` downloaded, or added models by name."""
    if not names:
        from sidestream.providers.local.install import remove

        remove(_print_progress)
        return exit_codes.OK
    from sidestream.providers.local.adding import forget

    unknown = [name for name in names if not forget(name, _print_progress)]
    for name in unknown:
        _print_progress(f"{name}: no added model has this name")
    return exit_codes.FAILED if unknown else exit_codes.OK


def _described(model: "ListedModel") -> str:
    if model.problem:
        return f"{model.kind}; {model.problem}"
    size = f"{(model.size_bytes or 0) // _MB:,} MB"
    if model.memory_bytes is None:
        return f"{model.kind}, {size}"
    fits = {True: "fits", False: "does not fit", None: "memory unknown"}[model.fits]
    tools = "tools" if model.has_tools else "no tools"
    return (
        f"{model.kind}, {size}, {tools}; needs {model.memory_bytes // _MB:,} MB with a context of "
        f"{model.context_tokens:,} tokens: {fits}"
    )


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
