"""The `sidestream chat` command: an interactive conversation, logged as it streams."""

import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from sidestream.cli.commands.prompt import load_template, thinking_of, with_template
from sidestream.cli.display.screen import one_line
from sidestream.cli.inputs import options
from sidestream.cli.stdio import is_terminal, prompt_argument

if TYPE_CHECKING:
    from sidestream.cli.chat.approvals import PrintLine
    from sidestream.cli.chat.line_reader import LineReader
    from sidestream.cli.chat.session import ChatSession
    from sidestream.cli.display.view import ViewOptions
    from sidestream.cli.inputs.agent_factory import AgentFactory
    from sidestream.cli.inputs.named_files import Template
    from sidestream.messages.message import MessagePart
    from sidestream.run.prompts import Prompt
    from sidestream.store.protocol import ConversationInfo, Store


class ConversationSelector(Struct, frozen=True, kw_only=True):
    """The conversation to open, and whether it keeps its model."""

    id: str | None
    is_latest: bool
    no_log: bool
    keeps_model: bool


@click.command()
@click.argument("words", metavar="[PROMPT]", nargs=-1)
@options.model_option
@options.query_option
@options.agent_options
@options.attach_option
@options.template_options
@click.option("--id", "--cid", "id", metavar="ID", help="Continue the conversation with this id, or start it.")
@click.option("-c", "--continue", "is_latest", is_flag=True, help="Continue the latest conversation.")
@click.option("-n", "--no-log", is_flag=True, help="Do not log the conversation.")
@options.store_option
@options.out_option
@options.thinking_option
@options.verbose_option
def chat(
    words: tuple[str, ...],
    model: str | None,
    queries: tuple[str, ...],
    attachments: tuple[str, ...],
    fragments: tuple[str, ...],
    template: str | None,
    params: tuple[tuple[str, str], ...],
    id: str | None,
    is_latest: bool,
    no_log: bool,
    out: Path | None,
    thinking: str | int | None,
    verbose: bool,
    usage: bool,
    plain: bool,
    **agent: Any,
) -> int:
    """Chat with a model. PROMPT is the first message. Each line of piped input is a message.

    A template's prompt is the first message. If it contains $input, every message fills it instead.

    Ctrl-C stops the answer, Ctrl-D quits, Esc Enter inserts a newline, /help lists the commands. A line that you enter
    while the model answers steers the answer.
    """
    from sidestream.cli import key_file
    from sidestream.cli.display.view import ViewOptions
    from sidestream.cli.inputs.agent_factory import AgentConfig, loaded_factory
    from sidestream.cli.inputs.attachments import load_attachments
    from sidestream.cli.inputs.default_model import chosen_by_default, matching_model
    from sidestream.cli.inputs.fragments import load_fragments
    from sidestream.cli.inputs.schema_syntax import read_schema
    from sidestream.cli.interrupts import run_async

    if no_log and (id is not None or is_latest):
        raise click.UsageError("--no-log cannot be combined with --id or --continue")
    if id is not None and is_latest:
        raise click.UsageError("--id and --continue both select a conversation: use one of them")
    if "-" in (*attachments, *fragments):
        raise click.UsageError("chat reads messages from standard input; name a file, or use sidestream prompt")
    if params and template is None:
        raise click.UsageError("-p sets a variable of a template: name the template with -t")
    first = prompt_argument(words)
    key_file.load()
    stored = load_template(template)
    has_system = agent["system"] is not None
    agent = with_template(agent, stored)
    thinking = thinking if thinking is not None else thinking_of(stored)
    model = matching_model(queries) if queries else model or stored.model
    keeps_model = model is None and (id is not None or is_latest)
    chosen = chosen_by_default(model, is_quiet=keeps_model or agent["agent"] is not None)
    output_type = None if stored.schema is None else read_schema(stored.schema)
    agents = loaded_factory(AgentConfig(model=chosen, thinking=thinking, output_type=output_type, **agent))
    messages = _Messages(stored, dict(params), load_fragments((*stored.fragments, *fragments)))
    if messages.system is not None and not has_system:
        agents.use_system(messages.system)
    view_options = ViewOptions(
        out=out, thinking=thinking not in (None, "off"), verbose=verbose, usage=usage, is_plain=plain
    )
    selector = ConversationSelector(id=id, is_latest=is_latest, no_log=no_log, keeps_model=keeps_model)
    return run_async(
        _chat(
            agents, view_options, first, messages, load_attachments(attachments, runs_code=agents.runs_code), selector
        )
    )


class _Messages:
    """Builds messages from what is typed, with a template's prompt and fragments."""

    def __init__(self, template: "Template", params: dict[str, str], fragments: list[str]) -> None:
        from sidestream.cli.inputs.named_files import INPUT

        # Raises an error before the first message if a variable has no value.
        self.system = template.filled(params, f"${INPUT}").system
        self._template = template
        self._params = params
        self._fragments = fragments
        self._fills_each = template.prompt is not None and INPUT in template.variables

    @property
    def is_complete(self) -> bool:
        """Whether the template's prompt can be sent without anything typed."""
        return bool(self._template.prompt) and not self._fills_each

    def build(self, typed: str) -> str:
        """Return the next message. The first one begins with the fragments, and a prompt without `$input`."""
        text = self._template.filled(self._params, typed).prompt
        if not self._fills_each:
            from sidestream.cli.inputs.named_files import Template

            self._template, self._params = Template(), {}
        texts, self._fragments = self._fragments, []
        return "\n\n".join(filter(None, (*texts, text)))


