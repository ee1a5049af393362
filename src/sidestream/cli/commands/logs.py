"""The `sidestream logs` commands, which manage logged conversations."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidestream.cli import exit_codes
from sidestream.cli.commands.logs_export import export
from sidestream.cli.display.screen import one_line, write
from sidestream.cli.inputs import options
from sidestream.cli.inputs.conversations import with_store
from sidestream.cli.stdio import is_terminal, prompt_argument

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sidestream.store.protocol import ConversationInfo, Store
    from sidestream.store.records import Record, Row


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="WORDS…")
@options.store_option
@click.option("-n", "limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of hits.")
@click.option("--json", "as_json", is_flag=True, help="Print each hit as a line of JSON.")
def search(words: tuple[str, ...], store: str | None, limit: int, as_json: bool) -> int:
    """Search the messages of all conversations, best matches first. Exits with code 1 if nothing is found.

    A message must contain all words. "Several words" in quotes are a phrase, and word* matches the start of a word.
    """

    async def work(opened: "Store") -> int:
        from sidestream import jsontext
        from sidestream.cli.chat.transcript import format_time
        from sidestream.cli.display.screen import has_colour, one_line, write
        from sidestream.store.log.search import MARK, search as search_store

        query = " ".join(f'"{word}"' if " " in word and '"' not in word else word for word in words)
        hits = await search_store(opened, query, limit)
        begin, end = ("\x1b[1m", "\x1b[0m") if has_colour(sys.stdout) else ("", "")
        for hit in hits:
            if as_json:
                fields = {"id": hit.conversation.id, "seq": hit.seq, "time": hit.time, "role": hit.role}
                write(sys.stdout.buffer, jsontext.dumps({**fields, "text": hit.text}) + b"\n")
                continue
            info = hit.conversation
            pieces = one_line(hit.text, 400).split(MARK)
            text = "".join(f"{begin}{piece}{end}" if at % 2 else piece for at, piece in enumerate(pieces))
            write(sys.stdout, f"{one_line(info.id)}  {format_time(hit.time)}  {hit.role}: {text}\n")
        if not hits and not as_json:
            click.echo("Nothing found.", err=True)
        return exit_codes.OK if hits else exit_codes.FAILED

    return with_store(store, work)


@click.command("on")
def switch_on() -> int:
    """Log prompts again."""
    from sidestream.cli import preferences

    preferences.change(log=True, knows_log=True)
    click.echo("Prompts are logged.", err=True)
    return exit_codes.OK


@click.command("off")
def switch_off() -> int:
    """Stop logging prompts. Existing logs stay. `--log` still logs a prompt, and -n turns off logging of a chat."""
    from sidestream.cli import preferences

    preferences.change(log=False, knows_log=True)
    click.echo("Prompts are no longer logged. Use sidestream logs expire AGE to delete old ones.", err=True)
    return exit_codes.OK


@click.command()
@options.store_option
def path(store: str | None) -> int:
    """Print where conversations are stored."""
    from sidestream.store.opening import default_location
    from sidestream.text.redaction import redact_url

    click.echo(redact_url(str(store or default_location())))
    return exit_codes.OK


class _Logs(click.Group):
    """The group, whose commands about costs and tests are imported when first used, because they load the providers."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "cost", "test", "what-if"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "test":
            from sidestream.cli.commands.logs_test import test

            return test
        if cmd_name not in ("cost", "what-if"):
            return super().get_command(ctx, cmd_name)
        from sidestream.cli.commands.logs_cost import cost, what_if

        return cost if cmd_name == "cost" else what_if


@click.group(cls=_Logs, invoke_without_command=True)
@click.pass_context
def logs(ctx: click.Context) -> Any:
    """List, search, show, export and resume logged conversations.

    ID may be a prefix of an id. show, export, resume and files default to the latest conversation; so does the ID -.
    """
    if ctx.invoked_subcommand is None:
        return ctx.invoke(list_conversations, store=None)
    return None


