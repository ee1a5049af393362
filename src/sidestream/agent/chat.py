"""A chat: a history that grows turn by turn. A turn that fails or is cancelled leaves it as it was."""

import uuid
from collections.abc import AsyncGenerator, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from sidestream.agent.agent import Agent
from sidestream.agent.checks import user_message
from sidestream.agent.settings import CallSettings, Prompt, shows_settings
from sidestream.errors import ConfigurationError, ConflictError, StoreError
from sidestream.jsontext import JsonObject
from sidestream.messages.message import ChatMessage, messages_from_json, messages_to_json
from sidestream.output import OutputType
from sidestream.results.results import ChatResult
from sidestream.run.blocking import SyncRun, refuse_running_loop, sync_chunks, wait_for
from sidestream.run.run import Run
from sidestream.run.settings import RunHooks, StreamErrors
from sidestream.text.redaction import Secret
from sidestream.tools.approvals import Decision, PendingApproval, check_unspent, spend
from sidestream.tools.grants import Grant, without_grant
from sidestream.turn.machine import Turn
from sidestream.turn.state import MUST_RESUME, TURN_STATUSES, RunState, TurnStatus

if TYPE_CHECKING:
    from sidestream.store.log.writer import LogDetail, Writer
    from sidestream.store.protocol import Store
    from sidestream.store.records import Body

T = TypeVar("T")
OutT = TypeVar("OutT")


