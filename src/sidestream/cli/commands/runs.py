"""The `sidestream runs` commands, which work whichever process executes a run."""

import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import click

from sidestream.cli import exit_codes
from sidestream.cli.display.screen import one_line, write
from sidestream.cli.inputs import options
from sidestream.cli.inputs.conversations import with_store

if TYPE_CHECKING:
    from pathlib import Path

    from sidestream.durable.engines.protocol import Engine
    from sidestream.durable.log.summaries import RunSummary
    from sidestream.store.protocol import SharedStore, Store
    from sidestream.store.records import Row
    from sidestream.tools.approvals import Decision, PendingApproval


@click.group(invoke_without_command=True)
@click.pass_context
def runs(ctx: click.Context) -> Any:
    """List, show, follow, stop, resume and decide runs.

    RUN is the id of a run, or of its conversation, or a prefix of the latter.
    """
    if ctx.invoked_subcommand is None:
        return ctx.invoke(list_runs, store=None)
    return None


@runs.command("list")
@options.store_option
@click.option("--all", "shows_all", is_flag=True, help="Include finished runs.")
@click.option("-n", "limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print each run as a line of JSON.")
def list_runs(store: str | None, shows_all: bool = False, limit: int = 20, as_json: bool = False) -> int:
    """List runs that are in progress or waiting for a decision."""

    async def work(opened: "Store") -> int:
        from sidestream.cli.chat.transcript import format_time
        from sidestream.cli.inputs.conversations import all_conversations
        from sidestream.durable.log.summaries import summary_of
        from sidestream.errors import StoreError
        from sidestream.store.log.conversation import Conversation

        shown = 0
        for info in await all_conversations(opened):
            try:
                # For most finished runs, the last record is enough.
                is_over = info.last == "finish" and await Conversation(opened, info.id).status(info) != "waiting"
                if is_over and not shows_all:
                    continue
                run = await summary_of(opened, info)
            except (StoreError, ValueError):
                continue  # `logs check` reports why.
            if run is None or (run.is_over and not shows_all):
                continue
            if shown == limit:
                click.echo(f"There are more than {limit} runs. Use -n to show more.", err=True)
                break
            shown += 1
            if as_json:
                write(sys.stdout.buffer, _as_json(run))
            else:
                who = one_line(run.worker, 30) or "-"
                about = f"{_standing(run)[0]:<10}  {_agent(run):<16}  {who:<24}  {one_line(run.model, 40):<28}"
                about += f"  {one_line(run.title, 60)}"
                write(sys.stdout, f"{run.id}  {format_time(run.updated)}  {about}".rstrip() + "\n")
        if not shown and not as_json:
            click.echo(
                "No runs." if shows_all else "No runs in progress. Use --all to include finished runs.", err=True
            )
        return exit_codes.OK

    return with_store(store, work)


