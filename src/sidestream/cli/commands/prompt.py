"""The `sidestream prompt` command, which sends one prompt."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sidestream.cli.inputs import options

if TYPE_CHECKING:
    from sidestream.agent.chat import Chat
    from sidestream.cli.display.formatting import Place
    from sidestream.cli.display.screen import Screen
    from sidestream.cli.display.view import KeptView, ViewOptions
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
@options.query_option
@options.agent_options
@options.attach_option
@options.template_options
@click.option("--save", metavar="NAME", help="Store the prompt and its options as a template, and send nothing.")
@click.option(
    "--schema",
    metavar="SCHEMA",
    help="Schema of the answer: JSON, a file, a stored one, MODULE:CLASS, or fields as 'name, age int: in years'.",
)
@click.option(
    "--schema-multi",
    metavar="SCHEMA",
    help="Schema of each entry in a list of answers, written as for --schema. The list is the field items.",
)
@click.option("-x", "--extract", is_flag=True, help="Print only the first fenced code block of the answer.")
@click.option("--xl", "--extract-last", "extract_last", is_flag=True, help="Print only the last fenced code block.")
@click.option("--no-stream", is_flag=True, help="Do not stream the answer.")
@click.option("--check", is_flag=True, help="Fetch the cited pages, and show what each citation proves.")
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
    queries: tuple[str, ...],
    attachments: tuple[str, ...],
    fragments: tuple[str, ...],
    system_fragments: tuple[str, ...],
    template: str | None,
    params: tuple[tuple[str, str], ...],
    save: str | None,
    schema: str | None,
    schema_multi: str | None,
    extract: bool,
    extract_last: bool,
    no_stream: bool,
    check: bool,
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
    from sidestream.cli.display.view import ViewOptions
    from sidestream.cli.inputs.agent_factory import AgentConfig, loaded_factory
    from sidestream.cli.inputs.attachments import load_attachments
    from sidestream.cli.inputs.default_model import chosen_by_default, matching_model
    from sidestream.cli.inputs.fragments import load_fragments
    from sidestream.cli.inputs.schema_syntax import list_of, read_schema
    from sidestream.cli.interrupts import run_async
    from sidestream.cli.stdio import prompt_argument, read_prompt

    if params and template is None:
        raise click.UsageError("-p sets a variable of a template: name the template with -t")
    if schema is not None and schema_multi is not None:
        raise click.UsageError("--schema and --schema-multi both set the schema of the answer: use one of them")
    if as_json and (extract or extract_last):
        raise click.UsageError("--json prints every part: leave out -x and --xl")
    argument = prompt_argument(words)
    key_file.load()
    stored = load_template(template)
    if queries:
        model = matching_model(queries)
    if save is not None:
        if schema_multi is not None:
            raise click.UsageError("--save stores a --schema: name --schema-multi when you use the template")
        given = {**agent, "model": model, "thinking": thinking, "schema": schema, "fragments": fragments}
        given["system_fragments"] = system_fragments
        return _save(save, argument, given, stored)
    has_system = agent["system"] is not None
    agent = with_template(agent, stored)
    thinking = thinking if thinking is not None else thinking_of(stored)
    schema = schema if schema is not None else stored.schema
    logging = _log_choice(agent["store"], no_log=no_log, log=log, is_latest=is_latest, id=cid)
    keeps_model = logging.continues and model is None
    chosen = chosen_by_default(model or stored.model, is_quiet=as_json or keeps_model or agent["agent"] is not None)
    output_type = None if schema is None else read_schema(schema)
    if schema_multi is not None:
        output_type = list_of(read_schema(schema_multi))
    agents = loaded_factory(AgentConfig(model=chosen, output_type=output_type, thinking=thinking, **agent))
    if not keeps_model:
        agents.create()  # Report configuration errors before reading any input.
    if [*attachments, *fragments, *system_fragments].count("-") > 1:
        raise click.UsageError("standard input can be attached only once")
    parts = load_attachments(attachments, runs_code=agents.runs_code)
    texts = load_fragments((*stored.fragments, *fragments))
    system_texts = load_fragments((*stored.system_fragments, *system_fragments))
    is_stdin_free = "-" not in (*attachments, *fragments, *system_fragments)
    has_text = bool(stored.prompt or texts)
    text = read_prompt(argument, is_stdin_free=is_stdin_free, is_required=not has_text)
    filled = stored.filled(dict(params), text)
    use_system(agents, system_texts, None if has_system else filled.system)
    text = "\n\n".join(filter(None, (*texts, filled.prompt)))
    view_options = ViewOptions(
        as_json=as_json,
        out=out,
        thinking=thinking not in (None, "off"),
        verbose=verbose,
        usage=usage,
        is_plain=plain,
    )
    sending = Sending(
        keeps_model=keeps_model, streams=not no_stream, extracts=place_of(extract, extract_last), checks=check
    )
    return run_async(_send(agents, view_options, [text, *parts], logging, sending))


class Sending(NamedTuple):
    """How a prompt is sent, and what of its answer is printed."""

    keeps_model: bool
    """Whether a continued conversation keeps its model."""
    streams: bool
    extracts: "Place | None"
    """Code block to print. None means the whole answer."""
    checks: bool = False
    """Whether to fetch cited pages and compare them with the answer."""


def place_of(first: bool, last: bool) -> "Place | None":
    """Return which code block `-x` or `--xl` selects. Raises UsageError for both."""
    if first and last:
        raise click.UsageError("-x prints the first code block and --xl the last: use one of them")
    return "first" if first else "last" if last else None


async def _send(
    agents: "AgentFactory",
    view_options: "ViewOptions",
    message: "list[str | MessagePart]",
    logging: LogChoice,
    sending: Sending,
) -> int:
    from io import StringIO

    from sidestream.cli.chat.line_reader import TerminalReader
    from sidestream.cli.chat.session import create_session, new_id
    from sidestream.cli.display.view import KeptView, screen_and_view
    from sidestream.cli.stdio import is_terminal
    from sidestream.store.opening import open_store

    answer = StringIO() if sending.extracts is not None else None
    screen, view = screen_and_view(view_options, prompts_for_approval=True, answer=answer)
    kept = view = KeptView(view) if sending.checks else view
    read_answer = TerminalReader(None).answer if is_terminal(sys.stdin) else None
    store = open_store(agents.config.store) if logging.is_logged else None
    try:
        existing = await _existing(store, logging)
        if existing is not None and existing.model and sending.keeps_model:
            agents.use_model(existing.model)
        id = None if store is None else existing.id if existing is not None else new_id()
        session = create_session(agents, store, id, screen, view, read_answer, must_log=logging.is_required)
        await session.open(is_new=existing is None)
        if session.is_stored and (logging.is_required or view_options.verbose):
            screen.line(f"conversation {id}", "dim")
        if await session.settle(read_answer) and session.outcome == "complete":
            await session.turn(message, stream=sending.streams)
        if isinstance(kept, KeptView):
            await _check(kept, screen, session.chat, agents.allow_hosts, as_json=view_options.as_json)
        if answer is not None and sending.extracts is not None:
            print_code(answer.getvalue(), sending.extracts)
        return session.exit_code
    finally:
        await agents.aclose()
        if store is not None:
            await store.aclose()


async def _check(
    view: "KeptView", screen: "Screen", chat: "Chat[Any]", allow_hosts: tuple[str, ...], *, as_json: bool
) -> None:
    """Fetch the cited pages, and print each claim with what its citation proves. The chat's log keeps the check.

    With `as_json`, print the checked sources as parts, under the ids that they had.
    """
    from sidestream.cli.display import formatting
    from sidestream.results.chunks import ChunkFold
    from sidestream.results.results import fold

    folding = ChunkFold()
    result = fold([chunk for part in view.parts for chunk in folding.feed(part)])
    checked = await chat.check_evidence(result, allow_hosts=allow_hosts)
    if as_json:
        for source in checked.sources:
            view.feed(source)
        return
    claims = checked.claims()
    screen.line("evidence:" if claims else "evidence: the answer cites no source", "bold")
    for claim in claims:
        formatting.print_evidence(screen, claim.text, formatting.source(claim.source), claim.source.evidence)


def print_code(answer: str, place: "Place") -> None:
    """Print a code block of the answer, or all of it if it has none, which a note says."""
    from sidestream.cli.display.formatting import code_block
    from sidestream.cli.display.screen import write

    code = code_block(answer, place)
    if code is None and answer:
        click.echo("note: the answer has no code block and is printed whole", err=True)
    write(sys.stdout, answer if code is None else code)


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


def load_template(name: str | None) -> "Template":
    """Load a template, or return an empty one. Raises ConfigurationError if it is missing or invalid."""
    from sidestream.cli.inputs import named_files

    return named_files.Template() if name is None else named_files.load(name)


def thinking_of(template: "Template") -> str | int | None:
    """Return the level of reasoning that a template sets."""
    return options.thinking_level(None if template.thinking is None else str(template.thinking))


def with_template(agent: dict[str, Any], template: "Template") -> dict[str, Any]:
    """Merge the agent's options with the template's, which they override."""
    options = tuple((name, _option_text(value)) for name, value in template.options.items())
    return {
        **agent,
        "system": agent["system"] if agent["system"] is not None else template.system,
        "tools": (*template.tools, *agent["tools"]),
        "functions": (*template.functions, *agent["functions"]),
        "options": (*options, *agent["options"]),
    }


_LISTS = ("tools", "functions", "fragments", "system_fragments")
"""Fields of a template to which options add."""


def use_system(agents: "AgentFactory", fragments: list[str], filled: str | None) -> None:
    """Set the system prompt: the fragments, then the template's, or else what the agents have."""
    system = filled if filled is not None else agents.config.system
    if fragments or filled is not None:
        agents.use_system("\n\n".join(filter(None, (*fragments, system))))


def _option_text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _save(name: str, prompt: str, given: dict[str, Any], base: "Template") -> int:
    from msgspec.structs import replace

    from sidestream.cli import exit_codes
    from sidestream.cli.inputs import named_files

    options = base.options | dict(given["options"])
    lists = {field: [*getattr(base, field), *given[field]] for field in _LISTS}
    texts = {field: given[field] for field in ("system", "model", "schema", "thinking") if given[field] is not None}
    template = replace(base, prompt=prompt or base.prompt, options=options, **lists, **texts)
    if template == named_files.Template():
        raise click.UsageError("there is nothing to save: give a prompt, a system prompt or options")
    file = named_files.save(name, template)
    click.echo(f"Saved as {file}. Use it with: sidestream -t {name}", err=True)
    return exit_codes.OK