for command in (search, export, switch_on, switch_off, path):
    logs.add_command(command)


@logs.command("list")
@options.store_option
@click.option(
    "-n", "limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of conversations."
)
@click.option("-m", "--model", metavar="TEXT", help="List only conversations whose last model contains this text.")
@click.option("-q", "--query", metavar="TEXT", help="List only conversations with this text in a message.")
@click.option("--json", "as_json", is_flag=True, help="Print each conversation as a line of JSON.")
def list_conversations(
    store: str | None, limit: int = 20, model: str | None = None, query: str | None = None, as_json: bool = False
) -> int:
    """List conversations, most recently updated first."""

    async def work(opened: "Store") -> int:
        from sidestream import jsontext
        from sidestream.cli.chat.transcript import format_time
        from sidestream.cli.inputs.conversations import how_to_log
        from sidestream.errors import StoreError
        from sidestream.store.log.conversation import Conversation

        found = await _found(opened, limit, (model or "").lower(), query or "")
        for info in found:
            try:
                status = await Conversation(opened, info.id).status(info)
            except (StoreError, ValueError):
                status = "unreadable"  # `logs check` reports why.
            if as_json:
                fields = {name: getattr(info, name) for name in info.__struct_fields__}
                fields |= {"status": status, **await _origin(opened, info)}
                write(sys.stdout.buffer, jsontext.dumps(fields) + b"\n")
            else:
                about = f"{one_line(info.model, 40):<28}  {status:<10}  {one_line(info.title, 80)}"
                write(sys.stdout, f"{one_line(info.id):<18}  {format_time(info.updated)}  {about}".rstrip() + "\n")
        if not found and not as_json:
            is_filtered = model is not None or query is not None
            click.echo("No matches." if is_filtered else f"No conversations yet: {how_to_log()}.", err=True)
        return exit_codes.OK

    return with_store(store, work)


async def _origin(store: "Store", info: "ConversationInfo") -> dict[str, Any]:
    """Return the field `forked_from` of a conversation that was forked from another one."""
    from sidestream import jsontext
    from sidestream.store.records import FORKED

    forked = [row for row in await store.read(info.id) if row.kind == FORKED]
    return {"forked_from": jsontext.loads(forked[-1].body)} if forked else {}


async def _found(store: "Store", limit: int, model: str, query: str) -> "list[ConversationInfo]":
    """Return the latest conversations with this text in the name of their model and in a message."""
    found: list[ConversationInfo] = []
    before: float | None = None
    while len(found) < limit:
        page = await store.conversations(max(limit, 100) if model else limit, before, search=query)
        found += [info for info in page if model in info.model.lower()]
        if not page or not model or page[-1].updated == before:
            break
        before = page[-1].updated
    return found[:limit]


@logs.command()
@click.argument("id", required=False)
@options.store_option
@click.option("--json", "as_json", is_flag=True, help="Print each record as a line of JSON.")
@click.option("--parts", "as_parts", is_flag=True, help="Print each stream part as a line of JSON.")
@click.option("-r", "--response", is_flag=True, help="Print only the last answer.")
@click.option("-x", "--extract", is_flag=True, help="Print only the first fenced code block of the last answer.")
@click.option("--xl", "--extract-last", "extract_last", is_flag=True, help="Print only its last fenced code block.")
@options.view_options
def show(
    id: str | None,
    store: str | None,
    as_json: bool,
    as_parts: bool,
    response: bool,
    extract: bool,
    extract_last: bool,
    thinking: bool,
    verbose: bool,
    usage: bool,
    plain: bool,
) -> int:
    """Show a conversation."""
    from sidestream.cli.commands.prompt import place_of, print_code

    place = place_of(extract, extract_last)
    if (as_json or as_parts) and (response or place is not None):
        raise click.UsageError("--json and --parts print everything: leave out -r, -x and --xl")

    async def work(opened: "Store") -> int:
        from sidestream.cli.inputs.conversations import find_conversation

        info = await find_conversation(opened, id, default_to_latest=True)
        rows = await opened.read(info.id)
        if as_json:
            for row in rows:
                write(sys.stdout.buffer, _as_json(row))
            return exit_codes.OK
        records = await _readable(opened, rows)
        if as_parts:
            _print_parts(records)
        elif place is not None:
            print_code(_last_answer(records), place)
        elif response:
            write(sys.stdout, _last_answer(records).rstrip("\n") + "\n")
        else:
            transcript = _transcript(thinking=thinking, verbose=verbose, usage=usage)
            for record in records:
                transcript.feed(record)
            transcript.close()
        return exit_codes.OK if len(records) == len(rows) else exit_codes.FAILED

    return with_store(store, work)