@runs.command()
@click.argument("run")
@options.store_option
@click.option(
    "--cache", "shows_cache", is_flag=True, help="Show what the provider's prompt cache read, and what broke it."
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON.")
def show(run: str, store: str | None, shows_cache: bool, as_json: bool) -> int:
    """Show a run's status, its worker and what it is waiting for.

    With --cache, show the steps of the run, or of all runs of the conversation. Sends nothing.
    """

    async def work(opened: "Store") -> int:
        if shows_cache:
            known = await opened.find_run(run)
            conversation = known[0] if known is not None else (await _find(opened, run)).conversation
            return await _show_cache(opened, conversation, run if known is not None else None, as_json)
        found = await _find(opened, run)
        write(sys.stdout.buffer, _as_json(found)) if as_json else write(sys.stdout, _described(found))
        return exit_codes.OK

    return with_store(store, work)


async def _show_cache(store: "Store", conversation: str, run: str | None, as_json: bool) -> int:
    """Print what the prompt cache did in the steps of a run, or of the whole conversation."""
    import msgspec

    from sidestream import jsontext
    from sidestream.cli.display.formatting import dollars, things
    from sidestream.replay.prompt_cache import FIRST, cache_steps
    from sidestream.store.records import FORKED

    found = await cache_steps(store, conversation)
    # The steps that a fork copied were paid for by its original.
    copied = max((row.seq for row in await store.read(conversation) if row.kind == FORKED), default=0)
    steps = [step for step in found if (step.seq > copied if run is None else step.run == run)]
    breaks = [step for step in steps if step.cause is not None]
    lost = [step.lost for step in breaks]
    costs = [step.dollars for step in breaks]
    known, paid = sum(filter(None, lost)), sum(filter(None, costs))
    unknown = [step for step in steps if step.lost is None and step.note != FIRST]
    if as_json:
        shown = [{**msgspec.to_builtins(step, enc_hook=repr), "why": step.why()} for step in steps]
        total = {"breaks": len(breaks), "lost": known, "dollars": round(paid, 12), "unknown": len(unknown)}
        total["unpriced"] = sum(step.lost is not None and step.dollars is None for step in breaks)
        fields = {"run": run, "conversation": conversation, "about": True, "steps": shown, "total": total}
        write(sys.stdout.buffer, jsontext.dumps(fields) + b"\n")
        return exit_codes.OK
    if not steps:
        click.echo(
            "No requests of its own." if found else "No requests. They are logged since version 0.2.0.", err=True
        )
        return exit_codes.OK
    names = ("seq", "prompt", "shared", "expected", "read", "written", "lost", "cost")
    lines: list[tuple[str, ...]] = [names]
    for step in steps:
        counts = (step.prompt, step.shared, step.expected, step.read, step.written, step.lost)
        cells = ["-" if count is None else f"{count:,}" for count in counts]
        lines.append((str(step.seq), *cells, "-" if step.dollars is None else dollars(step.dollars)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for at, line in enumerate(lines):
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        write(sys.stdout, "  ".join(cells) + "\n")
        about = [steps[at - 1].why(), steps[at - 1].note] if at else []
        for text in filter(None, about):
            write(sys.stdout, f"  {one_line(text, 300)}\n")
    some = " + unknown" if None in lost or None in costs or unknown else ""
    write(sys.stdout, f"\n{things(len(breaks), 'break')}, about {known:,} tokens and about {dollars(paid)}{some}\n")
    write(sys.stdout, "about: shared, expected, lost and cost are estimates from the reported usage\n")
    return exit_codes.OK


@runs.command()
@click.argument("run")
@click.option(
    "--at", required=True, type=click.IntRange(min=1), metavar="SEQ", help="Last record to keep from the log."
)
@click.option("-m", "--model", type=options.MODEL, metavar="MODEL", help="Continue with another model.")
@click.option("--result", "results", multiple=True, metavar="CALL=JSON", help="Replace the result of a call.")
@click.option("--deny", multiple=True, metavar="CALL", help="Deny a call. Can be repeated.")
@click.option("--message", metavar="TEXT", help="Add a message, which the next request takes.")
@click.option("--replay", is_flag=True, help="Use recorded answers and results while the requests are equal.")
@click.option("--strict", is_flag=True, help="Fail if a request differs from the recorded one. Implies --replay.")
@options.agent_options
@options.store_option
@options.json_option
@options.out_option
@options.thinking_option
@options.verbose_option
def fork(
    run: str,
    at: int,
    model: str | None,
    results: tuple[str, ...],
    deny: tuple[str, ...],
    message: str | None,
    replay: bool,
    strict: bool,
    store: str | None,
    as_json: bool,
    out: "Path | None",
    thinking: str | int | None,
    verbose: bool,
    usage: bool,
    plain: bool,
    **agent: Any,
) -> int:
    """Copy a run up to a record, change one fact, and run the rest.

    The original stays as it is. What comes from the log calls no model, runs no tool and costs nothing.
    """
    from sidestream.cli import key_file
    from sidestream.cli.commands.resume import ForkRequest, fork_run
    from sidestream.cli.display.view import ViewOptions
    from sidestream.jsontext import without_none

    key_file.load()
    changes = {
        "model": model,
        "system": agent.pop("system"),
        "message": message,
        "results": dict(map(_result, results)) or None,
    }
    view_options = ViewOptions(
        as_json=as_json,
        out=out,
        thinking=thinking not in (None, "off"),
        verbose=verbose,
        usage=usage,
        is_plain=plain,
    )
    request = ForkRequest(
        run=run,
        at=at,
        changes={**without_none(changes), "deny": deny, "replay": replay, "strict": strict},
        store=store,
        agent={**agent, "thinking": thinking},
    )
    return with_store(store, lambda opened: fork_run(opened, request, view_options))


def _result(text: str) -> tuple[str, Any]:
    """Parse CALL=JSON. A value that is not JSON is text."""
    from sidestream.jsontext import loads

    call, equals, value = text.partition("=")
    if not equals or not call:
        raise click.UsageError(f"--result must be CALL=JSON, not {text!r}")
    try:
        return call, loads(value)
    except ValueError:
        return call, value


@runs.command()
@click.argument("run")
@options.engine_option
@options.store_option
def cancel(run: str, engine: str, store: str | None) -> int:
    """Stop a run in any process, even one that waits for a decision. Its output so far stays in the log."""

    async def work(opened: "SharedStore", chosen: "Engine") -> int:
        from sidestream.durable.log.run_control import RunControl

        found, control = await _find(opened, run), RunControl(opened, chosen)
        stop = control.stop_waiting if found.status == "waiting" else control.stop
        if not await stop(found.conversation):
            click.echo(f"The run is already {found.status}.", err=True)
            return exit_codes.OK
        click.echo(f"{found.id} was stopped")
        return exit_codes.OK

    return _with_engine(store, engine, work)


@runs.command()
@click.argument("run")
@options.engine_option
@options.store_option
def resume(run: str, engine: str, store: str | None) -> int:
    """Let a worker resume a stopped, failed or abandoned run."""

    async def work(opened: "SharedStore", chosen: "Engine") -> int:
        found = await _find(opened, run)
        word, sentence = _standing(found)
        if word == "scheduled":
            click.echo(f"{found.id} is scheduled: {sentence}", err=True)
            return exit_codes.OK
        agent = await _enqueue(opened, chosen, found, ())
        click.echo(f"{found.id} is queued for a worker with the agent {agent}")
        return exit_codes.OK

    return _with_engine(store, engine, work)


@runs.command()
@click.argument("run")
@click.argument("approvals", metavar="[APPROVAL…]", nargs=-1)
@options.engine_option
@options.store_option
def approve(run: str, approvals: tuple[str, ...], engine: str, store: str | None) -> int:
    """Approve the calls that a run waits for, and let a worker continue it.

    With APPROVAL, only these calls are approved and the others are denied. `runs show` lists them.
    """

    def decide(waiting: "tuple[PendingApproval, ...]") -> "list[Decision]":
        known = {entry.approval_id for entry in waiting}
        if unknown := [id for id in approvals if id not in known]:
            raise click.UsageError(
                f"the run does not wait for {unknown[0]!r}; it waits for: {', '.join(sorted(known))}"
            )
        chosen = approvals or known
        return [entry.approve() if entry.approval_id in chosen else entry.deny() for entry in waiting]

    return _decide(run, engine, store, decide)


@runs.command()
@click.argument("run")
@click.option("--reason", metavar="TEXT", help="Reason, which is sent to the model.")
@options.engine_option
@options.store_option
def deny(run: str, reason: str | None, engine: str, store: str | None) -> int:
    """Deny the calls that a run waits for, and let a worker continue it."""
    return _decide(run, engine, store, lambda waiting: [entry.deny(reason) for entry in waiting])


def _decide(
    run: str,
    engine: str,
    store: str | None,
    decide: "Callable[[tuple[PendingApproval, ...]], list[Decision]]",
) -> int:
    async def work(opened: "SharedStore", chosen: "Engine") -> int:
        found = await _find(opened, run)
        if not found.waiting:
            word, sentence = _standing(found)
            raise click.UsageError(f"{found.id} does not wait for a decision: {word} ({sentence})")
        decisions = decide(found.waiting)
        await _enqueue(opened, chosen, found, decisions)
        for entry, decision in zip(found.waiting, decisions, strict=True):
            click.echo(
                f"{'approved' if decision.is_approved else 'denied'}: {one_line(entry.tool)} ({entry.approval_id})"
            )
        return exit_codes.OK

    return _with_engine(store, engine, work)


async def _enqueue(store: "SharedStore", engine: "Engine", run: "RunSummary", decisions: "Sequence[Decision]") -> str:
    """Let a worker continue a run, and return the name of its agent."""
    from sidestream.durable.beginning import begin_again
    from sidestream.durable.engines.protocol import Task
    from sidestream.durable.log.jobs import queue_of

    position = await begin_again(store, run, decisions)
    assert run.job is not None
    await engine.enqueue(Task(conversation=run.conversation, position=position, queue=queue_of(run.job.agent)))
    return run.job.agent


@runs.command()
@click.argument("run")
@options.store_option
@click.option("--after", default=0, show_default=True, help="Start after this record.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a line of JSON.")
@options.view_options
def tail(run: str, store: str | None, after: int, as_json: bool, plain: bool, **detail: bool) -> int:
    """Show the conversation of a run and follow it until the run ends.

    Exits with code 3 if the run waits for a decision.
    """

    async def work(opened: "Store") -> int:
        from sidestream.cli.commands.logs import print_rows

        conversation = (await _find(opened, run)).conversation
        await print_rows(opened, _until_end(opened, conversation, after), as_json, **detail)
        found = await _find(opened, conversation)
        if found.status != "waiting":
            return exit_codes.OK
        click.echo(f"The run waits for a decision. Use: sidestream runs approve {found.id}", err=True)
        return exit_codes.WAITING

    return with_store(store, work)


async def _until_end(store: "Store", conversation: str, after: int) -> "AsyncGenerator[Row]":
    """Yield the rows of a conversation until no run is in progress there."""
    from contextlib import aclosing

    from sidestream.store.records import ENDINGS, open_run

    written = await store.read(conversation)
    for row in written:
        if row.seq > after:
            yield row
    if open_run(written) is None:
        return
    async with aclosing(store.tail(conversation, max(after, written[-1].seq))) as rows:
        async for row in rows:
            yield row
            if row.kind in ENDINGS:
                return


def _with_engine(
    location: str | None, engine: str, work: "Callable[[SharedStore, Engine], Coroutine[Any, Any, int]]"
) -> int:
    async def opened(store: "Store") -> int:
        from sidestream.durable.engines import open_engine
        from sidestream.store.wrapped import shared

        chosen = open_engine(engine, store)
        try:
            return await work(shared(store), chosen)
        finally:
            await chosen.aclose()

    return with_store(location, opened)


async def _find(store: "Store", run: str) -> "RunSummary":
    """Find the run with this id, or a conversation's last run. Raises UsageError if there is none."""
    from sidestream.cli.inputs.conversations import find_conversation, get_conversation
    from sidestream.durable.log.summaries import summary_of

    known = await store.find_run(run)
    info = await get_conversation(store, known[0]) if known is not None else await find_conversation(store, run)
    found = await summary_of(store, info) if info is not None else None
    if found is None:
        raise click.UsageError(f"no run {run!r}: the conversation has no runs")
    if known is not None and found.id != run:
        raise click.UsageError(f"run {run!r} has finished and was followed by another: {found.id}")
    return found


def _as_json(run: "RunSummary") -> bytes:
    import msgspec

    from sidestream import jsontext

    fields = {name: getattr(run, name) for name in run.__struct_fields__ if name not in ("job", "waiting")}
    job: dict[str, object] | None = None
    if run.job is not None:
        job = {"agent": run.job.agent, "attempt": run.job.attempt}
        job |= {"at": run.job.at} if run.job.at is not None else {}
    waiting = [{"approval": entry.approval_id, "tool": entry.tool} for entry in run.waiting]
    return jsontext.dumps({**msgspec.to_builtins(fields), "job": job, "waiting": waiting}) + b"\n"


def _agent(run: "RunSummary") -> str:
    """Return the name of a run's agent, or - if it has only a model."""
    name = run.job.agent if run.job is not None else run.model
    return "-" if name == run.model else one_line(name, 30)


def _standing(run: "RunSummary") -> tuple[str, str]:
    """Return a run's status, as a word and as a sentence."""
    from sidestream.cli.chat.transcript import format_time
    from sidestream.turn.state import TURN_STATUSES

    if run.status != "unfinished" or run.job is None or run.job.attempt > 0:
        return run.status, TURN_STATUSES[run.status]
    if run.job.at is None:
        return "queued", "no worker has started it yet"
    return "scheduled", f"it starts at {format_time(run.job.at)}"


def _described(run: "RunSummary") -> str:
    from sidestream.cli.chat.transcript import format_time, origin_line

    how = ": ".join(_standing(run)) + (f" ({run.reason})" if run.reason else "")
    lines = {
        "run": run.id,
        "conversation": run.conversation,
        **({} if run.forked_from is None else {"origin": origin_line(run.forked_from)}),
        "title": run.title,
        "status": how,
        "agent": run.job.agent if run.job is not None else run.model,
        "model": run.model,
        "worker": run.worker or "none yet",
        "started": format_time(run.began),
        "updated": format_time(run.updated),
        "records": str(run.position),
        "starts": str(run.starts),
        "steps": str(run.steps),
        "tokens": f"{run.usage.input.total} in, {run.usage.output.total} out",
    }
    if run.usage.cost is not None:
        lines["cost"] = f"${run.usage.cost:.4f}"
    for entry in run.waiting:
        lines[f"waits for {entry.approval_id}"] = one_line(f"{entry.tool} {entry.input}", 200)
    return "".join(f"{name + ':':<14} {one_line(value, 300)}\n" for name, value in lines.items())
