"""The `sidestream prompt` command, which sends one prompt."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sidestream.cli.inputs import options

if TYPE_CHECKING:
    from sidestream.cli.display.open_view import ViewOptions
    from sidestream.cli.inputs.agent_factory import AgentFactory
    from sidestream.cli.inputs.named_files import Template
    from sidestream.messages.message import MessagePart
    from sidestream.store.protocol import ConversationInfo, Store


class LogChoice(NamedTuple):
    """Whether and where a prompt is logged."""

    is_logged: bool
    is_required: bool
    """Whether the user requested logging, so that a failed store fails the command."""
    is_latest: bool
    id: str | None

    @property
    def continues(self) -> bool:
        """Whether the prompt continues a conversation."""
        return self.is_latest or self.id is not None


@click.command("prompt")
@click.argument("words", metavar="PROMPT", nargs=-1)
@options.model_option
@options.agent_options
@options.attach_option
@click.option(
    "-f",
    "--fragment",
    "fragments",
    multiple=True,
    metavar="FILE",
    help="Put the text of a file, a URL, or - for standard input before the prompt. Can be repeated.",
)
@click.option("-t", "--template", metavar="NAME", help="Use a stored prompt and its options.")
@click.option(
    "-p", "--param", "params", nargs=2, multiple=True, metavar="NAME VALUE", help="Set a variable of the template."
)
@click.option("--save", metavar="NAME", help="Store the prompt and its options as a template, and send nothing.")
@click.option(
    "--schema",
    metavar="SCHEMA",
    help="Schema of the answer: JSON, a file, a stored one, MODULE:CLASS, or fields as 'name, age int: in years'.",
)
@click.option("--no-stream", is_flag=True, help="Do not stream the answer.")
@click.option("-c", "--continue", "is_latest", is_flag=True, help="Continue the latest logged conversation.")
@click.option("--cid", metavar="ID", help="Continue the logged conversation with this id or prefix.")
@click.option("-n", "--no-log", is_flag=True, help="Do not log the prompt and its answer.")
@click.option("--log", is_flag=True, help="Log the prompt even if logging is off, and fail if that fails.")
@options.store_option
@options.json_option
@options.out_option
@options.thinking_option
@options.verbose_option
def prompt(
    words: tuple[str, ...],
    model: str | None,
    attachments: tuple[str, ...],
    fragments: tuple[str, ...],
    template: str | None,
    params: tuple[tuple[str, str], ...],
    save: str | None,
    schema: str | None,
    no_stream: bool,
    is_latest: bool,
    cid: str | None,
    no_log: bool,
    log: bool,
    as_json: bool,
    out: Path | None,
    thinking: str | int | None,
    verbose: bool,
    usage: bool,
    plain: bool,
    **agent: Any,
) -> int:
    """Send a prompt to a model. This is the default command.

    If PROMPT is -, it is read from standard input. Otherwise, piped input is appended to it.
    """
    from sidestream.cli import key_file
    from sidestream.cli.display.open_view import ViewOptions
    from sidestream.cli.inputs.agent_factory import AgentConfig, loaded_factory
    from sidestream.cli.inputs.attachments import load_attachments
    from sidestream.cli.inputs.default_model import chosen_by_default
    from sidestream.cli.inputs.fragments import load_fragments
    from sidestream.cli.inputs.schema_syntax import read_schema
    from sidestream.cli.interrupts import run_async
    from sidestream.cli.stdio import prompt_argument, read_prompt

    if params and template is None:
        raise click.UsageError("-p sets a variable of a template: name the template with -t")
    argument = prompt_argument(words)
    key_file.load()
    stored = _template(template)
    if save is not None:
        given = {**agent, "model": model, "thinking": thinking, "schema": schema, "fragments": fragments}
        return _save(save, argument, given, stored)
    has_system = agent["system"] is not None
    agent = _with_template(agent, stored)
    thinking = thinking if thinking is not None else options.thinking_level(_text(stored.thinking))
    schema = schema if schema is not None else stored.schema
    logging = _log_choice(agent["store"], no_log=no_log, log=log, is_latest=is_latest, id=cid)
    keeps_model = logging.continues and model is None
    chosen = chosen_by_default(model or stored.model, is_quiet=as_json or keeps_model or agent["agent"] is not None)
    output_type = None if schema is None else read_schema(schema)
    agents = loaded_factory(AgentConfig(model=chosen, output_type=output_type, thinking=thinking, **agent))
    if not keeps_model:
        agents.create()  # Report configuration errors before reading any input.
    if [*attachments, *fragments].count("-") > 1:
        raise click.UsageError("standard input can be attached only once")
    parts = load_attachments(attachments, runs_code=agents.runs_code)
    texts = load_fragments((*stored.fragments, *fragments))
    is_stdin_free = "-" not in (*attachments, *fragments)
    has_text = bool(stored.prompt or texts)
    text = read_prompt(argument, is_stdin_free=is_stdin_free, is_required=not has_text)
    filled = stored.filled(dict(params), text)
    if filled.system is not None and not has_system:
        agents.use_system(filled.system)
    text = "\n\n".join(filter(None, (*texts, filled.prompt)))
    view_options = ViewOptions(
        as_json=as_json,
        out=out,
        thinking=thinking not in (None, "off"),
        verbose=verbose,
        usage=usage,
        is_plain=plain,
    )
    return run_async(_send(agents, view_options, [text, *parts], logging, keeps_model=keeps_model, no_stream=no_stream))


async def _send(
    agents: "AgentFactory",
    view_options: "ViewOptions",
    message: "list[str | MessagePart]",
    logging: LogChoice,
    *,
    keeps_model: bool,
    no_stream: bool,
) -> int:
    from sidestream.cli.chat.line_reader import TerminalReader
    from sidestream.cli.chat.session import create_session, new_id
    from sidestream.cli.display.open_view import screen_and_view
    from sidestream.cli.stdio import is_terminal
    from sidestream.store.opening import open_store

    screen, view = screen_and_view(view_options, prompts_for_approval=True)
    read_answer = TerminalReader(None).answer if is_terminal(sys.stdin) else None
    store = open_store(agents.config.store) if logging.is_logged else None
    try:
        existing = await _existing(store, logging)
        if existing is not None and existing.model and keeps_model:
            agents.use_model(existing.model)
        id = None if store is None else existing.id if existing is not None else new_id()
        await agents.start_servers()
        session = create_session(agents, store, id, screen, view, read_answer, must_log=logging.is_required)
        await session.open(is_new=existing is None)
        if session.is_stored and (logging.is_required or view_options.verbose):
            screen.line(f"conversation {id}", "dim")
        if await session.settle(read_answer) and session.outcome == "complete":
            await session.turn(message, stream=not no_stream)
        return session.exit_code
    finally:
        await agents.aclose()
        if store is not None:
            await store.aclose()


async def _existing(store: "Store | None", logging: LogChoice) -> "ConversationInfo | None":
    from sidestream.cli.inputs.conversations import find_conversation, latest_conversation

    if store is None or not logging.continues:
        return None
    return await (latest_conversation(store) if logging.id is None else find_conversation(store, logging.id))


def _log_choice(store: str | None, *, no_log: bool, log: bool, is_latest: bool, id: str | None) -> LogChoice:
    """Decide whether to log the prompt. Prints a notice the first time prompts are logged."""
    from contextlib import suppress

    from sidestream.cli import preferences
    from sidestream.errors import ConfigurationError
    from sidestream.store.opening import default_location
    from sidestream.text.redaction import redact_url

    if id is not None and is_latest:
        raise click.UsageError("--cid and --continue both select a conversation: use one of them")
    if no_log and (log or is_latest or id is not None):
        raise click.UsageError("--no-log cannot be combined with --log, --continue or --cid")
    is_required = log or is_latest or id is not None
    known = preferences.load()
    is_logged = not no_log and (is_required or known.log)
    if is_logged and not is_required and not known.knows_log:
        where = redact_url(str(store or default_location()))
        click.echo(
            f"note: prompts are logged in {where}; use -n to skip one, or sidestream logs off to stop logging", err=True
        )
        with suppress(ConfigurationError):  # Then the notice is printed again next time.
            preferences.change(knows_log=True)
    return LogChoice(is_logged, is_required, is_latest, id)


def _template(name: str | None) -> "Template":
    from sidestream.cli.inputs import named_files

    return named_files.Template() if name is None else named_files.load(name)


def _text(value: str | int | None) -> str | None:
    return None if value is None else str(value)


def _with_template(agent: dict[str, Any], template: "Template") -> dict[str, Any]:
    """Merge the agent's options with the template's, which they override."""
    options = tuple((name, _option_text(value)) for name, value in template.options.items())
    return {
        **agent,
        "system": agent["system"] if agent["system"] is not None else template.system,
        "tools": (*template.tools, *agent["tools"]),
        "functions": (*template.functions, *agent["functions"]),
        "options": (*options, *agent["options"]),
    }


def _option_text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _save(name: str, prompt: str, given: dict[str, Any], base: "Template") -> int:
    from msgspec.structs import replace

    from sidestream.cli import exit_codes
    from sidestream.cli.inputs import named_files

    options = base.options | dict(given["options"])
    lists = {field: [*getattr(base, field), *given[field]] for field in ("tools", "functions", "fragments")}
    texts = {field: given[field] for field in ("system", "model", "schema", "thinking") if given[field] is not None}
    template = replace(base, prompt=prompt or base.prompt, options=options, **lists, **texts)
    if template == named_files.Template():
        raise click.UsageError("there is nothing to save: give a prompt, a system prompt or options")
    file = named_files.save(name, template)
    click.echo(f"Saved as {file}. Use it with: sidestream -t {name}", err=True)
    return exit_codes.OK
