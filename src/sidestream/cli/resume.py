"""Goes on with a conversation that was written down."""

from typing import Any

import click
from msgspec import Struct

from sidestream.agent.chat import Chat
from sidestream.cli.agent_factory import AgentConfig, AgentFactory
from sidestream.cli.approvals import ApprovalPrompt
from sidestream.cli.conversations import LATEST, find
from sidestream.cli.line_reader import reader
from sidestream.cli.options import DEFAULT_MODEL
from sidestream.cli.session import ChatSession
from sidestream.cli.views import ViewOptions, screen_and_view
from sidestream.store.protocol import Store


class ResumeRequest(Struct, frozen=True, kw_only=True):
    """What was asked for."""

    id: str | None
    prompt: str
    model: str | None
    store: str | None
    agent: dict[str, Any]


async def resumed(store: Store, wish: ResumeRequest, look: ViewOptions) -> int:
    """Goes on with the last turn, or with a prompt; gives the exit code."""
    info = await find(store, wish.id, may_be_latest=True)
    screen, view = screen_and_view(look, asks=True)
    agents = AgentFactory(AgentConfig(model=wish.model or info.model or DEFAULT_MODEL, store=wish.store, **wish.agent))
    try:
        chat = Chat(agents.agent(), store=store, id=info.id)
        asker = ApprovalPrompt(screen.line, reader(None).answer, agents.plan.approve)
        session = ChatSession(chat, view, screen.line, asker, is_stored=True, options=agents.plan.words)
        await session.open(is_new=False)
        if (wish.id or "") in LATEST:
            screen.line(f"conversation {info.id}", "dim")
        if chat.status != "complete" and wish.prompt:
            raise click.UsageError(
                f"the last turn of {info.id} is {chat.status}: without a prompt it goes on; "
                f"sidestream chat --id {info.id} drops it at the next message"
            )
        if wish.prompt:
            await session.turn(wish.prompt)
        elif chat.status == "complete":
            raise click.UsageError(f"the last turn of {info.id} is complete: give a prompt to go on")
        else:
            await session.resume()
        return session.code
    finally:
        await agents.aclose()
