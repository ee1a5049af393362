"""`sidestream logs test`: logged runs as pytest files, each with a cassette."""

import asyncio
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from msgspec import Struct

from sidestream.cli import exit_codes
from sidestream.cli.display.screen import one_line
from sidestream.cli.inputs import options
from sidestream.cli.inputs.conversations import find_conversation, with_store
from sidestream.errors import SidestreamError
from sidestream.results.tool_labels import things

if TYPE_CHECKING:
    from sidestream.agent.agent import Agent
    from sidestream.agent.replayed import ReplayedRun
    from sidestream.replay.cassette import Cassette
    from sidestream.store.protocol import Store

MAX_SLUG = 40
CASSETTES = "cassettes"
_WIDTH = 90
_LONG_TEXT = 400
"""Characters beyond which a test asserts only the beginning of an answer."""


class WrittenTest(Struct, frozen=True):
    """A written test: its file, and why it fails, if it does."""

    file: Path
    cassette: "Cassette"
    problem: str | None = None


@click.command("test")
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tests"),
    show_default=True,
    help="Folder for the tests. Their cassettes go into its folder cassettes.",
)
@click.option("--agent", metavar="MODULE:NAME", help="The tested agent. Without it, one is rebuilt from the log.")
@click.option("--update", is_flag=True, help="Replace existing tests, and accept what the agent requests now.")
@options.store_option
def test(runs: tuple[str, ...], out: Path, agent: str | None, update: bool, store: str | None) -> int:
    """Write a pytest file and its cassette for each run.

    RUN is the id of a run, or of a conversation, whose last run is taken. The test runs the agent again, with the
    answers, tool results and decisions of the log, and compares its requests. Secrets and e-mail addresses are
    replaced.
    """
    from sidestream.cli.inputs.imports import import_agent

    tested = None if agent is None else import_agent(agent)

    async def work(opened: "Store") -> int:
        from sidestream.replay.cassette import cassette_of, redacted

        code = exit_codes.OK
        for run in runs:
            try:
                known = await opened.find_run(run)
                conversation = known[0] if known is not None else (await find_conversation(opened, run)).id
                cassette = redacted(await cassette_of(opened, conversation, run if known is not None else None))
                cassette.agent = agent
                written = await asyncio.to_thread(write_test, cassette, out, tested, update=update)
            except (click.UsageError, SidestreamError) as error:
                if len(runs) == 1:
                    raise
                click.echo(f"error: {run}: {error}", err=True)  # The other runs have their tests.
                code = exit_codes.FAILED
                continue
            _report(written)
            code = exit_codes.FAILED if written.problem else code
        return code

    return with_store(store, work)


def write_test(
    cassette: "Cassette", out: Path, agent: "Agent[Any, Any] | None", *, update: bool = False
) -> WrittenTest:
    """Write the test of a cassette and try it.

    Raises UsageError if it exists, or if no agent was given and the rebuilt one makes other requests.
    """
    from sidestream.agent.replayed import ReplayMismatch, replay_run
    from sidestream.replay.cassette import Cassette

    slug = _slug(cassette.message().text)
    file, path = out / f"test_{slug}.py", out / CASSETTES / f"{slug}.json"
    if path.exists() and Cassette.load(path).run != cassette.run:
        slug = f"{slug}_{cassette.run.removeprefix('run_')[:6]}"
        file, path = out / f"test_{slug}.py", out / CASSETTES / f"{slug}.json"
    if file.exists() and not update:
        raise click.UsageError(f"{file} exists; use --update to replace it")
    path.parent.mkdir(parents=True, exist_ok=True)
    cassette.save(path)
    problem: str | None = None
    run: ReplayedRun | None = None
    try:
        run = replay_run(path, agent, model="recorded", tools="recorded", hosted="recorded", update=update)
    except ReplayMismatch as mismatch:
        if agent is None:
            path.unlink()
            reason = str(mismatch).splitlines()[1:2]
            raise click.UsageError(
                f"cannot rebuild the agent of {cassette.run} from its log ({' '.join(reason)}); "
                "name it with --agent MODULE:NAME"
            ) from None
        problem = str(mismatch)
    file.write_text(test_source(cassette, slug, run), "utf-8")
    return WrittenTest(file, Cassette.load(path), problem)


