"""`sidestream "…"`: sends one prompt."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidestream.cli import key_file, options
from sidestream.cli.stdio import is_terminal, prompt_argument, read_prompt

if TYPE_CHECKING:
    from sidestream.cli.agent_factory import AgentFactory
    from sidestream.cli.views import ViewOptions
    from sidestream.messages.message import MessagePart


@click.command("prompt")
@click.argument("words", metavar="PROMPT", nargs=-1)
@options.model_option
@options.agent_options
@options.attach_option
@click.option("--schema", metavar="FILE", help="JSON schema of the answer: a file, or inline JSON.")
@click.option("--no-stream", is_flag=True, help="Do not stream the answer.")
@click.option("--log", is_flag=True, help="Log the run as a conversation.")
@click.option("-c", "--continue", "is_continued", is_flag=True, help="Continue the latest logged conversation.")
@options.store_option
@options.json_option
@options.out_option
@options.thinking_option
@options.verbose_option
def prompt(
    words: tuple[str, ...],
    model: str,
    attachments: tuple[str, ...],
    schema: str | None,
    no_stream: bool,
    log: bool,
    is_continued: bool,
    as_json: bool,
    out: Path | None,
    thinking: str | int | None,
    verbose: bool,
    usage: bool,
    **agent: Any,
) -> int:
    """Send a prompt to a model. This is the default command.

    If PROMPT is -, it is read from standard input. Otherwise, piped input is appended to it.
    """
    from sidestream.cli.agent_factory import AgentConfig, loaded_factory
    from sidestream.cli.attachments import load_attachments
    from sidestream.cli.process import run_async
    from sidestream.cli.views import ViewOptions

    argument = prompt_argument(words)
    key_file.load()
    agents = loaded_factory(AgentConfig(model=model, output_type=_schema(schema), thinking=thinking, **agent))
    keeps_model = is_continued and not options.is_model_explicit()
    if not keeps_model:
        agents.create()  # Reports configuration errors before any input is read.
    parts = load_attachments(attachments)
    text = read_prompt(argument, is_stdin_free="-" not in attachments)
    view_options = ViewOptions(
        as_json=as_json, out=out, thinking=thinking not in (None, "off"), verbose=verbose, usage=usage
    )
    flags = {
        "no_stream": no_stream,
        "log": log or is_continued,
        "is_continued": is_continued,
        "keeps_model": keeps_model,
    }
    return run_async(_send(agents, view_options, [text, *parts], **flags))


async def _send(
    agents: "AgentFactory",
    view_options: "ViewOptions",
    message: "list[str | MessagePart]",
    *,
    no_stream: bool,
    log: bool,
    is_continued: bool,
    keeps_model: bool,
) -> int:
    from sidestream.cli.conversations import latest_conversation
    from sidestream.cli.line_reader import TerminalReader
    from sidestream.cli.session import create_session, new_id
    from sidestream.cli.views import screen_and_view
    from sidestream.store.opening import open_store

    screen, view = screen_and_view(view_options, prompts_for_approval=True)
    read_answer = TerminalReader(None).answer if is_terminal(sys.stdin) else None
    store = open_store(agents.config.store) if log else None
    try:
        existing = await latest_conversation(store) if store is not None and is_continued else None
        if existing is not None and existing.model and keeps_model:
            agents.use_model(existing.model)
        id = None if store is None else existing.id if existing is not None else new_id()
        session = create_session(agents, store, id, screen, view, read_answer)
        await session.open(is_new=existing is None)
        if session.is_stored:
            screen.line(f"conversation {id}", "dim")
        if await session.settle(read_answer) and session.outcome == "complete":
            await session.turn(message, stream=not no_stream)
        return session.exit_code
    finally:
        await agents.aclose()
        if store is not None:
            await store.aclose()


def _schema(text: str | None) -> Any:
    """The schema, read from a file or given inline."""
    if text is None:
        return None
    try:
        source = text if text.lstrip().startswith("{") else Path(text).expanduser().read_text("utf-8-sig")
        schema = json.loads(source)
    except OSError as error:
        raise click.UsageError(f"--schema: cannot read {text}: {error.strerror}") from None
    except ValueError as error:
        raise click.UsageError(f"--schema: invalid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise click.UsageError("--schema: must be a JSON object")
    return schema  # pyright: ignore[reportUnknownVariableType]
