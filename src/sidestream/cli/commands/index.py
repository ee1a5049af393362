"""The `sidestream index` commands, which add, list, search and remove files."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sidestream.cli import exit_codes, key_file
from sidestream.cli.display.screen import one_line, write
from sidestream.cli.stdio import is_terminal

if TYPE_CHECKING:
    from sidestream.portable.index import Index, Passage

F = TypeVar("F", bound=Callable[..., Any])
_BAR_WIDTH = 30


def _place_options(command: F) -> F:
    """Add `--index` and `--embeddings`."""
    for option in (
        click.option("--embeddings", metavar="MODEL", help="Model for the vectors. Defaults to the embedded one."),
        click.option(
            "--index",
            "where",
            metavar="PATH",
            help="Index to use: a file or a postgresql:// URL. Defaults to SIDESTREAM_INDEX, or to your own index.",
        ),
    ):
        command = option(command)
    return command


@click.group()
def index() -> None:
    """Index files and folders for file search, and search them.

    You can search files by words immediately. Vectors, which find them by meaning, follow. Ctrl-C keeps what is done,
    and the next `add` continues.
    """
    key_file.load()


@index.command()
@click.argument("paths", nargs=-1, metavar="PATH…")
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an attribute for filters. Can be repeated.",
)
@click.option("--no-vectors", is_flag=True, help="Create no vectors, and search by words only.")
@_place_options
def add(
    paths: tuple[str, ...], attributes: tuple[str, ...], no_vectors: bool, where: str | None, embeddings: str | None
) -> int:
    """Add files and folders, or update those already in the index (all of them if no PATH is given)."""
    given = dict(_attribute(text) for text in attributes)

    async def work(opened: "Index") -> int:
        bar = _Bar()
        if not paths and not await opened.roots():
            raise click.UsageError("name a file or a folder to add")
        report = await (opened.add(*paths, attributes=given or None, progress=bar) if paths else opened.refresh(bar))
        bar.clear()
        counts = await opened.counts()
        write(
            sys.stdout,
            f"{report.added} added, {report.changed} changed, {report.unchanged} unchanged, {report.removed} removed; "
            f"{counts.files} files with {counts.passages} passages in {opened.location}\n",
        )
        for path, problem in report.problems.items():
            write(sys.stderr, f"{one_line(path)}: {one_line(problem)}\n")
        if not no_vectors:
            try:
                await opened.complete(bar)
            finally:
                bar.clear()
        return exit_codes.FAILED if report.problems and not counts.passages else exit_codes.OK

    return _run(work, where, embeddings, vectors=not no_vectors)


@index.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print each file as a line of JSON.")
@_place_options
def list_files(as_json: bool, where: str | None, embeddings: str | None) -> int:
    """List the files of the index."""

    async def work(opened: "Index") -> int:
        files = await opened.list()
        for file in files:
            if as_json:
                _print_json(file)
                continue
            note = f"; {one_line(file.problem)}" if file.problem else ""
            write(sys.stdout, f"{one_line(file.path)}  {file.passages} passages{note}\n")
        counts = await opened.counts()
        if not as_json:
            write(sys.stdout, f"{counts.files} files, {counts.passages} passages, {counts.vectors} with vectors\n")
        return exit_codes.OK

    return _run(work, where, embeddings, vectors=False)


@index.command()
@click.argument("query")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 50), default=5, show_default=True, help="Maximum number of passages."
)
@click.option("--in", "paths", multiple=True, metavar="PATH", help="Search only files in this folder. Can be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print each passage as a line of JSON.")
@_place_options
def search(
    query: str, limit: int, paths: tuple[str, ...], as_json: bool, where: str | None, embeddings: str | None
) -> int:
    """Search the index. Exits with code 1 if nothing is found."""

    async def work(opened: "Index") -> int:
        found = await opened.search(query, limit, paths=paths)
        for passage in found:
            _print_json(passage) if as_json else _print_passage(passage)
        if opened.problem:
            write(sys.stderr, f"searched by words only: {one_line(opened.problem)}\n")
        if not found:
            write(sys.stderr, "Nothing found.\n")
        return exit_codes.OK if found else exit_codes.FAILED

    return _run(work, where, embeddings, vectors=True)


@index.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@_place_options
def remove(paths: tuple[str, ...], where: str | None, embeddings: str | None) -> int:
    """Remove files and folders from the index, without deleting them."""

    async def work(opened: "Index") -> int:
        count = await opened.remove(*paths)
        write(sys.stdout, f"{count} files removed from {opened.location}\n")
        return exit_codes.OK if count else exit_codes.FAILED

    return _run(work, where, embeddings, vectors=False)


def _run(work: Callable[["Index"], Any], where: str | None, embeddings: str | None, *, vectors: bool) -> int:
    from sidestream.agent.services import open_index
    from sidestream.cli.interrupts import run_async

    async def main() -> int:
        async with open_index(where, embeddings=embeddings, vectors=vectors) as opened:
            return await work(opened)

    return run_async(main())


class _Bar:
    """A progress bar on standard error, shown only on a terminal."""

    def __init__(self) -> None:
        self._is_shown = is_terminal(sys.stderr)

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._is_shown and total:
            filled = _BAR_WIDTH * done // total
            write(sys.stderr, f"\r{stage} [{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {done}/{total}\x1b[K")

    def clear(self) -> None:
        """Remove the bar."""
        if self._is_shown:
            write(sys.stderr, "\r\x1b[K")


def _print_passage(passage: "Passage") -> None:
    page = f", page {passage.page}" if passage.page else ""
    heading = f"  {one_line(passage.heading)}" if passage.heading else ""
    write(sys.stdout, f"{passage.score:.2f}  {one_line(passage.path)}{page}{heading}\n")
    write(sys.stdout, f"      {one_line(passage.text, 300)}\n")


def _print_json(value: Any) -> None:
    from sidestream import jsontext

    write(sys.stdout.buffer, jsontext.dumps(value) + b"\n")


def _attribute(text: str) -> tuple[str, str | int | float | bool]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--attribute {text!r}: use NAME=VALUE, e.g. year=2024")
    if value in ("true", "false"):
        return name, value == "true"
    for number in (int, float):
        try:
            return name, number(value)
        except ValueError:
            continue
    return name, value
