"""Slash commands of a chat, with their handlers and their descriptions for /help."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from sidestream.cli.display.screen import one_line, strip_controls
from sidestream.errors import ConfigurationError
from sidestream.messages.message import ChatMessage
from sidestream.run.prompts import Prompt

if TYPE_CHECKING:
    from sidestream.cli.chat.approvals import PrintLine
    from sidestream.cli.chat.session import ChatSession
    from sidestream.cli.inputs.agent_factory import AgentFactory
    from sidestream.messages.message import MessagePart


class ChatControl(Protocol):
    """The chat as slash commands see it."""

    session: "ChatSession"
    agents: "AgentFactory"
    print: "PrintLine"
    attachments: "list[MessagePart]"
    is_over: bool
    model: str | None
    """Model chosen with /model. None means the configured one."""
    last_prompt: Prompt | None
    """Last prompt sent."""

    async def send(self, prompt: Prompt) -> None:
        """Run a turn that Ctrl-C can stop."""
        ...

    async def interruptible(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work that Ctrl-C stops without ending the chat."""
        ...


Handler = Callable[[ChatControl, str], Awaitable[None]]


async def _help(chat: ChatControl, rest: str) -> None:
    for name, (_, description) in COMMANDS.items():
        chat.print(f"{name:<14} {description}")
    chat.print("Tab completes commands, Ctrl-C stops the answer, Ctrl-D or exit quits, Esc Enter inserts a newline.")
    chat.print("A line that you enter while the model answers is sent with its next step.")


async def _quit(chat: ChatControl, rest: str) -> None:
    chat.is_over = True


async def _model(chat: ChatControl, rest: str) -> None:
    conversation = chat.session.chat
    if rest:
        conversation.agent = chat.agents.create(rest)
        chat.model = rest
    model = conversation.agent.model
    chat.print(f"model: {one_line(model.provider)}:{one_line(model.name)}", "dim")


async def _attach(chat: ChatControl, rest: str) -> None:
    from sidestream.cli.inputs.attachments import load_attachments

    if not rest:
        raise click.UsageError("missing path: /attach PATH")
    chat.attachments += load_attachments([rest], runs_code=chat.agents.runs_code)
    chat.print(f"{one_line(rest)} will be sent with the next message", "dim")


async def _tools(chat: ChatControl, rest: str) -> None:
    if rest:
        chat.agents.add_tool(rest)
        chat.session.chat.agent = chat.agents.create(chat.model)
    chat.print(f"tools: {one_line(', '.join(chat.agents.tool_names)) or 'none'}", "dim")


async def _system(chat: ChatControl, rest: str) -> None:
    if rest:
        chat.agents.use_system(None if rest == "-" else rest)
        chat.session.call = chat.agents.call
        chat.session.chat.agent = chat.agents.create(chat.model)
    chat.print(f"system: {one_line(chat.agents.config.system or 'none')}", "dim")


async def _allowed(chat: ChatControl, rest: str) -> None:
    conversation = chat.session.chat
    await conversation.load()
    named = [grant for grant in conversation.grants if grant.tool == rest]
    if rest and not named:
        raise click.UsageError(f"{rest} is not allowed in this conversation; use /allowed to list allowed tools")
    for grant in named:
        await conversation.withdraw(grant.id)
    names = ", ".join(grant.tool for grant in conversation.grants)
    chat.print(f"allowed in this conversation: {one_line(names) or 'none'}", "dim")


async def _resume(chat: ChatControl, rest: str) -> None:
    await chat.interruptible(chat.session.resume)


async def _retry(chat: ChatControl, rest: str) -> None:
    session = chat.session
    if session.chat.status != "complete" and chat.last_prompt is not None:
        await chat.send(chat.last_prompt)  # An incomplete turn is not in the history.
        return
    before, question = _last_question(session.chat.messages)
    await _branch_from(chat, before)
    await chat.send(list(question.parts))


async def _undo(chat: ChatControl, rest: str) -> None:
    before, question = _last_question(chat.session.chat.messages)
    await _branch_from(chat, before)
    text = one_line("".join(getattr(part, "text", "") for part in question.parts), 80)
    chat.print(f"back to before: {text or 'your last message'}", "dim")


