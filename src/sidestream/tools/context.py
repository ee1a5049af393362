"""What a tool may know of the call that it answers."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from msgspec import Struct

from sidestream.messages.message import ChatMessage
from sidestream.stream.parts import Custom, File, Json, Source, StreamPart, ToolEvent, ToolResult
from sidestream.tools.approvals import Suspended
from sidestream.tools.spec import ToolSpec

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    from sidestream.tools.outcome import ToolOutcome

    DepsT = _TypeVar("DepsT", default=Any)
else:
    DepsT = TypeVar("DepsT")


Emitted = ToolEvent | File | Source | ToolResult | Custom
"""What a tool may emit on its way: a result only as a preview (`preliminary`)."""


def _ignore(value: Json) -> None:
    pass


async def _keep_nothing(state: str) -> None:
    pass


class CallsTools(Protocol):
    """Calls other tools of the run, under its policies and limits."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tools that can be called."""
        ...

    async def call(self, call_id: str, name: str, arguments: Json, *, is_approved: bool | None = None) -> "ToolOutcome":
        """The outcome; a suspended one, with the approval that the call needs, unless `is_approved` decides."""
        ...

    def seen(self, name: str) -> None:
        """Notes that a result of this tool, from an earlier attempt, has been used."""
        ...


class _NoTools:
    names: tuple[str, ...] = ()

    async def call(self, call_id: str, name: str, arguments: Json, *, is_approved: bool | None = None) -> "ToolOutcome":
        raise LookupError(name)

    def seen(self, name: str) -> None:
        pass


_NO_TOOLS = _NoTools()


class ToolContext(Struct, Generic[DepsT], frozen=True):
    """The call that a tool answers. A parameter of this type is filled in and left out of the schema.

    ```python
    async def transfer(amount: int, context: ToolContext[Bank]) -> str:
        context.progress("booking")
        return context.deps.book(amount, key=context.idempotency_key)

    await agent.send("Send 5 euros to Ada.", tools=[transfer], deps=Bank())
    ```

    `ToolContext[MyDeps]` types `deps`, the value that the caller passed as `agent.send(…, deps=…)`; None without.
    `progress` accepts any value that has a JSON form, from any thread; after the call it does nothing.
    """

    call_id: str
    name: str
    progress: Callable[[Json], None] = _ignore
    forward: Callable[[StreamPart], None] = _ignore
    """For tools that are agents: emits a part of their own run in the stream of this one."""
    suspended: Suspended | None = None
    """For tools that can stop and continue: where they stopped, and the decisions made since."""
    deps: DepsT = cast("DepsT", None)
    run_id: str = ""
    idempotency_key: str = ""
    """The same each time that this call is executed, and different for every other call: pass it to a service that
    ignores repeated requests. A call is executed again after an interruption if its tool says so, or a person does."""
    attempt: int = 1
    """Which time the call is executed: more than 1 after an interruption."""
    checkpoint: Callable[[str], Awaitable[None]] = _keep_nothing
    """For tools whose work is done elsewhere: if this process ends, the call continues from this state.

    Returns once the state is in the log, if there is one. The next call gets it as `suspended`.
    """
    is_left: Callable[[], bool] = bool
    """For tools whose work is done elsewhere: True if whoever resumes the run continues a call that is cancelled."""
    emit: Callable[[Emitted], None] = _ignore
    """Emits a part of this call, from any thread: an event, a file, a source or a preview of the result.

    The part gets the call's id and tool; a file or source without an id gets one. After the call it does nothing.
    """
    history: Sequence[ChatMessage] = ()
    """The messages of the run up to this call."""
    deferred: Callable[[], Sequence[ToolSpec]] = tuple
    """For a tool that searches tools: those whose loading is deferred."""
    conversation: str | None = None
    """The id of the chat that the run belongs to."""
    store: Any = None
    """The store of the chat (`sidestream.store.Store`), if it has one."""
    sources: tuple[str, ...] = ()
    """Untrusted sources that the conversation had read when the model made the call."""
    tools: "CallsTools" = _NO_TOOLS
    """For tools that run programs: the run's other tools."""
