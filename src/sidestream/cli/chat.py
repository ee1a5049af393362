"""`sidestream chat`: a conversation in the terminal, written down as it streams."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from sidestream.cli import key_file, options
from sidestream.cli.stdio import argument
from sidestream.cli.terminal import one_line

if TYPE_CHECKING:
    from sidestream.cli.agent_factory import AgentFactory
    from sidestream.cli.approvals import PrintLine
    from sidestream.cli.line_reader import LineReader
    from sidestream.cli.session import ChatSession
    from sidestream.cli.views import ViewOptions
    from sidestream.messages.message import MessagePart
    from sidestream.store.protocol import ConversationInfo, Store

OPEN = {
    "waiting": "the last turn waits for approvals",
    "broken-off": "the last turn was broken off",
    "failed": "the last turn failed",
    "cancelled": "the last turn was cancelled",
}
"""How the last turn of a conversation stands → what is said about it."""


@click.command()
@click.argument("words", metavar="[PROMPT]", nargs=-1)
@options.model_option
@options.agent_options
@options.attach_option
@click.option("--id", metavar="ID", help="Go on with this conversation, or begin one with this id.")
@click.option("-c", "--continue", "goes_on", is_flag=True, help="Go on with the last conversation.")
@click.option("--no-log", is_flag=True, help="Write nothing down.")
@options.store_option
@options.out_option
@options.view_options
def chat(
    words: tuple[str, ...],
    model: str,
    attachments: tuple[str, ...],
    id: str | None,
    goes_on: bool,
    no_log: bool,
    out: Path | None,
    thinking: bool,
    verbose: bool,
    **agent: Any,
) -> int:
    """Talk with a model. PROMPT is the first message; what is piped in is read line by line, each line a message.

    Ctrl-C stops the answer, Ctrl-D leaves, Esc Enter makes a new line, /help lists the commands.
    """
    from sidestream.cli.agent_factory import AgentConfig, AgentFactory
    from sidestream.cli.attachments import attached
    from sidestream.cli.process import run_async
    from sidestream.cli.views import ViewOptions

    if no_log and (id is not None or goes_on):
        raise click.UsageError("--no-log keeps nothing to go on with: leave out --id and --continue")
    if id is not None and goes_on:
        raise click.UsageError("--id and --continue both choose a conversation: give one of them")
    if "-" in attachments:
        raise click.UsageError("standard input holds the messages here; attach a file, or use sidestream prompt")
    first = argument(words)
    key_file.load()
    agents = AgentFactory(AgentConfig(model=model, **agent))
    look = ViewOptions(out=out, thinking=thinking, verbose=verbose)
    which = ConversationSelector(id=id, goes_on=goes_on, no_log=no_log, keeps_model=not options.is_model_chosen())
    return run_async(_talk(agents, look, first, attached(attachments), which))


class ConversationSelector(Struct, frozen=True, kw_only=True):
    """The conversation to open, and whether it keeps its model."""

    id: str | None
    goes_on: bool
    no_log: bool
    keeps_model: bool


async def _talk(
    agents: "AgentFactory", look: "ViewOptions", first: str, parts: "list[MessagePart]", which: ConversationSelector
) -> int:
    from sidestream.agent.chat import Chat
    from sidestream.cli.approvals import ApprovalPrompt
    from sidestream.cli.line_reader import HISTORY, reader
    from sidestream.cli.session import ChatSession, new_id
    from sidestream.cli.views import screen_and_view
    from sidestream.folders import data_folder
    from sidestream.store.opening import open_store

    screen, view = screen_and_view(look, asks=True)
    inputs = reader(None if which.no_log else data_folder() / HISTORY)
    store = None if which.no_log else open_store(agents.plan.store)
    try:
        known = await _known(store, which)
        id = None if store is None else known.id if known is not None else which.id or new_id()
        if known is not None and known.model and which.keeps_model:
            agents.use_model(known.model)
        talk = ChatSession(
            Chat(agents.agent(), store=store, id=id),
            view,
            screen.line,
            ApprovalPrompt(screen.line, inputs.answer, agents.plan.approve),
            is_stored=store is not None,
            options=agents.plan.words,
        )
        await talk.open(is_new=known is None and which.id is None)
        _introduce(talk, screen.line, agents.plan.words)
        await _Loop(talk, agents, inputs, screen.line, parts).run(first)
        return talk.code
    finally:
        await agents.aclose()
        if store is not None:
            await store.aclose()


async def _known(store: "Store | None", which: ConversationSelector) -> "ConversationInfo | None":
    from sidestream.cli.conversations import exactly, latest

    if store is None:
        return None
    if which.id is not None:
        return await exactly(store, which.id)
    return await latest(store) if which.goes_on else None


def _introduce(talk: "ChatSession", say: "PrintLine", words: str) -> None:
    if talk.is_stored:
        say(f"conversation {talk.chat.id}; later: sidestream chat --id {talk.chat.id}{words}", "dim")
    said = OPEN.get(talk.chat.status)
    if said is not None:
        say(f"note: {said}; /resume goes on with it, a new message drops it", "yellow")
    count = len(talk.chat.messages)
    if count:
        say(f"it has {count} messages so far", "dim")


class _Loop:
    """Reads inputs and acts on them, until there are no more."""

    def __init__(
        self,
        talk: "ChatSession",
        agents: "AgentFactory",
        inputs: "LineReader",
        say: "PrintLine",
        attached: "list[MessagePart]",
    ) -> None:
        self.talk = talk
        self.agents = agents
        self.say = say
        self.attached = attached
        self.is_over = False
        self._inputs = inputs

    async def run(self, first: str) -> None:
        if first:
            await self._take(first)
        from sidestream.cli.process import UserInterruptError

        is_warned = False
        while not self.is_over:
            try:
                text = await self._inputs.line()
            except UserInterruptError:
                if is_warned:
                    self.talk.ending = "cancelled"
                    return
                is_warned = True
                self.say("Ctrl-D leaves, and so does another Ctrl-C")
                continue
            is_warned = False
            if text is None:
                return
            await self._take(text)

    async def _take(self, text: str) -> None:
        """One input; what is wrong with it is said, and the chat goes on."""
        from sidestream.errors import ConfigurationError
        from sidestream.redaction import redact

        try:
            await self._act(text)
        except (ConfigurationError, click.UsageError) as error:
            message = error.format_message() if isinstance(error, click.UsageError) else str(error)
            self.say(f"error: {redact(one_line(message, 1000))}", "red")
            self.talk.ending = "failed"

    async def _act(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        command = COMMANDS.get(name)
        if command is not None:
            await command[0](self, rest.strip())
        elif name.startswith("/") and name[1:].isalpha():
            raise click.UsageError(f"there is no command {name}; known: {', '.join(COMMANDS)}")
        else:
            parts, self.attached = self.attached, []
            await self.interruptible(lambda: self.talk.turn([text, *parts] if parts else text))

    async def interruptible(self, work: "Callable[[], Awaitable[None]]") -> None:
        """Carries out something that Ctrl-C stops while the chat goes on."""
        from sidestream.cli.process import UserInterruptError, interruptible

        async def wrapped() -> None:
            await work()

        try:
            await interruptible(wrapped())
        except UserInterruptError:
            await self.talk.settle()
            self.talk.ending = "waiting" if self.talk.chat.status == "waiting" else "cancelled"
            self.say("stopped; /resume goes on with the turn" if self.talk.is_stored else "stopped", "yellow")


async def _help(loop: _Loop, rest: str) -> None:
    for name, (_, words) in COMMANDS.items():
        loop.say(f"{name:<14} {words}")
    loop.say("Ctrl-C stops the answer, Ctrl-D leaves, Esc Enter makes a new line")


async def _quit(loop: _Loop, rest: str) -> None:
    loop.is_over = True


async def _model(loop: _Loop, rest: str) -> None:
    chat = loop.talk.chat
    if rest:
        chat.agent = loop.agents.agent(rest)
    loop.say(f"model: {one_line(chat.agent.model.provider)}:{one_line(chat.agent.model.name)}", "dim")


async def _attach(loop: _Loop, rest: str) -> None:
    from sidestream.cli.attachments import attached

    if not rest:
        raise click.UsageError("say which file: /attach PATH")
    loop.attached += attached([rest])
    loop.say(f"{one_line(rest)} goes with the next message", "dim")


async def _tools(loop: _Loop, rest: str) -> None:
    plan = loop.agents.plan
    names = [*plan.tools, *(f"the tools of {one_line(label)}" for label in loop.agents.labels)]
    loop.say(f"tools: {', '.join(names) or 'none'}", "dim")


async def _resume(loop: _Loop, rest: str) -> None:
    await loop.interruptible(loop.talk.resume)


COMMANDS: dict[str, tuple[Callable[[_Loop, str], Awaitable[None]], str]] = {
    "/help": (_help, "this list"),
    "/model": (_model, "NAME: go on with another model or provider; alone: say which it is"),
    "/attach": (_attach, "PATH or URL: goes with the next message"),
    "/tools": (_tools, "what the model can use"),
    "/resume": (_resume, "go on with a turn that waits, failed or was stopped"),
    "/quit": (_quit, "leave"),
}
"""What begins with a slash → what it does, and what /help says about it."""
