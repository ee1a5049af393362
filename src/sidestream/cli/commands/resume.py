"""Resuming and forking of a logged conversation."""

from typing import Any

import click
from msgspec import Struct

from sidestream.cli.chat.line_reader import open_reader
from sidestream.cli.chat.session import create_session, new_id
from sidestream.cli.chat.transcript import origin_line
from sidestream.cli.display.screen import one_line
from sidestream.cli.display.view import ViewOptions, screen_and_view
from sidestream.cli.inputs.agent_factory import AgentConfig, AgentFactory
from sidestream.cli.inputs.conversations import LATEST, find_conversation, get_conversation
from sidestream.cli.inputs.default_model import default_model
from sidestream.replay.comparison import system_in
from sidestream.store.log.conversation import Conversation
from sidestream.store.protocol import Store
from sidestream.store.records import STARTED, RunStarted, unpack
from sidestream.turn.state import TURN_STATUSES


class ResumeRequest(Struct, frozen=True, kw_only=True):
    """Arguments of `sidestream logs resume`."""

    id: str | None
    prompt: str
    model: str | None
    store: str | None
    agent: dict[str, Any]


async def resume_conversation(store: Store, request: ResumeRequest, view_options: ViewOptions) -> int:
    """Resume the last turn, or send the prompt as the next one, and return the exit code."""
    info = await find_conversation(store, request.id, default_to_latest=True)
    screen, view = screen_and_view(view_options, prompts_for_approval=True)
    model = request.model or info.model or default_model()
    agents = await AgentFactory.load(AgentConfig(model=model, store=request.store, **request.agent))
    try:
        session = create_session(agents, store, info.id, screen, view, open_reader(None).answer)
        await session.open(is_new=False)
        status = session.chat.status
        if (request.id or "") in LATEST:
            screen.line(f"conversation {info.id}", "dim")
        if status != "complete" and request.prompt:
            raise click.UsageError(
                f"last turn of {info.id}: {status} ({TURN_STATUSES[status]}); resume it without a prompt, "
                f"or discard it with sidestream logs discard {info.id}"
            )
        if request.prompt:
            await session.turn(request.prompt)
        elif status == "complete":
            raise click.UsageError(f"the last turn of {info.id} is complete: add a prompt to continue")
        else:
            await session.resume()
        return session.exit_code
    finally:
        await agents.aclose()


class ForkRequest(Struct, frozen=True, kw_only=True):
    """Arguments of `sidestream runs fork`."""

    run: str
    at: int
    changes: dict[str, Any]
    """Arguments of `Chat.fork`."""
    store: str | None
    agent: dict[str, Any]


async def _recorded_settings(store: Store, conversation: str, at: int) -> dict[str, Any]:
    """Return the model and the system prompt that the log has for a record."""
    rows = await store.read(conversation)
    started = [row for row in rows if row.kind == STARTED]
    found: dict[str, Any] = {}
    if run := next((row for row in reversed(started) if row.seq <= at), next(iter(started), None)):
        found["model"] = body.model if isinstance(body := unpack(run).body, RunStarted) else None
    requests = await Conversation(store, conversation).requests(rows)
    near = [sent for sent in requests if sent.run == (run.run if run is not None else "")]
    if sent := next((sent for sent in reversed(near) if sent.seq <= at), next(iter(near), None)):
        found["system"] = system_in(sent.body) or None
    return found


async def fork_run(store: Store, request: ForkRequest, view_options: ViewOptions) -> int:
    """Fork the conversation of a run, run the rest of the turn, and return the exit code."""
    known = await store.find_run(request.run)
    found = None if known is None else await get_conversation(store, known[0])
    info = found or await find_conversation(store, request.run)
    screen, view = screen_and_view(view_options, prompts_for_approval=True)
    recorded = await _recorded_settings(store, info.id, request.at)
    model = recorded.pop("model", None) or info.model or default_model()
    model = request.changes.get("model", model)
    if request.agent["agent"] is not None or "system" in request.changes:
        recorded = {}
    agents = await AgentFactory.load(AgentConfig(model=model, store=request.store, **{**recorded, **request.agent}))
    try:
        session = create_session(agents, store, info.id, screen, view, open_reader(None).answer)
        await session.open(is_new=False)
        id = None if "/" in info.id else new_id()
        session.chat = fork = await session.chat.fork(request.at, id=id, **{**session.call, **request.changes})
        assert fork.forked_from is not None
        screen.line(f"conversation {fork.id}: {one_line(origin_line(fork.forked_from), 1000)}", "dim")
        if fork.status != "complete":
            await session.resume()
        return session.exit_code
    finally:
        await agents.aclose()