async def _branch(chat: ChatControl, rest: str) -> None:
    await _branch_from(chat, chat.session.chat.messages)


async def _branch_from(chat: ChatControl, messages: Sequence[ChatMessage]) -> None:
    before = chat.session.chat.id
    await chat.session.branch(messages)
    if chat.session.is_stored:
        chat.print(f"conversation {chat.session.chat.id}; {before} is unchanged", "dim")


def _last_question(messages: Sequence[ChatMessage]) -> tuple[Sequence[ChatMessage], ChatMessage]:
    """Return the last user message and the history before it. Raises ConfigurationError if there is none."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].role == "user":
            return messages[:at], messages[at]
    raise ConfigurationError("the conversation has no messages yet")


async def _save(chat: ChatControl, rest: str) -> None:
    if not rest:
        raise click.UsageError("missing path: /save FILE.md or FILE.json")
    conversation = chat.session.chat
    _write_new(rest, conversation.to_json() + "\n" if rest.endswith(".json") else _markdown(conversation.messages))
    chat.print(f"saved as {one_line(rest)}", "dim")


def _write_new(path: str, text: str) -> None:
    try:
        with Path(path).expanduser().open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except FileExistsError:
        raise click.UsageError(f"{path} already exists; choose another name") from None
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from None


def _markdown(messages: Sequence[ChatMessage]) -> str:
    from sidestream.cli.chat.transcript import message_lines

    lines: list[str] = []
    for message in messages:
        lines += [f"## {message.role}", "", *message_lines(message), ""]
    return strip_controls("\n".join(lines))


COMMANDS: dict[str, tuple[Handler, str]] = {
    "/help": (_help, "List the commands."),
    "/model": (_model, "Switch to the model or provider NAME. Without NAME, show the current one."),
    "/tools": (_tools, "Enable TOOL, as -T does. Without TOOL, list the enabled tools."),
    "/allowed": (_allowed, "Ask before calls to TOOL again. Without TOOL, list the tools that you always allow."),
    "/system": (_system, "Set the system prompt to TEXT, or remove it with -. Without TEXT, show it."),
    "/attach": (_attach, "Attach the file at PATH or a URL to the next message."),
    "/retry": (_retry, "Ask the last question again, in a new branch."),
    "/undo": (_undo, "Go back to before the last question, in a new branch."),
    "/branch": (_branch, "Continue in a copy of the conversation."),
    "/save": (_save, "Save the conversation to FILE as Markdown, or as JSON if FILE ends in .json."),
    "/resume": (_resume, "Resume a turn that is waiting, failed, cancelled or unfinished."),
    "/exit": (_quit, "Quit, like /quit, exit and quit."),
}
"""Handlers and /help descriptions, by slash command."""

EXITS = frozenset({"exit", "quit", "/quit"})
"""Lines that end the chat, besides /exit."""


def completions(text: str) -> list[str]:
    """Complete the text before the cursor to commands, or to the arguments of some commands."""
    name, space, rest = text.partition(" ")
    if not text.startswith("/") or "\n" in text:
        return []
    if not space:
        return [f"{command} " for command in COMMANDS if command.startswith(name)]
    return [f"{name} {value}" for value in _values(name, rest.lstrip())]


def _values(name: str, start: str) -> list[str]:
    if name == "/model":
        from sidestream.providers.registry import installed_providers

        return [info.name for info in installed_providers() if info.name.startswith(start)]
    if name == "/tools":
        from sidestream.cli.inputs.field_values import tool_names

        return [tool for tool in tool_names() if tool.startswith(start)]
    if name in ("/attach", "/save"):
        return _paths(start)
    return []


def _paths(start: str) -> list[str]:
    folder, slash, beginning = start.rpartition("/")
    try:
        entries = sorted(Path(f"{folder}{slash}" or ".").expanduser().iterdir())
    except OSError:
        return []
    return [
        f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(beginning) and (beginning or not entry.name.startswith("."))
    ]