@logs.command()
@click.argument("id")
@options.store_option
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="N", help="Start after this record.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a line of JSON.")
@options.view_options
def tail(
    id: str,
    store: str | None,
    after: int,
    as_json: bool,
    thinking: bool,
    verbose: bool,
    usage: bool,
    plain: bool,
) -> int:
    """Show a conversation and follow it until Ctrl-C."""

    async def work(opened: "Store") -> int:
        from sidestream.cli.inputs.conversations import find_conversation

        info = await find_conversation(opened, id)
        await print_rows(opened, opened.tail(info.id, after), as_json, thinking=thinking, verbose=verbose, usage=usage)
        return exit_codes.OK

    return with_store(store, work)


async def print_rows(store: "Store", rows: "AsyncGenerator[Row]", as_json: bool, **detail: bool) -> None:
    """Print the rows of a log as they come, as a transcript or as lines of JSON, and close their generator."""
    from contextlib import aclosing

    from sidestream.cli.chat.transcript import load_record

    transcript = _transcript(**detail)
    async with aclosing(rows):
        async for row in rows:
            if as_json:
                write(sys.stdout.buffer, _as_json(row))
            else:
                transcript.feed(await load_record(store, row))


@logs.command()
@click.argument("id", required=False)
@click.argument("words", metavar="[PROMPT]", nargs=-1)
@click.option(
    "-m", "--model", type=options.MODEL, metavar="MODEL", help="Model to use instead of the one that answered last."
)
@options.agent_options
@options.store_option
@options.json_option
@options.out_option
@options.thinking_option
@options.verbose_option
def resume(
    id: str | None,
    words: tuple[str, ...],
    model: str | None,
    store: str | None,
    as_json: bool,
    out: Path | None,
    thinking: str | int | None,
    verbose: bool,
    usage: bool,
    plain: bool,
    **agent: Any,
) -> int:
    """Resume a turn that is waiting for an approval, failed, cancelled or unfinished.

    If the last turn is complete, PROMPT is the next message.
    """
    from sidestream.cli import key_file
    from sidestream.cli.commands.resume import ResumeRequest, resume_conversation
    from sidestream.cli.display.view import ViewOptions

    key_file.load()
    view_options = ViewOptions(
        as_json=as_json,
        out=out,
        thinking=thinking not in (None, "off"),
        verbose=verbose,
        usage=usage,
        is_plain=plain,
    )
    request = ResumeRequest(
        id=id, prompt=prompt_argument(words), model=model, store=store, agent={**agent, "thinking": thinking}
    )
    return with_store(store, lambda opened: resume_conversation(opened, request, view_options))


@logs.command()
@click.argument("id")
@options.store_option
def discard(id: str, store: str | None) -> int:
    """Discard the last turn, unless it is complete. The conversation continues from before it."""

    async def work(opened: "Store") -> int:
        from sidestream.cli.inputs.conversations import find_conversation
        from sidestream.store.log.conversation import Conversation

        info = await find_conversation(opened, id)
        conversation = Conversation(opened, info.id)
        if not await conversation.discard():
            raise click.UsageError(f"the last turn of {info.id} is complete: there is nothing to discard")
        click.echo(f"The last turn of {info.id} was discarded.", err=True)
        return exit_codes.OK

    return with_store(store, work)


