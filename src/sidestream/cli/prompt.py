"""`sidestream "…"`: one turn."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidestream.cli import key_file, options
from sidestream.cli.stdio import argument, is_terminal, question

if TYPE_CHECKING:
    from sidestream.cli.agent_factory import AgentFactory
    from sidestream.cli.views import ViewOptions
    from sidestream.messages.message import MessagePart


@click.command("prompt")
@click.argument("words", metavar="PROMPT", nargs=-1)
@options.model_option
@options.agent_options
@options.attach_option
@click.option("--schema", metavar="FILE", help="The JSON schema of the answer: a file, or the JSON itself.")
@click.option("--no-stream", is_flag=True, help="Ask for the answer as a whole.")
@click.option("--log", is_flag=True, help="Write the run down as a conversation.")
@click.option("-c", "--continue", "goes_on", is_flag=True, help="Go on with the last conversation that was logged.")
@options.store_option
@options.json_option
@options.out_option
@options.view_options
def prompt(
    words: tuple[str, ...],
    model: str,
    attachments: tuple[str, ...],
    schema: str | None,
    no_stream: bool,
    log: bool,
    goes_on: bool,
    as_json: bool,
    out: Path | None,
    thinking: bool,
    verbose: bool,
    **agent: Any,
) -> int:
    """Send a prompt. This is what happens without a command's name.

    PROMPT may be `-` for standard input. What is piped in besides a prompt is added to its end.
    """
    from sidestream.cli.agent_factory import AgentConfig, AgentFactory
    from sidestream.cli.attachments import attached
    from sidestream.cli.process import run_async
    from sidestream.cli.views import ViewOptions

    given = argument(words)
    key_file.load()
    agents = AgentFactory(AgentConfig(model=model, output_type=_schema(schema), **agent))
    keeps_model = goes_on and not options.is_model_chosen()
    if not keeps_model:
        agents.agent()  # What cannot be made is said before anything is read.
    parts = attached(attachments)
    asked = question(given, is_stdin_free="-" not in attachments)
    look = ViewOptions(as_json=as_json, out=out, thinking=thinking, verbose=verbose)
    ways = {"no_stream": no_stream, "log": log or goes_on, "goes_on": goes_on, "keeps_model": keeps_model}
    return run_async(_ask(agents, look, [asked, *parts], **ways))


async def _ask(
    agents: "AgentFactory",
    look: "ViewOptions",
    message: "list[str | MessagePart]",
    *,
    no_stream: bool,
    log: bool,
    goes_on: bool,
    keeps_model: bool,
) -> int:
    from sidestream.agent.chat import Chat
    from sidestream.cli.approvals import ApprovalPrompt
    from sidestream.cli.conversations import latest
    from sidestream.cli.line_reader import TerminalReader
    from sidestream.cli.session import ChatSession, new_id
    from sidestream.cli.views import screen_and_view
    from sidestream.store.opening import open_store

    screen, view = screen_and_view(look, asks=True)
    read = TerminalReader(None).answer if is_terminal(sys.stdin) else None
    store = open_store(agents.plan.store) if log else None
    try:
        known = await latest(store) if store is not None and goes_on else None
        if known is not None and known.model and keeps_model:
            agents.use_model(known.model)
        chat = Chat(agents.agent(), store=store, id=None if store is None else known.id if known else new_id())
        asker = ApprovalPrompt(screen.line, read, agents.plan.approve)
        session = ChatSession(chat, view, screen.line, asker, is_stored=store is not None, options=agents.plan.words)
        await session.open(is_new=known is None)
        if session.is_stored:
            screen.line(f"conversation {chat.id}", "dim")
        await session.turn(message, stream=not no_stream)
        return session.code
    finally:
        await agents.aclose()
        if store is not None:
            await store.aclose()


def _schema(text: str | None) -> Any:
    """The schema in a file, or in the option itself."""
    if text is None:
        return None
    try:
        given = text if text.lstrip().startswith("{") else Path(text).expanduser().read_text("utf-8-sig")
        schema = json.loads(given)
    except OSError as error:
        raise click.UsageError(f"--schema: {text} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise click.UsageError(f"--schema: this is no JSON: {error}") from None
    if not isinstance(schema, dict):
        raise click.UsageError("--schema: a JSON schema is an object")
    return schema  # pyright: ignore[reportUnknownVariableType]
