"""Forks of logged runs, with one fact changed, and the replay of what follows for as long as it is the same."""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sidestream.agent.agent import Agent
from sidestream.agent.models import Models
from sidestream.agent.settings import CallSettings
from sidestream.errors import ConfigurationError, RunError
from sidestream.limits import Limits
from sidestream.providers.protocol import ChatModel
from sidestream.providers.registry import ModelString, find_provider
from sidestream.replay.comparison import first_difference
from sidestream.run.settings import RunHooks
from sidestream.run.system import System
from sidestream.store.log.fold import LogState, fold, joined
from sidestream.store.log.forking import Changes, Copy, turn_end
from sidestream.store.log.requests import ConversationRequest, RequestLog, requests_in
from sidestream.store.log.writer import changed_by
from sidestream.store.protocol import Store
from sidestream.store.records import REQUEST, STEP_FINISH, Forked, Record, RequestSent, Row, content_of, unpack
from sidestream.transport.calls import HttpCall, HttpResponse

if TYPE_CHECKING:
    from sidestream.store.records import Body


_TRANSPORT = ("stream", "stream_options")
"""Fields that say how an answer is sent, and not what it is."""


class ForkPlan(Struct, frozen=True, kw_only=True):
    """What to fork, and how."""

    store: Store
    conversation: str
    at: int
    changes: Changes
    replays: bool = False
    is_strict: bool = False
    output_type: Any = None
    call: CallSettings = {}


class Forking:
    """Builds the log of a fork. Nothing is sent, no tool runs, and nothing is written."""

    def __init__(self, agent: Agent[Any, Any], plan: ForkPlan) -> None:
        self._agent = agent
        self._plan = plan
        hooks = agent._hooks  # pyright: ignore[reportPrivateUsage]
        before_store = None if hooks is None else hooks.before_store
        self._redact: Callable[[Body], Body] = (
            (lambda body: body) if before_store is None else lambda body: changed_by(body, before_store)
        )

    async def build(self) -> Copy:
        """Return the fork's rows, which end with its origin.

        Raises ConfigurationError if the log has no such point, if a change does not fit it, or if the plan is strict
        and a request differs.
        """
        plan = self._plan
        rows = await plan.store.read(plan.conversation)
        if not 1 <= plan.at <= len(rows):
            raise ConfigurationError(
                f"at must be one of the records 1 to {len(rows)} of {plan.conversation!r}, not {plan.at}"
            )
        made = Copy(rows[: plan.at], self._redact)
        is_last_step = [row.kind for row in rows[plan.at - 1 : plan.at + 1]] == [STEP_FINISH, "finish"]
        if is_last_step and (await self._state(made)).run_state is None:
            made.extend(rows[plan.at : plan.at + 1])  # Otherwise, the complete turn would look unfinished.
        made.change(plan.changes)
        if plan.changes.message is not None:
            made.say(plan.changes.message, await self._state(made))
        equal, parted = await self._replay(made, rows) if plan.replays else (0, "")
        copied = len(made.rows) - made.is_longer
        state = await self._state(made)
        made.start(state, rows[plan.at : turn_end(rows, plan.at)])
        made.detach(state)
        made.add(
            Forked(
                conversation=plan.conversation,
                seq=plan.at,
                changes=plan.changes.to_json(),
                copied=copied,
                equal=equal,
                parted=parted,
            )
        )
        return made

    async def _replay(self, made: Copy, rows: list[Row]) -> tuple[int, str]:
        """Copy the rest of the turn, up to a request that differs. Return how many are equal, and what differs."""
        recorded = {request.seq: request for request in requests_in(rows, await self._blobs(rows))}
        if not recorded:
            return 0, "the log, which has no requests to compare with"
        end, done, equal = turn_end(rows, self._plan.at), max(self._plan.at, len(made.rows)), 0
        for row in rows[self._plan.at : end]:
            if row.kind != REQUEST:
                continue
            if not made.is_longer:
                made.extend(rows[done : row.seq - 1])
                done = row.seq - 1
            parted = await self._difference(made, recorded[row.seq])
            if parted is None and made.is_longer:
                return equal, ""
            if parted is not None:
                if self._plan.is_strict:
                    raise ConfigurationError(f"the fork parts from the log at record {row.seq}: {parted}")
                return equal, f"record {row.seq}, {parted}"
            equal += 1
        if not made.is_longer:
            made.extend(rows[done:end])
        return equal, ""

    async def _difference(self, made: Copy, recorded: ConversationRequest) -> str | None:
        """Return the first field in which the next request differs from the recorded one."""
        state = await self._state(made)
        if state.run_state is None:
            return "the turn: it is complete"
        hooks = RunHooks(read_blobs=self._read, conversation=self._plan.conversation, store=self._plan.store)
        resumed = self._agent._resumed  # pyright: ignore[reportPrivateUsage]
        run = resumed(state.run_state, [], self._plan.output_type, self._plan.call, hooks, "parts")
        try:
            model, encoded = await run.first_request(_Closed())
        except RunError as error:
            return f"the request: it cannot be made offline, {error.message}"
        if model != recorded.model:
            return f"model: {recorded.model!r} → {model!r}"
        sent = RequestLog().request(encoded.call.body or b"", 1, model=model, path="", step=0)
        if sent is None:
            return "the request: its body is not JSON"
        body = self._redact(sent)
        assert isinstance(body, RequestSent)
        difference = first_difference(recorded.body, body.body, _TRANSPORT)
        return None if difference is None else str(difference)

    async def _state(self, made: Copy) -> LogState:
        records: list[Record] = []
        for row in made.rows:
            blobs = {digest: await self._blob(digest, made) for digest in content_of(row)}
            records.append(unpack(row, blobs.__getitem__ if blobs else None))
        return fold(joined(records))

    async def _blob(self, digest: str, made: Copy) -> bytes:
        found = made.blobs.get(digest)
        return await self._plan.store.blob(digest) if found is None else found

    async def _blobs(self, rows: list[Row]) -> dict[str, bytes]:
        digests = {digest for row in rows if row.kind == REQUEST for digest in row.blobs}
        return {digest: await self._plan.store.blob(digest) for digest in digests}

    async def _read(self, digests: Any) -> dict[str, bytes]:
        return {digest: await self._plan.store.blob(digest) for digest in digests}


def changed_agent(agent: Agent[Any, Any], model: str | ChatModel | None, system: System | None) -> Agent[Any, Any]:
    """Return a copy of the agent with another model or system prompt."""
    if model is None and system is None:
        return agent
    changed = copy.copy(agent)
    if model is not None:
        models = _models_like(agent, model)
        changed._candidates, changed._models = (models,), models  # pyright: ignore[reportPrivateUsage]
    if system is not None:
        changed.system = system
    return changed


def _models_like(agent: Agent[Any, Any], model: str | ChatModel) -> Models:
    """Return the models that a model string selects, with the agent's settings if its provider is the same."""
    before = agent._chosen  # pyright: ignore[reportPrivateUsage]
    if isinstance(model, str):
        parsed = ModelString.parse(model)
        name = parsed.models.get("chat")
        if name and find_provider(parsed.provider).name == before.provider:
            return Models(before.named(name), {"transport": before.transport})
    return Models(model, {})


class _Closed:
    """A transport that sends nothing."""

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        raise RunError("it needs another request first")

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        raise RunError("it needs a download first")


def named(model: str | ChatModel | None) -> str | None:
    """Return a model as `provider:name`, for the log."""
    return model if model is None or isinstance(model, str) else f"{model.provider}:{model.name}"
