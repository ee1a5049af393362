"""`sidestream logs`: what was written down, and going on with it."""

import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidestream.cli import exit_codes, key_file, options
from sidestream.cli.stdio import argument, is_terminal
from sidestream.cli.terminal import one_line, write

if TYPE_CHECKING:
    from sidestream.store.protocol import ConversationInfo, Store
    from sidestream.store.records import Row

OPENED = {
    "finish": "complete",
    "step-finish": "complete",
    "approval-asked": "waiting",
    "tool-suspended": "waiting",
    "cancelled": "cancelled",
    "discarded": "dropped",
    "message": "imported",
}
"""Kind of the last record → how the conversation stands; any other kind: a run is in the middle, or was broken off."""


@click.group(invoke_without_command=True)
@click.pass_context
def logs(ctx: click.Context) -> Any:
    """See, follow and go on with conversations that were written down.

    ID may be the beginning of an id. Without one, or with -, show and resume take the latest.
    """
    if ctx.invoked_subcommand is None:
        return ctx.invoke(list_conversations, store=None)
    return None


@logs.command("list")
@options.store_option
@click.option("-n", "limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each.")
def list_conversations(store: str | None, limit: int = 20, as_json: bool = False) -> int:
    """List conversations, the one that changed last first."""

    async def work(opened: "Store") -> int:
        from sidestream import jsontext
        from sidestream.cli.transcript import when

        found = await opened.conversations(limit)
        for info in found[:limit]:
            state = await _state(opened, info)
            if as_json:
                told = {name: getattr(info, name) for name in info.__struct_fields__}
                write(sys.stdout.buffer, jsontext.dumps({**told, "state": state}) + b"\n")
            else:
                about = f"{one_line(info.model, 40):<28}  {state:<10}  {one_line(info.title, 80)}"
                write(sys.stdout, f"{one_line(info.id):<18}  {when(info.updated)}  {about}".rstrip() + "\n")
        if not found and not as_json:
            click.echo("there is no conversation yet: begin one with sidestream chat", err=True)
        return exit_codes.OK

    return _with(store, work)


@logs.command()
@click.argument("id", required=False)
@options.store_option
@click.option("--json", "as_json", is_flag=True, help="Print the records, one line of JSON each.")
@click.option("--parts", "as_parts", is_flag=True, help="Print the parts of its stream, one line of JSON each.")
@options.view_options
def show(id: str | None, store: str | None, as_json: bool, as_parts: bool, thinking: bool, verbose: bool) -> int:
    """Show a conversation."""

    async def work(opened: "Store") -> int:
        from sidestream.cli.conversations import find

        info = await find(opened, id, may_be_latest=True)
        rows = await opened.read(info.id)
        if as_parts:
            await _print_parts(opened, rows)
        elif as_json:
            for row in rows:
                write(sys.stdout.buffer, _as_json(row))
        else:
            await _print_transcript(opened, rows, thinking=thinking, verbose=verbose)
        return exit_codes.OK

    return _with(store, work)


@logs.command()
@click.argument("id")
@options.store_option
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="N", help="Begin after this record.")
@click.option("--json", "as_json", is_flag=True, help="Print the records, one line of JSON each.")
@options.view_options
def tail(id: str, store: str | None, after: int, as_json: bool, thinking: bool, verbose: bool) -> int:
    """Show a conversation and follow it as it goes on, until Ctrl-C."""

    async def work(opened: "Store") -> int:
        from sidestream.cli.conversations import find
        from sidestream.cli.transcript import load_record

        info = await find(opened, id)
        transcript = _transcript(thinking=thinking, verbose=verbose)
        rows = opened.tail(info.id, after)
        try:
            async for row in rows:
                if as_json:
                    write(sys.stdout.buffer, _as_json(row))
                else:
                    transcript.feed(await load_record(opened, row))
        finally:
            await rows.aclose()
        return exit_codes.OK

    return _with(store, work)


@logs.command()
@click.argument("id", required=False)
@click.argument("words", metavar="[PROMPT]", nargs=-1)
@click.option("-m", "--model", metavar="MODEL", help="Another model than the one that answered last.")
@options.agent_options
@options.store_option
@options.json_option
@options.out_option
@options.view_options
def resume(
    id: str | None,
    words: tuple[str, ...],
    model: str | None,
    store: str | None,
    as_json: bool,
    out: Path | None,
    thinking: bool,
    verbose: bool,
    **agent: Any,
) -> int:
    """Go on with a turn that waits for approvals, failed, was cancelled or broken off.

    With a PROMPT, and where the last turn is complete, it is the next message.
    """
    from sidestream.cli.resume import ResumeRequest, resumed
    from sidestream.cli.views import ViewOptions

    key_file.load()
    look = ViewOptions(as_json=as_json, out=out, thinking=thinking, verbose=verbose)
    wish = ResumeRequest(id=id, prompt=argument(words), model=model, store=store, agent=agent)
    return _with(store, lambda opened: resumed(opened, wish, look))