def test_source(cassette: "Cassette", slug: str, run: "ReplayedRun | None") -> str:
    """Return the source of a test. Without a run that passes, it asserts only what the log says."""
    from sidestream.agent.replayed import Dials, ReplayedRun
    from sidestream.replay.cassette import step_parts

    if run is None:
        parts = [part for step in cassette.steps for part in step_parts(step)]
        run = ReplayedRun(output=None, parts=tuple(parts), dials=Dials())
    asked = one_line(cassette.message().text, 100).replace("\\", "").replace('"""', "'''")
    lines = [
        f'"""A run of {cassette.model}, replayed: {asked}"""',
        "",
        "from pathlib import Path",
        "",
    ]
    argument = ""
    if cassette.agent is not None:
        module, _, name = cassette.agent.partition(":")
        argument = f", {name}"
        lines += [f"from {module} import {name.partition('.')[0]}", ""]
    lines += [
        "from sidestream.testing import replay_run",
        "",
        f'CASSETTE = Path(__file__).with_name("{CASSETTES}") / "{slug}.json"',
        "",
        "",
        f"def test_{slug}():",
        f"    run = replay_run(CASSETTE{argument})",
        "",
        f"    assert run.calls == {_literal(run.calls, 4)}",
        f'    assert run.finish_reason == "{cassette.finish_reason or run.finish_reason}"',
    ]
    exact = _exact(run)
    if exact:
        lines += ["    if not run.is_live:  # A live model chooses its own words.", *(f"    {line}" for line in exact)]
    lines.append(f"    assert run.steps <= {len(cassette.steps)}")
    if (cost := _steps_cost(cassette)) is not None:
        lines.append(f"    assert run.cost is not None and run.cost <= {cost}")
    return "\n".join(lines) + "\n"


def _exact(run: "ReplayedRun") -> list[str]:
    """Return the assertions about the answer."""
    lines: list[str] = []
    output: object = run.output
    if isinstance(output, dict | list):
        lines.append(f"    assert run.output == {_literal(cast('Any', output), 8)}")
    elif not isinstance(output, str | int | float | None):
        lines.append(f'    assert type(run.output).__name__ == "{type(output).__name__}"')
    if len(run.text) > _LONG_TEXT:
        start = _literal(run.text[:_LONG_TEXT], 8)
        lines.append(f"    assert run.text.startswith{start if start[0] == '(' else f'({start})'}")
    elif run.text:
        lines.append(f"    assert run.text == {_literal(run.text, 8)}")
    if run.citations:
        lines.append(f"    assert run.citations == {_literal(run.citations, 8)}")
    return lines


def _literal(value: Any, indent: int) -> str:
    """Return a value as Python source, in several lines if it is long."""
    pad = " " * (indent + 4)
    match value:
        case str() if len(value) > _WIDTH:
            lines = [piece for line in value.splitlines(keepends=True) for piece in _wrapped(line)]
            return "\n".join(["(", *(f"{pad}{_quoted(line)}" for line in lines), " " * indent + ")"])
        case str():
            return _quoted(value)
        case dict():
            fields = cast("dict[str, Any]", value)
            items = [f"{_quoted(key)}: {_literal(inner, indent + 4)}" for key, inner in fields.items()]
            ends = "{}"
        case list() | tuple():
            items = [_literal(inner, indent + 4) for inner in cast("list[Any]", value)]
            ends = "[]" if isinstance(value, list) else "()"
        case _:
            return repr(value)
    line = f"{ends[0]}{', '.join(items)}{ends[1]}"
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    return "\n".join([ends[0], *(f"{pad}{item}," for item in items), " " * indent + ends[1]])


def _wrapped(line: str) -> list[str]:
    """Cut a line of text at spaces into pieces that fit the source."""
    return re.findall(rf"(?s).{{1,{_WIDTH}}}(?:\s|$)|.{{1,{_WIDTH}}}", line) if len(line) > _WIDTH else [line]


def _quoted(text: str) -> str:
    """Return a string as Python source in double quotes."""
    source = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in source)


def _steps_cost(cassette: "Cassette") -> float | None:
    """Return the cost of the recorded run, rounded up to two digits, or None if it is unknown."""
    from sidestream.parts import Finish
    from sidestream.replay.cassette import step_parts

    costs = [part.usage.cost for step in cassette.steps for part in step_parts(step) if isinstance(part, Finish)]
    total = None if None in costs else sum(cost for cost in costs if cost is not None)
    if not total:
        return total
    digits = 1 - math.floor(math.log10(total))
    return math.ceil(total * 10**digits) / 10**digits


def _slug(text: str) -> str:
    """Return the beginning of a prompt as a Python name."""
    words = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return (words if len(words) <= MAX_SLUG else words[:MAX_SLUG].rpartition("_")[0] or words[:MAX_SLUG]) or "run"


def _report(written: WrittenTest) -> None:
    click.echo(f"{written.file} ({things(len(written.cassette.steps), 'request')})")
    for value in written.cassette.redacted:
        more = f" and {len(value.paths) - 3} more" if len(value.paths) > 3 else ""
        click.echo(f"  replaced: {value.kind} → {value.replacement} in {', '.join(value.paths[:3])}{more}")
    if written.problem:
        click.echo(f"error: {written.file} fails: {written.problem}", err=True)