class Chat(Generic[T]):
    """A conversation with an agent. Change `chat.agent` to continue with another model or provider.

    ```python
    chat = Chat(agent)
    await chat.send("My name is Ada.")
    print((await chat.send("What is my name?")).output)
    ```

    `messages` is a history to begin with. With a store, every run is written to the conversation `id` as it streams,
    and a chat with the same id continues where the log ends: `Chat(agent, store="talks.db", id="support-42")`. `log`
    says how closely: previews, such as an image's first versions, are kept only with `log=LogDetail(previews=True)`.
    """

    def __init__(
        self,
        agent: Agent[T],
        messages: Iterable[ChatMessage] = (),
        *,
        store: "Store | str | Path | None" = None,
        id: str | None = None,
        log: "LogDetail | None" = None,
    ) -> None:
        if id is not None and store is None:
            raise ConfigurationError("a chat with an id needs a store: Chat(agent, store=open_store(), id=…)")
        self.agent = agent
        self._is_new = id is None
        """True while nobody else can know the id."""
        self.id = f"chat_{uuid.uuid4().hex}" if id is None else id
        self.status: TurnStatus = "complete"
        """How the last turn stands."""
        self._messages = list(messages)
        self._before = self._messages
        """The history before the turn that waits."""
        self._is_stale = store is not None
        """True while the log may say more than is known here."""
        self._run_state: RunState | None = None
        self._writer: Writer | None = None
        self._grants: tuple[Grant, ...] = ()
        self._decided: frozenset[tuple[str, str]] = frozenset()
        """Decisions that the log has."""
        self._log = log
        self.run_details: JsonObject = {}
        """Kept in the log with each run, as the first record's `details`. No secrets: they would be stored."""
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
        """The history so far."""
        self._check_loaded()
        return tuple(self._messages)

    @property
    def run_state(self) -> RunState | None:
        """Where the last turn stands, unless it is complete: `chat.resume` continues from here."""
        self._check_loaded()
        return self._run_state

    @property
    def approvals(self) -> tuple[PendingApproval, ...]:
        """What waits for a person: `await chat.resume([approval.approve() for approval in chat.approvals])`."""
        state = self.run_state
        return state.approvals if state is not None else ()

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Tools that a person has allowed in this conversation, with `approval.approve(remember="conversation")`."""
        self._check_loaded()
        return self._grants

    @property
    def head(self) -> int:
        """The number of the last record that is safe in the log."""
        return self._writer.head if self._writer is not None else 0

    @property
    def store_error(self) -> StoreError | None:
        """Why the conversation is not recorded at the moment, if so. Its runs continue; the next turn, or `load`, tries
        to write what is missing."""
        return self._writer.error if self._writer is not None else None

    def to_json(self) -> str:
        """The history as JSON text."""
        return messages_to_json(self.messages)

    @classmethod
    def from_json(cls, agent: Agent[T], text: str | bytes) -> "Chat[T]":
        """The chat whose history `to_json` wrote."""
        return cls(agent, messages_from_json(text))

    async def load(self) -> None:
        """Reads the conversation from the store. The first turn does it where it was not done before."""
        if self._store is None:
            return
        if not await self._has_recovered():
            # What could not be written is only here: the chat continues in memory.
            self._is_stale = False
            return
        from sidestream.store.log.conversation import Conversation
        from sidestream.store.log.fold import LogState
        from sidestream.store.log.writer import USUAL_DETAIL, Writer

        # Reading what cannot be there only shows that the store works, which one that was written to has shown.
        is_empty = self._is_new and getattr(self._store, "has_written", False)
        state = LogState(head=0, messages=()) if is_empty else await Conversation(self._store, self.id).state()
        self._is_new = False
        writer = Writer(self._store, self.id, state.head, detail=self._log or USUAL_DETAIL)
        if state.head and self._writer is None and self._messages:
            raise ConfigurationError(f"the conversation {self.id!r} has a history of its own; leave out messages")
        if not state.head and self._writer is None:
            await writer.add_history(self._messages)
        else:
            self._messages = list(state.messages)
        self._run_state, self.status, self._decided = state.run_state, state.status, state.decided
        self._grants = state.grants
        self._writer, self._is_stale = writer, False

    @overload
    def stream(self, prompt: Prompt, *, errors: StreamErrors = ..., **call: Unpack[CallSettings]) -> Run[T]: ...
    @overload
    def stream(
        self,
        prompt: Prompt,
        *,
        output_type: type[OutT] | OutputType[OutT],
        errors: StreamErrors = ...,
        **call: Unpack[CallSettings],
    ) -> Run[OutT]: ...
    @overload
    def stream(
        self, prompt: Prompt, *, output_type: Any, errors: StreamErrors = ..., **call: Unpack[CallSettings]
    ) -> Run[Any]: ...
    @shows_settings(CallSettings)
    def stream(
        self,
        prompt: Prompt,
        *,
        output_type: Any = None,
        errors: StreamErrors = "raise",
        **call: Unpack[CallSettings],
    ) -> Run[Any]:
        """The typed parts of one turn. The turn counts once its last part has come. Call `load` first with a store."""
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
        # A chat belongs to the agent's own classes; nobody else needs to follow its runs this way.
        begun = self.agent._begun  # pyright: ignore[reportPrivateUsage]
        return self._following(begun(message, output_type, {**call, "history": self._messages}, self._hooks(), errors))

    @overload
    def resume_stream(
        self, decisions: Iterable[Decision] = (), *, errors: StreamErrors = ..., **call: Unpack[CallSettings]
    ) -> Run[T]: ...
    @overload
    def resume_stream(
        self,
        decisions: Iterable[Decision] = (),
        *,
        output_type: type[OutT] | OutputType[OutT],
        errors: StreamErrors = ...,
        **call: Unpack[CallSettings],
    ) -> Run[OutT]: ...
    @overload
    def resume_stream(
        self,
        decisions: Iterable[Decision] = (),
        *,
        output_type: Any,
        errors: StreamErrors = ...,
        **call: Unpack[CallSettings],
    ) -> Run[Any]: ...
    @shows_settings(CallSettings)
    def resume_stream(
        self,
        decisions: Iterable[Decision] = (),
        *,
        output_type: Any = None,
        errors: StreamErrors = "raise",
        **call: Unpack[CallSettings],
    ) -> Run[Any]:
        """The typed parts of the rest of the last turn."""
        self._check_loaded()
        decided = list(decisions)
        check_unspent(decided, self._decided)
        if self._run_state is None:
            raise ConfigurationError("there is nothing to resume: the last turn is complete")
        resumed = self.agent._resumed  # pyright: ignore[reportPrivateUsage]
        return self._following(resumed(self._run_state, decided, output_type, call, self._hooks(), errors))

    @overload
    async def send(self, prompt: Prompt, **call: Unpack[CallSettings]) -> ChatResult[T]: ...
    @overload
    async def send(
        self, prompt: Prompt, *, output_type: type[OutT] | OutputType[OutT], **call: Unpack[CallSettings]
    ) -> ChatResult[OutT]: ...
    @overload
    async def send(self, prompt: Prompt, *, output_type: Any, **call: Unpack[CallSettings]) -> ChatResult[Any]: ...
    @shows_settings(CallSettings)
    async def send(self, prompt: Prompt, *, output_type: Any = None, **call: Unpack[CallSettings]) -> ChatResult[Any]:
        """One turn."""
        await self._loaded()
        return await self.stream(prompt, output_type=output_type, **call).result()

    @shows_settings(CallSettings)
    async def send_stream(
        self, prompt: Prompt, *, output_type: Any = None, **call: Unpack[CallSettings]
    ) -> AsyncGenerator[ChatResult[str]]:
        """One turn in chunks. It counts once its last chunk has come."""
        await self._loaded()
        chunks = self.stream(prompt, output_type=output_type, **call).chunks()
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    @overload
    async def resume(self, decisions: Iterable[Decision] = (), **call: Unpack[CallSettings]) -> ChatResult[T]: ...
    @overload
    async def resume(
        self,
        decisions: Iterable[Decision] = (),
        *,
        output_type: type[OutT] | OutputType[OutT],
        **call: Unpack[CallSettings],
    ) -> ChatResult[OutT]: ...
    @overload
    async def resume(
        self, decisions: Iterable[Decision] = (), *, output_type: Any, **call: Unpack[CallSettings]
    ) -> ChatResult[Any]: ...
    @shows_settings(CallSettings)
    async def resume(
        self, decisions: Iterable[Decision] = (), *, output_type: Any = None, **call: Unpack[CallSettings]
    ) -> ChatResult[Any]:
        """Resumes the last turn: after approvals, an error, a cancellation or a crash."""
        await self._loaded()
        return await self.resume_stream(decisions, output_type=output_type, **call).result()

    def send_sync(self, prompt: Prompt, **call: Unpack[CallSettings]) -> ChatResult[T]:
        """One turn, for code that is not async: plain scripts and threads."""
        return wait_for(partial(self.send, prompt, **call), "send_sync", "await chat.send(...)")

    def resume_sync(self, decisions: Iterable[Decision] = (), **call: Unpack[CallSettings]) -> ChatResult[T]:
        """`resume` for code that is not async."""
        return wait_for(partial(self.resume, decisions, **call), "resume_sync", "await chat.resume(...)")

    def stream_sync(
        self, prompt: Prompt, *, errors: StreamErrors = "raise", **call: Unpack[CallSettings]
    ) -> SyncRun[T]:
        """The typed parts of one turn, for code that is not async."""
        refuse_running_loop("stream_sync", "async with chat.stream(...) as run")
        return SyncRun(lambda: self._started(prompt, errors, call))

    def send_stream_sync(self, prompt: Prompt, **call: Unpack[CallSettings]) -> Generator[ChatResult[str]]:
        """One turn in chunks, for code that is not async."""
        refuse_running_loop("send_stream_sync", "async for chunk in chat.send_stream(...)")
        return sync_chunks(lambda: self._started(prompt, "raise", call))

    async def discard(self) -> None:
        """Drops the last turn, where it is not complete: the chat continues from before it."""
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
        """Keeps what the last turn has said, where it was stopped or failed: the chat continues after it.

        Needs a store. Does nothing after a turn that is complete. Without this, such a turn counts no more.
        """
        await self._loaded()
        if self._writer is None:
            raise ConfigurationError("only a chat with a store knows what a turn that did not end has said")
        if self._run_state is not None:
            from sidestream.store.records import TurnKept

            await self._settle(self._writer, TurnKept())

    async def withdraw(self, grant: str) -> None:
        """Withdraws a grant, by its id: the next call of its tool needs an approval. During a run, `Run.withdraw` does.

        Raises ConfigurationError for an unknown id.
        """
        await self._loaded()
        left = without_grant(self._grants, grant)
        if left == self._grants:
            raise ConfigurationError(f"there is no grant {grant!r} in this conversation: see chat.grants")
        await self.set_grants(left)

    async def set_grants(self, grants: Iterable[Grant]) -> None:
        """Allows these tools from now on, and no others: for a chat that continues another one, as a branch does."""
        await self._loaded()
        self._grants = tuple(grants)
        if self._run_state is not None:
            self._run_state.turn.grants = self._grants
        if self._writer is not None:
            self._writer.granted(self._grants)
            if self.head:  # A new conversation is written with its first turn.
                await self._writer.commit()

    async def log_refusal(self, approval_id: str, reason: str) -> None:
        """Records in the log, if there is one, that a decision was refused. Nothing else changes."""
        if self._writer is not None:
            from sidestream.store.records import ApprovalRefused

            self._writer.add(ApprovalRefused(approval_id, reason))
            await self._writer.commit()

    async def _settle(self, writer: "Writer", body: "Body") -> None:
        """Writes what becomes of the last turn, and reads what follows from it."""
        writer.add(body)
        await writer.commit()
        await self.load()

    async def _started(self, prompt: Prompt, errors: StreamErrors, call: CallSettings) -> Run[T]:
        await self._loaded()
        return self.stream(prompt, errors=errors, **call)

    async def _has_recovered(self) -> bool:
        """False while a failing store does not take what it lacks. Raises ConflictError if it has other turns now."""
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
            raise ConfigurationError("the conversation has not been read, or its last turn failed: `await chat.load()`")

    def _hooks(self) -> RunHooks:
        """What the chat must learn of its run."""
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
        """The run, which was not refused: from now on the log may say more than is known here."""
        self._is_stale = self._writer is not None
        run.turn.state.grants = self._grants
        return run

    def _take(self, turn: Turn) -> None:
        self._is_stale = False
        self._messages, self._grants = list(turn.state.messages), turn.state.grants
        state = RunState(turn.state)
        self._run_state = state if state.approvals else None
        self.status = "waiting" if state.approvals else "complete"
