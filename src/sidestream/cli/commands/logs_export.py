"""`sidestream logs export`: a conversation as Markdown, as JSON, or as a recording."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidestream.cli import exit_codes
from sidestream.cli.inputs import options
from sidestream.cli.inputs.stores import with_store

if TYPE_CHECKING:
    from sidestream.store.protocol import ConversationInfo, Store
    from sidestream.store.records import Record


@click.command()
@click.argument("id", required=False)
@click.option(
    "-f",
    "--format",
    "kind",
    type=click.Choice(["markdown", "json", "recording"]),
    default="markdown",
    show_default=True,
    help="Markdown to read, the messages as JSON, or a recording, which sidestream replay and tests play.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this new file.")
@options.store_option
def export(id: str | None, kind: str, output: Path | None, store: str | None) -> int:
    """Export a conversation. ID defaults to the latest one."""
    if output is not None and output.exists():
        raise click.UsageError(f"{output} exists: choose another name")

    async def work(opened: "Store") -> int:
        from sidestream.cli.inputs.conversations import find_conversation
        from sidestream.store.log.conversation import Conversation

        info = await find_conversation(opened, id, default_to_latest=True)
        records = await Conversation(opened, info.id).records()
        _write(EXPORTS[kind](info, records), output)
        if output is not None:
            click.echo(f"{info.id} exported to {output}", err=True)
        return exit_codes.OK

    return with_store(store, work)


def _write(text: str, output: Path | None) -> None:
    from sidestream.cli.display.screen import write
    from sidestream.cli.stdio import text_stream

    if output is None:
        write(text_stream(sys.stdout), text)
    else:
        output.write_text(text, "utf-8", errors="replace")


def _as_json(info: "ConversationInfo", records: "list[Record]") -> str:
    from sidestream import jsontext
    from sidestream.messages.message import messages_to_json
    from sidestream.store.log.fold import fold

    about: dict[str, Any] = {name: getattr(info, name) for name in ("id", "title", "model", "created", "updated")}
    messages = jsontext.loads(messages_to_json(fold(records).messages))
    return jsontext.dumps({**about, "messages": messages}).decode("utf-8", "replace") + "\n"


def _as_markdown(info: "ConversationInfo", records: "list[Record]") -> str:
    from sidestream.cli.commands.logs_markdown import to_markdown

    return to_markdown(info, records)


def _as_recording(info: "ConversationInfo", records: "list[Record]") -> str:
    from sidestream.cli.commands.logs_recording import to_recording

    return to_recording(info, records).to_json()


EXPORTS: "dict[str, Callable[[ConversationInfo, list[Record]], str]]" = {
    "markdown": _as_markdown,
    "json": _as_json,
    "recording": _as_recording,
}
"""Format → what makes the text of it."""