async def _chat(
    agents: "AgentFactory",
    view_options: "ViewOptions",
    first: str,
    messages: _Messages,
    parts: "list[MessagePart]",
    selector: ConversationSelector,
) -> int:
    from sidestream.cli.chat.chat_commands import completions
    from sidestream.cli.chat.line_reader import HISTORY, TerminalReader, open_reader
    from sidestream.cli.chat.session import create_session, new_id
    from sidestream.cli.display.view import screen_and_view
    from sidestream.files.folders import data_folder
    from sidestream.store.opening import open_store

    screen, view = screen_and_view(view_options, prompts_for_approval=True)
    reader = open_reader(None if selector.no_log else data_folder() / HISTORY, completions)
    if isinstance(reader, TerminalReader) and screen.is_live:
        reader.echo = screen.typed
    store = None if selector.no_log else open_store(agents.config.store)
    try:
        existing = await _existing_conversation(store, selector)
        id = None if store is None else existing.id if existing is not None else selector.id or new_id()
        if existing is not None and existing.model and selector.keeps_model:
            agents.use_model(existing.model)
        # Each line of a pipe is a separate message, whenever it arrives.
        interjections = reader if isinstance(reader, TerminalReader) else None
        session = create_session(agents, store, id, screen, view, reader.answer, interjections)
        await session.open(is_new=existing is None and selector.id is None)
        _print_introduction(session, screen.line, agents.config.resume_flags)
        loop = _ChatLoop(session, agents, reader, screen.line, parts, messages)
        if await loop.settle():
            await loop.run(first)
        return session.exit_code
    finally:
        await agents.aclose()
        if store is not None:
            await store.aclose()


async def _existing_conversation(store: "Store | None", selector: ConversationSelector) -> "ConversationInfo | None":
    from sidestream.cli.inputs.conversations import get_conversation, latest_conversation

    if store is None:
        return None
    if selector.id is not None:
        return await get_conversation(store, selector.id)
    return await latest_conversation(store) if selector.is_latest else None


def _print_introduction(session: "ChatSession", print_line: "PrintLine", resume_flags: str) -> None:
    id = session.chat.id
    if session.is_stored:
        print_line(f"conversation {id}; to continue later: sidestream chat --id {id}{resume_flags}", "dim")
    count = len(session.chat.messages)
    if count:
        print_line(f"{count} messages so far", "dim")


class _ChatLoop:
    """Reads messages and slash commands, and executes them until the input ends."""

    def __init__(
        self,
        session: "ChatSession",
        agents: "AgentFactory",
        reader: "LineReader",
        print_line: "PrintLine",
        attachments: "list[MessagePart]",
        messages: _Messages,
    ) -> None:
        self.session = session
        self.agents = agents
        self.print = print_line
        self.attachments = attachments
        self.is_over = False
        self.model: str | None = None
        self.last_prompt: Prompt | None = None
        self._reader = reader
        self._messages = messages

    async def settle(self) -> bool:
        """Offer to resume an incomplete turn, and return False if the user quits."""
        from sidestream.cli.interrupts import UserInterruptError

        session = self.session
        read_answer = self._reader.answer if is_terminal(sys.stdin) else None
        try:
            return await session.settle(read_answer, lambda: self.interruptible(session.resume))
        except UserInterruptError:
            session.outcome = "cancelled"
            return False

    async def run(self, first: str) -> None:
        from sidestream.cli.interrupts import UserInterruptError

        if first or self._messages.is_complete:
            await self._handle(first)
        is_warned = False
        while not self.is_over:
            try:
                text = await self._reader.message()
            except UserInterruptError:
                if is_warned:
                    self.session.outcome = "cancelled"
                    return
                is_warned = True
                self.print("Press Ctrl-D, or Ctrl-C again, to quit.")
                continue
            is_warned = False
            if text is None:
                return
            await self._handle(text)

    async def _handle(self, text: str) -> None:
        """Handle one input, printing errors so that the chat continues."""
        from sidestream.errors import ConfigurationError
        from sidestream.text.redaction import redact
        from sidestream.tools.approvals import ApprovalError

        try:
            await self._dispatch(text)
        except (ConfigurationError, ApprovalError, click.UsageError) as error:
            message = error.format_message() if isinstance(error, click.UsageError) else str(error)
            self.print(f"error: {redact(one_line(message, 1000))}", "red")
            self.session.outcome = "failed"

    async def _dispatch(self, text: str) -> None:
        from sidestream.cli.chat.chat_commands import COMMANDS, EXITS

        name, _, rest = text.partition(" ")
        command = COMMANDS.get(name)
        if text.strip().lower() in EXITS:
            self.is_over = True
        elif command is not None:
            await command[0](self, rest.strip())
        elif name.startswith("/") and name[1:].isalpha():
            raise click.UsageError(_unknown_command(name, COMMANDS))
        else:
            text = self._messages.build(text)
            parts, self.attachments = self.attachments, []
            await self.send([text, *parts] if parts else text)

    async def send(self, prompt: "Prompt") -> None:
        """Run a turn that Ctrl-C can stop."""
        self.last_prompt = prompt
        await self.interruptible(lambda: self.session.turn(prompt))

    async def interruptible(self, work: "Callable[[], Awaitable[None]]") -> None:
        """Run work that Ctrl-C stops without ending the chat."""
        from sidestream.cli.interrupts import UserInterruptError, interruptible

        async def wrapped() -> None:
            await work()

        try:
            await interruptible(wrapped())
        except UserInterruptError:
            await self.session.recover()
            self.session.outcome = "waiting" if self.session.chat.status == "waiting" else "cancelled"
            self.print("Stopped. Use /resume to continue the turn." if self.session.is_stored else "Stopped.", "yellow")


def _unknown_command(name: str, known: "Iterable[str]") -> str:
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"unknown command {name}; " + (f"did you mean {near[0]}?" if near else "/help lists the commands")