@logs.command()
@click.argument("id", required=False)
@options.store_option
@options.out_option
def files(id: str | None, store: str | None, out: Path | None) -> int:
    """List the files that tools made in a conversation; with --out, save them."""

    async def work(opened: "Store") -> int:
        from sidestream.cli import formatting
        from sidestream.cli.conversations import find
        from sidestream.cli.output_folder import OutputFolder
        from sidestream.errors import BlobError
        from sidestream.store.records import Segment, unpack
        from sidestream.stream.parts import File

        info = await find(opened, id, may_be_latest=True)
        folder = OutputFolder(out) if out is not None else None
        code = exit_codes.OK
        for row in await opened.read(info.id):
            if row.kind != "file":
                continue
            try:
                found = {digest: await opened.blob(digest) for digest in row.blobs}
            except BlobError as error:
                click.echo(f"error: {error}", err=True)
                code = exit_codes.FAILED
                continue
            body = unpack(row, found.__getitem__).body
            for part in body.parts if isinstance(body, Segment) else ():
                if isinstance(part, File):
                    path = folder.save(part) if folder is not None else None
                    place = f" saved as {path}" if path else f" at {one_line(part.url, 400)}" if part.url else ""
                    write(sys.stdout, f"{formatting.file(part)}{place}\n")
        return code

    return _with(store, work)


@logs.command()
@click.argument("id")
@options.store_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(id: str, store: str | None, yes: bool) -> int:
    """Delete a conversation. Its files go with the next collect."""

    async def work(opened: "Store") -> int:
        from sidestream.cli.conversations import find

        info = await find(opened, id)
        if not yes and is_terminal(sys.stdin):
            click.confirm(f"delete {info.id} ({one_line(info.title, 60)})?", abort=True, err=True)
        await opened.delete(info.id)
        click.echo(f"{info.id} is deleted", err=True)
        return exit_codes.OK

    return _with(store, work)


@logs.command()
@options.store_option
@click.option("--repair", is_flag=True, help="Mend what can be mended. Let nobody else use the store meanwhile.")
def check(store: str | None, repair: bool) -> int:
    """Look for damage, and say what is lost by it."""

    async def work(opened: "Store") -> int:
        problems = await opened.check(repair=repair)
        for problem in problems:
            mended = " (mended)" if problem.is_repaired else ""
            write(sys.stdout, f"{problem.kind}: {one_line(problem.message, 1000)}{mended}\n")
        if not problems:
            click.echo("nothing is wrong", err=True)
        return exit_codes.FAILED if any(not problem.is_repaired for problem in problems) else exit_codes.OK

    return _with(store, work)


@logs.command()
@options.store_option
def collect(store: str | None) -> int:
    """Remove files that no conversation refers to."""

    async def work(opened: "Store") -> int:
        count = await opened.collect()
        click.echo(f"{count} file{'' if count == 1 else 's'} removed", err=True)
        return exit_codes.OK

    return _with(store, work)


def _with(where: str | None, work: "Callable[[Store], Coroutine[Any, Any, int]]") -> int:
    """Does something with the store and closes it."""
    from sidestream.cli.process import run_async
    from sidestream.store.opening import open_store

    async def opened() -> int:
        store = open_store(where)
        try:
            return await work(store)
        finally:
            await store.aclose()

    return run_async(opened())


async def _state(store: "Store", info: "ConversationInfo") -> str:
    """How a conversation stands, as far as its last record tells."""
    if info.last == "finish":
        from sidestream import jsontext

        for row in await store.read(info.id, info.records - 1):
            parts = jsontext.as_list(jsontext.as_object(jsontext.loads(row.body)).get("parts"))
            if any(jsontext.as_object(part).get("reason") == "error" for part in parts):
                return "failed"
    return OPENED.get(info.last, "open")


def _as_json(row: "Row") -> bytes:
    import msgspec

    from sidestream import jsontext

    told = {"seq": row.seq, "time": row.time, "run": row.run, "kind": row.kind, "blobs": list(row.blobs)}
    return jsontext.dumps({**told, "body": msgspec.Raw(row.body)}) + b"\n"


def _transcript(*, thinking: bool, verbose: bool) -> Any:
    from sidestream.cli.stdio import text_stream
    from sidestream.cli.terminal import Screen
    from sidestream.cli.transcript import Transcript

    out = text_stream(sys.stdout)
    return Transcript(Screen(out, out), thinking=thinking, verbose=verbose)


async def _print_transcript(store: "Store", rows: "list[Row]", *, thinking: bool, verbose: bool) -> None:
    from sidestream.cli.transcript import load_record

    transcript = _transcript(thinking=thinking, verbose=verbose)
    for row in rows:
        transcript.feed(await load_record(store, row))
    transcript.close()


async def _print_parts(store: "Store", rows: "list[Row]") -> None:
    from sidestream.cli.transcript import load_record
    from sidestream.store.log import stream_of
    from sidestream.stream.parts import encode_part

    for part in stream_of([await load_record(store, row) for row in rows]):
        write(sys.stdout.buffer, encode_part(part) + b"\n")