@logs.command()
@click.argument("id", required=False)
@options.store_option
@options.out_option
def files(id: str | None, store: str | None, out: Path | None) -> int:
    """List the files that tools generated in a conversation. With --out, save them."""

    async def work(opened: "Store") -> int:
        from sidestream.cli.display import formatting
        from sidestream.cli.display.output_folder import OutputFolder
        from sidestream.cli.inputs.conversations import find_conversation
        from sidestream.errors import BlobError
        from sidestream.parts import File
        from sidestream.store.records import Segment, unpack

        info = await find_conversation(opened, id, default_to_latest=True)
        folder = OutputFolder(out) if out is not None else None
        code = exit_codes.OK
        for row in await opened.read(info.id):
            if row.kind != "file":
                continue
            try:
                blobs = {digest: await opened.blob(digest) for digest in row.blobs}
            except BlobError as error:
                click.echo(f"error: {error}", err=True)
                code = exit_codes.FAILED
                continue
            body = unpack(row, blobs.__getitem__).body
            for part in body.parts if isinstance(body, Segment) else ():
                if isinstance(part, File) and not formatting.is_link(part):
                    path = folder.save(part) if folder is not None else None
                    place = f" saved as {path}" if path else f" at {one_line(part.url, 400)}" if part.url else ""
                    write(sys.stdout, f"{formatting.file(part)}{place}\n")
        return code

    return with_store(store, work)


@logs.command()
@click.argument("id")
@options.store_option
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
def delete(id: str, store: str | None, yes: bool) -> int:
    """Delete a conversation, with its branches and the files that only they refer to."""

    async def work(opened: "Store") -> int:
        from sidestream.cli.inputs.conversations import find_conversation
        from sidestream.store.expiry import branches_of

        info = await find_conversation(opened, id)
        branches = await branches_of(opened, info.id)
        others = f" and {len(branches) - 1} more of its branches" if len(branches) > 1 else ""
        if not yes and is_terminal(sys.stdin):
            click.confirm(f"Delete {info.id} ({one_line(info.title, 60)}){others}?", abort=True, err=True)
        for branch in branches:
            await opened.delete(branch.id)
        click.echo(f"{info.id}{others} deleted", err=True)
        return exit_codes.OK

    return with_store(store, work)


@logs.command()
@click.argument("age", metavar="AGE", callback=options.duration)
@options.store_option
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
@click.option("-n", "--dry-run", is_flag=True, help="List what would be deleted, and delete nothing.")
def expire(age: float, store: str | None, yes: bool, dry_run: bool) -> int:
    """Delete conversations that have not changed for AGE, e.g. 30d, 12h or 90m, with their files.

    Do not use it while a server uses the same store, because that server's runs would not be stopped. Use
    `sidestream serve --expire-after` instead.
    """

    async def work(opened: "Store") -> int:
        import time

        from sidestream.cli.chat.transcript import format_time
        from sidestream.store.expiry import delete_all, expired_chats

        before = time.time() - age
        found = [branch async for chat in expired_chats(opened, before) for branch in chat]
        if dry_run:
            for info in found:
                write(sys.stdout, f"{one_line(info.id):<18}  {format_time(info.updated)}  {one_line(info.title, 80)}\n")
        elif found:
            if not yes and is_terminal(sys.stdin):
                click.confirm(f"Delete {_conversations(len(found))}?", abort=True, err=True)
            await delete_all(opened, [info.id for info in found], before)
        click.echo(f"{_conversations(len(found))} {'would be ' if dry_run else ''}deleted", err=True)
        return exit_codes.OK

    return with_store(store, work)


def _conversations(count: int) -> str:
    return f"{count} conversation{'' if count == 1 else 's'}"


