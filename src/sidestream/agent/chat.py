"""Chats, whose history grows turn by turn. A failed or cancelled turn leaves the history unchanged."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from sidestream.agent.agent import Agent
from sidestream.agent.settings import CallSettings, shows_settings
from sidestream.errors import ConfigurationError, ConflictError, StoreError
from sidestream.jsontext import JsonObject
from sidestream.messages.message import ChatMessage, messages_from_json, messages_to_json
from sidestream.output import OutputType
from sidestream.results.results import ChatResult
from sidestream.run.blocking import SyncRun, refuse_running_loop, sync_chunks, wait_for
from sidestream.run.prompts import Prompt, user_message
from sidestream.run.run import Run
from sidestream.run.settings import RunHooks, StreamErrors
from sidestream.text.redaction import Secret
from sidestream.text.reprs import shown
from sidestream.tools.approvals import Decision, PendingApproval, check_unspent, spend
from sidestream.tools.context import DepsT
from sidestream.tools.grants import Grant, without_grant
from sidestream.turn.machine import Turn
from sidestream.turn.state import MUST_RESUME, TURN_STATUSES, RunState, TurnStatus

if TYPE_CHECKING:
    from sidestream.providers.protocol import ChatModel
    from sidestream.store.log.writer import LogDetail, Writer
    from sidestream.store.protocol import Store
    from sidestream.store.records import Body, Forked

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    T = _TypeVar("T", default=str)
else:
    T = TypeVar("T")
OutT = TypeVar("OutT")


class Chat(Generic[T, DepsT]):
    """A conversation with an agent. Change `chat.agent` to continue with another model or provider.

    ```python
    chat = Chat(agent)
    await chat.send("My name is Ada.")
    print((await chat.send("What is my name?")).output)
    ```

    `messages` is a history to start with. With a store, every run is written to the conversation `id` as it streams,
    and a chat with the same id continues where the log ends: `Chat(agent, store="talks.db", id="support-42")`. `log`
    sets the level of detail; previews, such as an image's first versions, need `log=LogDetail(previews=True)`.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, arguments: object) -> GenericAlias:
            return GenericAlias(cls, arguments)  # `Generic` requires both arguments, as TypeVars have no defaults yet.

    def __init__(
        self,
        agent: Agent[T, DepsT],
        messages: Iterable[ChatMessage] = (),
        *,
        store: Store | str | Path | None = None,
        id: str | None = None,
        log: LogDetail | None = None,
    ) -> None:
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
            example = f"Agent({agent!r:.60})" if isinstance(agent, str) else "Agent(…)"
            raise ConfigurationError(f"a chat needs an agent, not {shown(agent)}: write Chat({example})")
        if id is not None and store is None:
            raise ConfigurationError("a chat with an id needs a store: Chat(agent, store=open_store(), id=…)")
        self.agent = agent
        self._is_new = id is None
        """Whether the id is known only to this chat."""
        self.id = f"chat_{uuid.uuid4().hex}" if id is None else id
        self.status: TurnStatus = "complete"
        """Status of the last turn."""
        self._messages = list(messages)
        self._before = self._messages
        """History before the waiting turn."""
        self._is_stale = store is not None
        """Whether the log may have records that are not loaded yet."""
        self._run_state: RunState | None = None
        self._writer: Writer | None = None
        self._grants: tuple[Grant, ...] = ()
        self._decided: frozenset[tuple[str, str]] = frozenset()
        """Keys of the decisions in the log."""
        self._log = log
        self.forked_from: Forked | None = None
        """Origin of a conversation that `fork` made, once it is loaded."""
        self.run_details: JsonObject = {}
        """Details stored in the log with each run, in its first record. They must not contain secrets."""
        self._store: Store | None = None
        if store is not None:
            from sidestream.store.ids import check_id
            from sidestream.store.opening import open_store

            check_id(self.id)
            # It may hold a password, which a traceback with locals would show.
            store = Secret(store) if isinstance(store, str) and "://" in store else store
            self._store = open_store(store)

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """History so far."""
        self._check_loaded()
        return tuple(self._messages)

    @property
    def run_state(self) -> RunState | None:
        """State of the last turn, from which `chat.resume` continues, or None if the turn is complete."""
        self._check_loaded()
        return self._run_state

    @property
    def approvals(self) -> tuple[PendingApproval, ...]:
        """Pending approvals, as in `await chat.resume([approval.approve() for approval in chat.approvals])`."""
        state = self.run_state
        return state.approvals if state is not None else ()

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Approvals of this conversation remembered with `approval.approve(remember="conversation")`."""
        self._check_loaded()
        return self._grants

    @property
    def head(self) -> int:
        """Sequence number of the last record that is safe in the log."""
        return self._writer.head if self._writer is not None else 0

    @property
    def store_error(self) -> StoreError | None:
        """Reason why the conversation is currently not recorded, or None.

        Its runs continue. The next turn, or `load`, tries to write the missing records.
        """
        return self._writer.error if self._writer is not None else None

    def to_json(self) -> str:
        """Serialize the history to JSON."""
        return messages_to_json(self.messages)

    @classmethod
    def from_json(cls, agent: Agent[T, DepsT], text: str | bytes) -> Chat[T, DepsT]:
        """Create a chat from a history that `to_json` wrote."""
        return cls(agent, messages_from_json(text))

    async def load(self) -> None:
        """Read the conversation from the store. The first turn does so if it was not done before."""
        if self._store is None:
            return
        if not await self._has_recovered():
            # The unwritten records exist only here, so the chat continues in memory.
            self._is_stale = False
            return
        from sidestream.store.log.conversation import Conversation
        from sidestream.store.log.fold import LogState
        from sidestream.store.log.writer import USUAL_DETAIL, Writer

        # Skip the read of a new conversation: it would only test the store, which an earlier write has done.
        is_empty = self._is_new and getattr(self._store, "has_written", False)
        rows = [] if is_empty else await self._store.read(self.id)
        state = await Conversation(self._store, self.id).state(rows) if rows else LogState(head=0, messages=())
        self._is_new = False
        hooks = self.agent._hooks  # pyright: ignore[reportPrivateUsage]
        writer = Writer(
            self._store,
            self.id,
            state.head,
            detail=self._log or USUAL_DETAIL,
            before_store=None if hooks is None else hooks.before_store,
            rows=rows,
        )
        if state.head and self._writer is None and self._messages:
            raise ConfigurationError(f"conversation {self.id!r} already has a history; leave out messages")
        if not state.head and self._writer is None:
            await writer.add_history(self._messages)
        else:
            self._messages = list(state.messages)
        self._run_state, self.status, self._decided = state.run_state, state.status, state.decided
        self._grants, self.forked_from = state.grants, state.forked_from
        self._writer, self._is_stale = writer, False

    @overload
    def stream(self, prompt: Prompt, *, errors: StreamErrors = ..., **call: Unpack[CallSettings[DepsT]]) -> Run[T]: ...
    @overload
    def stream(
        self,
        prompt: Prompt,
        *,
        output_type: type[OutT] | OutputType[OutT],
        errors: StreamErrors = ...,
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[OutT]: ...
    @overload
    def stream(
        self, prompt: Prompt, *, output_type: Any, errors: StreamErrors = ..., **call: Unpack[CallSettings[DepsT]]
    ) -> Run[Any]: ...
    @shows_settings(CallSettings)
    def stream(
        self,
        prompt: Prompt,
        *,
        output_type: Any = None,
        errors: StreamErrors = "raise",
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[Any]:
        """Start a turn and return its typed parts. The turn counts once its last part has arrived.

        With a store, call `load` first.
        """
        self._check_loaded()
        if "history" in call:
            raise ConfigurationError("a chat has its own history; pass messages to Chat(agent, messages)")
        if self.status in MUST_RESUME:
            raise ConfigurationError(
                f"the last turn is {self.status} ({TURN_STATUSES[self.status]}); "
                "resume it with chat.resume(decisions), or drop it with chat.discard()"
            )
        message = user_message(prompt)
        self._before = self._messages
        # A chat belongs to the agent's own classes; no other code needs to follow its runs this way.
        begun = self.agent._begun  # pyright: ignore[reportPrivateUsage]
        return self._following(begun(message, output_type, {**call, "history": self._messages}, self._hooks(), errors))

    @overload
    def resume_stream(
        self, decisions: Iterable[Decision] = (), *, errors: StreamErrors = ..., **call: Unpack[CallSettings[DepsT]]
    ) -> Run[T]: ...
    @overload
    def resume_stream(
        self,
        decisions: Iterable[Decision] = (),
        *,
        output_type: type[OutT] | OutputType[OutT],
        errors: StreamErrors = ...,
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[OutT]: ...
    @overload
    def resume_stream(
        self,
        decisions: Iterable[Decision] = (),
        *,
        output_type: Any,
        errors: StreamErrors = ...,
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[Any]: ...
    @shows_settings(CallSettings)
    def resume_stream(
        self,
        decisions: Iterable[Decision] = (),
        *,
        output_type: Any = None,
        errors: StreamErrors = "raise",
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[Any]:
        """Resume the last turn and return the typed parts of the rest."""
        self._check_loaded()
        decided = list(decisions)
        check_unspent(decided, self._decided)
        if self._run_state is None:
            raise ConfigurationError("there is nothing to resume: the last turn is complete")
        resumed = self.agent._resumed  # pyright: ignore[reportPrivateUsage]
        return self._following(resumed(self._run_state, decided, output_type, call, self._hooks(), errors))

    @overload
    async def send(self, prompt: Prompt, **call: Unpack[CallSettings[DepsT]]) -> ChatResult[T]: ...
    @overload
    async def send(
        self, prompt: Prompt, *, output_type: type[OutT] | OutputType[OutT], **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[OutT]: ...
    @overload
    async def send(
        self, prompt: Prompt, *, output_type: Any, **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[Any]: ...
    @shows_settings(CallSettings)
    async def send(
        self, prompt: Prompt, *, output_type: Any = None, **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[Any]:
        """Run one turn and return its result."""
        await self._loaded()
        return await self.stream(prompt, output_type=output_type, **call).result()

    @shows_settings(CallSettings)
    async def send_stream(
        self, prompt: Prompt, *, output_type: Any = None, **call: Unpack[CallSettings[DepsT]]
    ) -> AsyncGenerator[ChatResult[str]]:
        """Run one turn and yield it in chunks. The turn counts once its last chunk has arrived."""
        await self._loaded()
        chunks = self.stream(prompt, output_type=output_type, **call).chunks()
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    @overload
    async def resume(
        self, decisions: Iterable[Decision] = (), **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[T]: ...
    @overload
    async def resume(
        self,
        decisions: Iterable[Decision] = (),
        *,
        output_type: type[OutT] | OutputType[OutT],
        **call: Unpack[CallSettings[DepsT]],
    ) -> ChatResult[OutT]: ...
    @overload
    async def resume(
        self, decisions: Iterable[Decision] = (), *, output_type: Any, **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[Any]: ...
    @shows_settings(CallSettings)
    async def resume(
        self, decisions: Iterable[Decision] = (), *, output_type: Any = None, **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[Any]:
        """Resume the last turn after approvals, an error, a cancellation or a crash."""
        await self._loaded()
        return await self.resume_stream(decisions, output_type=output_type, **call).result()

    @overload
    def send_sync(self, prompt: Prompt, **call: Unpack[CallSettings[DepsT]]) -> ChatResult[T]: ...
    @overload
    def send_sync(
        self, prompt: Prompt, *, output_type: type[OutT] | OutputType[OutT], **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[OutT]: ...
    @overload
    def send_sync(
        self, prompt: Prompt, *, output_type: Any, **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[Any]: ...
    @shows_settings(CallSettings)
    def send_sync(
        self, prompt: Prompt, *, output_type: Any = None, **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[Any]:
        """Run one turn synchronously, for scripts and threads."""
        work = partial(self.send, prompt, output_type=output_type, **call)
        return wait_for(work, "send_sync", "await chat.send(...)")

    @overload
    def resume_sync(self, decisions: Iterable[Decision] = (), **call: Unpack[CallSettings[DepsT]]) -> ChatResult[T]: ...
    @overload
    def resume_sync(
        self,
        decisions: Iterable[Decision] = (),
        *,
        output_type: type[OutT] | OutputType[OutT],
        **call: Unpack[CallSettings[DepsT]],
    ) -> ChatResult[OutT]: ...
    @overload
    def resume_sync(
        self, decisions: Iterable[Decision] = (), *, output_type: Any, **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[Any]: ...
    @shows_settings(CallSettings)
    def resume_sync(
        self, decisions: Iterable[Decision] = (), *, output_type: Any = None, **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[Any]:
        """Run `resume` synchronously."""
        work = partial(self.resume, decisions, output_type=output_type, **call)
        return wait_for(work, "resume_sync", "await chat.resume(...)")

    @overload
    def stream_sync(
        self, prompt: Prompt, *, errors: StreamErrors = ..., **call: Unpack[CallSettings[DepsT]]
    ) -> SyncRun[T]: ...
    @overload
    def stream_sync(
        self,
        prompt: Prompt,
        *,
        output_type: type[OutT] | OutputType[OutT],
        errors: StreamErrors = ...,
        **call: Unpack[CallSettings[DepsT]],
    ) -> SyncRun[OutT]: ...
    @overload
    def stream_sync(
        self, prompt: Prompt, *, output_type: Any, errors: StreamErrors = ..., **call: Unpack[CallSettings[DepsT]]
    ) -> SyncRun[Any]: ...
    @shows_settings(CallSettings)
    def stream_sync(
        self,
        prompt: Prompt,
        *,
        output_type: Any = None,
        errors: StreamErrors = "raise",
        **call: Unpack[CallSettings[DepsT]],
    ) -> SyncRun[Any]:
        """Run one turn synchronously, and iterate over its typed parts."""
        refuse_running_loop("stream_sync", "async with chat.stream(...) as run")
        return SyncRun(lambda: self._started(prompt, output_type, errors, call))

    @shows_settings(CallSettings)
    def send_stream_sync(
        self, prompt: Prompt, *, output_type: Any = None, **call: Unpack[CallSettings[DepsT]]
    ) -> Generator[ChatResult[str]]:
        """Run one turn synchronously, and yield it in chunks."""
        refuse_running_loop("send_stream_sync", "async for chunk in chat.send_stream(...)")
        return sync_chunks(lambda: self._started(prompt, output_type, "raise", call))

    @shows_settings(CallSettings)
    async def fork(
        self,
        at: int,
        *,
        model: str | ChatModel | None = None,
        results: Mapping[str, Any] | None = None,
        deny: Sequence[str] = (),
        message: Prompt | None = None,
        replay: bool = False,
        strict: bool = False,
        id: str | None = None,
        output_type: Any = None,
        **call: Unpack[CallSettings[DepsT]],
    ) -> Chat[T, DepsT]:
        """Copy the conversation up to the record `at` to a new one, and return it with one fact changed.

        No model is called and no tool runs: `await fork.resume()` continues the turn, unless `fork.status` is
        `complete`. `results` replaces results of this process's tools by call id, `deny` denies calls, `message` is
        taken by the next request. With `replay`, what follows in the log is copied too, for as long as the requests
        are the same; `fork.forked_from` says at which field they parted, and `strict` raises ConfigurationError
        there. `system` and other settings of a call apply to the fork.
        """
        from sidestream.agent.forking import Forking, ForkPlan, changed_agent, named
        from sidestream.store.log.forking import Changes

        if self._store is None:
            raise ConfigurationError("Chat.fork() needs a store; pass store= to Chat")
        said = None if message is None else user_message(message)
        system = call.get("system")
        prompt = system if system is None or isinstance(system, str) else getattr(system, "__name__", "a function")
        denied = (deny,) if isinstance(deny, str) else tuple(deny)
        changes = Changes(results=results or {}, denied=denied, message=said, model=named(model), system=prompt)
        agent = changed_agent(self.agent, model, system)
        plan = ForkPlan(
            store=self._store,
            conversation=self.id,
            at=at,
            changes=changes,
            replays=replay or strict,
            is_strict=strict,
            output_type=output_type,
            call=call,
        )
        made = await Forking(agent, plan).build()
        owner, slash, _ = self.id.rpartition("/")
        fork = Chat(agent, store=self._store, id=id or f"{owner}{slash}chat_{uuid.uuid4().hex}", log=self._log)
        await self._store.append(fork.id, 0, made.rows, made.blobs)
        await fork.load()
        return fork

    async def discard(self) -> None:
        """Drop the last turn unless it is complete, so that the chat continues from before it."""
        await self._loaded()
        if self._run_state is None:
            return
        if self._writer is not None:
            from sidestream.store.records import TurnDiscarded

            await self._settle(self._writer, TurnDiscarded())
        if self._writer is None or self.store_error is not None:
            self._messages = list(self._before)
        self._run_state, self.status = None, "complete"

    async def keep(self) -> None:
        """Keep the output of the last turn if it was stopped or failed, so that the chat continues after it.

        Needs a store. Does nothing after a complete turn. Without this call, such a turn is dropped.
        """
        await self._loaded()
        if self._writer is None:
            raise ConfigurationError("Chat.keep() needs a store; pass store= to Chat")
        if self._run_state is not None:
            from sidestream.store.records import TurnKept

            await self._settle(self._writer, TurnKept())

    async def withdraw(self, grant: str) -> None:
        """Revoke a remembered approval by its id, so that the next call to its tool needs an approval.

        Use `Run.withdraw` during a run. Raises ConfigurationError for an unknown id.
        """
        await self._loaded()
        left = without_grant(self._grants, grant)
        if left == self._grants:
            raise ConfigurationError(f"unknown grant {grant!r}; chat.grants lists those of this conversation")
        await self._set_grants(left)

    async def _set_grants(self, grants: Iterable[Grant]) -> None:
        """Replace the remembered approvals, for a chat that continues another one, as a branch does."""
        await self._loaded()
        self._grants = tuple(grants)
        if self._run_state is not None:
            self._run_state.turn.grants = self._grants
        if self._writer is not None:
            self._writer.granted(self._grants)
            if self.head:  # A new conversation is written with its first turn.
                await self._writer.commit()

    async def check_evidence(self, result: ChatResult[OutT], *, allow_hosts: Sequence[str] = ()) -> ChatResult[OutT]:
        """Check a result of this chat as `result.check_evidence` does, and log the check with what was read.

        Files that only the provider has are read with the agent.

        `allow_hosts` are hosts, or `host:port`, that may have a private address. Raises ConflictError if a run
        writes to the log at the same time.
        """
        from sidestream.agent.files import CitedFileReader
        from sidestream.portable.fetch.cited import CitedFiles, compare
        from sidestream.results.citations import with_evidence

        await self._loaded()
        reader = CitedFileReader(self.agent, self.agent.server_side_tools)
        files = CitedFiles(result.parts, [*self._messages, *result.messages], reader)
        checked = await compare(result.claims(), allow_hosts, files)
        if self._writer is not None and self.head and checked.claims:
            self._writer.checked(checked.record, checked.bodies)
            await self._writer.commit()
        return with_evidence(result, checked.evidence, checked.marks)

    async def _log_refusal(self, approval_id: str, reason: str) -> None:
        """Record in the log, if there is one, that a decision was refused. Nothing else changes."""
        if self._writer is not None:
            from sidestream.store.records import ApprovalRefused

            self._writer.add(ApprovalRefused(approval_id, reason))
            await self._writer.commit()

    async def _settle(self, writer: Writer, body: Body) -> None:
        """Record how the last turn is settled, and load the resulting state."""
        writer.add(body)
        await writer.commit()
        await self.load()

    async def _started(
        self, prompt: Prompt, output_type: Any, errors: StreamErrors, call: CallSettings[DepsT]
    ) -> Run[Any]:
        await self._loaded()
        return self.stream(prompt, output_type=output_type, errors=errors, **call)

    async def _has_recovered(self) -> bool:
        """Retry pending writes, and return False while the store still fails.

        Raises ConflictError if the store has other turns now.
        """
        writer = self._writer
        if writer is None or isinstance(writer.error, ConflictError | None):
            return True  # After a conflict, the log counts.
        error = await writer.recover()
        if isinstance(error, ConflictError):
            raise error
        return error is None

    async def _loaded(self) -> None:
        if self._is_stale or self.store_error is not None:
            await self.load()

    def _check_loaded(self) -> None:
        if self._is_stale:
            raise ConfigurationError(
                "the conversation is not loaded, or its last turn failed; call `await chat.load()` first"
            )

    def _hooks(self) -> RunHooks:
        """Return the hooks through which the chat observes its run."""
        writer = self._writer
        if writer is None:
            return RunHooks(ended=self._take, decided=spend, conversation=self.id)
        writer.run_details = self.run_details
        return RunHooks(
            writer,
            self._take,
            decided=spend,
            read_blobs=writer.read_blobs,
            conversation=self.id,
            store=self._store,
        )

    def _following(self, run: Run[OutT]) -> Run[OutT]:
        """Return a started run, after whose start the log may have records that are not loaded yet."""
        self._is_stale = self._writer is not None
        run.turn.state.grants = self._grants
        return run

    def _take(self, turn: Turn) -> None:
        self._is_stale = False
        self._messages, self._grants = list(turn.state.messages), turn.state.grants
        state = RunState(turn.state)
        self._run_state = state if state.approvals else None
        self.status = "waiting" if state.approvals else "complete"
