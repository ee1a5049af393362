"""The `sidestream logs` commands `search`, `on`, `off` and `path`."""

import sys
from typing import TYPE_CHECKING

import click

from sidestream.cli import exit_codes
from sidestream.cli.inputs import options
from sidestream.cli.inputs.conversations import with_store

if TYPE_CHECKING:
    from sidestream.store.protocol import Store


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