@logs.command()
@options.store_option
@click.option(
    "--repair", is_flag=True, help="Repair what can be repaired. First stop everything else that uses the store."
)
def check(store: str | None, repair: bool) -> int:
    """Check the store for damage and lost data."""

    async def work(opened: "Store") -> int:
        problems = await opened.check(repair=repair)
        for problem in problems:
            repaired = " (repaired)" if problem.is_repaired else ""
            write(sys.stdout, f"{problem.kind}: {one_line(problem.message, 1000)}{repaired}\n")
        if not problems:
            click.echo("No problems found.", err=True)
        return exit_codes.FAILED if any(not problem.is_repaired for problem in problems) else exit_codes.OK

    return with_store(store, work)


@logs.command()
@options.store_option
def collect(store: str | None) -> int:
    """Remove files that no conversation references."""

    async def work(opened: "Store") -> int:
        count = await opened.collect()
        click.echo(f"{count} file{'' if count == 1 else 's'} removed", err=True)
        return exit_codes.OK

    return with_store(store, work)


@logs.command()
@options.store_option
@click.option(
    "--backup", type=click.Path(dir_okay=False, path_type=Path), help="Write a backup to this new file first."
)
@click.option("--no-backup", is_flag=True, help="Migrate without a backup, because you have made one.")
def migrate(store: str | None, backup: Path | None, no_backup: bool) -> int:
    """Migrate a PostgreSQL store that an older version has written.

    First stop the older version's servers and workers. You can restore the backup with psql. A SQLite file is copied
    and migrated automatically when it is used.
    """
    if (backup is None) is not no_backup:
        raise click.UsageError("choose --backup FILE or --no-backup")
    if backup is not None and backup.exists():
        raise click.UsageError(f"{backup} already exists; choose another name")

    async def work(opened: "Store") -> int:
        from sidestream.store.sqlite.store import SqliteStore

        if isinstance(opened, SqliteStore):
            click.echo("Nothing to do: a SQLite file is copied and migrated when it is used.", err=True)
            return exit_codes.OK
        from sidestream.store.postgres.store import PostgresStore

        assert isinstance(opened, PostgresStore)  # There are only two kinds of store.
        before, current = await opened.migrate(backup), len(opened.migrations)
        if before in (0, current):
            click.echo("Nothing to do: the store is new or up to date.", err=True)
        else:
            kept = f"; the backup is {backup}" if backup is not None else ""
            click.echo(f"Migrated from version {before} to {current}{kept}.", err=True)
        return exit_codes.OK

    return with_store(store, work)


def _as_json(row: "Row") -> bytes:
    import msgspec

    from sidestream import jsontext

    fields = {"seq": row.seq, "time": row.time, "run": row.run, "kind": row.kind, "blobs": list(row.blobs)}
    return jsontext.dumps({**fields, "body": msgspec.Raw(row.body)}) + b"\n"


def _transcript(*, thinking: bool, verbose: bool, usage: bool) -> Any:
    from sidestream.cli.chat.transcript import Transcript
    from sidestream.cli.display.screen import Screen
    from sidestream.cli.stdio import text_stream

    out = text_stream(sys.stdout)
    return Transcript(Screen(out, out), thinking=thinking, verbose=verbose, usage=usage)


async def _readable(store: "Store", rows: "list[Row]") -> "list[Record]":
    """Load the records, reporting damaged ones."""
    from sidestream.cli.chat.transcript import load_record
    from sidestream.errors import StoreError

    records: list[Record] = []
    for row in rows:
        try:
            records.append(await load_record(store, row))
        except StoreError as error:
            click.echo(f"error: {one_line(str(error), 400)}", err=True)
    return records


def _last_answer(records: "list[Record]") -> str:
    from sidestream.store.log.fold import fold

    answers = [message.text for message in fold(records).messages if message.role == "model" and message.text]
    return answers[-1] if answers else ""


def _print_parts(records: "list[Record]") -> None:
    from sidestream.store.log.fold import stream_of

    for part in stream_of(records):
        write(sys.stdout.buffer, part.to_json().encode() + b"\n")
