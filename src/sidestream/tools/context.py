"""The context of a call, as its tool sees it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from msgspec import Struct

from sidestream.messages.message import ChatMessage
from sidestream.parts import Custom, File, Json, Source, StreamPart, ToolEvent, ToolResult
from sidestream.tools.approvals import Suspended
from sidestream.tools.spec import ToolSpec

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    from sidestream.tools.outcome import ToolOutcome

    DepsT = _TypeVar("DepsT", default=Any)
else:
    DepsT = TypeVar("DepsT")


Emitted = ToolEvent | File | Source | ToolResult | Custom
"""Part that a tool may emit during its call. A result is allowed only as a preview (`preliminary`)."""


def _ignore(value: Json) -> None:
    pass


async def _keep_nothing(state: str) -> None:
    pass


class CallsTools(Protocol):
    """Calls other tools of the run, under its policies and limits."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the callable tools."""
        ...

    async def call(self, call_id: str, name: str, arguments: Json, *, is_approved: bool | None = None) -> "ToolOutcome":
        """Call a tool and return its outcome.

        If the call needs approval and `is_approved` is None, the outcome is suspended and holds the pending approval.
        """
        ...

    def answer(self, call_id: str, name: str) -> "ToolOutcome | None":
        """Return the outcome that the call had in an earlier attempt, or None if it had none."""
        ...


class _NoTools:
    names: tuple[str, ...] = ()

    async def call(self, call_id: str, name: str, arguments: Json, *, is_approved: bool | None = None) -> "ToolOutcome":
        raise LookupError(name)

    def answer(self, call_id: str, name: str) -> "ToolOutcome | None":
        return None


_NO_TOOLS = _NoTools()


class ToolContext(Struct, Generic[DepsT], frozen=True):
    """The context of the call that a tool answers. A parameter of this type is filled in and left out of the schema.

    ```python
    async def transfer(amount: int, context: ToolContext[Bank]) -> str:
        context.progress("booking")
        return context.deps.book(amount, key=context.idempotency_key)

    await agent.send("Send 5 euros to Ada.", tools=[transfer], deps=Bank())
    ```

    `ToolContext[MyDeps]` types `deps`, the value passed as `agent.send(…, deps=…)`, or None.
    `progress` accepts any value that has a JSON form, from any thread; after the call it does nothing.
    """

    call_id: str
    name: str
    progress: Callable[[Json], None] = _ignore
    forward: Callable[[StreamPart], None] = _ignore
    """Emits a part of a subagent's run in this run's stream."""
    suspended: Suspended | None = None
    """State of a paused call, and the decisions made since. Set for tools that can pause and continue."""
    deps: DepsT = cast("DepsT", None)
    run_id: str = ""
    idempotency_key: str = ""
    """Identifies this call across repeated executions; no other call has the same key. Pass it to a service that
    ignores repeated requests. An interrupted call is executed again if its tool's policy or the user says so."""
    attempt: int = 1
    """Number of this execution of the call. It exceeds 1 after an interruption."""
    checkpoint: Callable[[str], Awaitable[None]] = _keep_nothing
    """Stores a state from which the call continues if this process ends.

    Use it for work done outside this process. It returns once the state is in the log, if there is one. The next
    execution gets the state as `suspended`.
    """
    is_left: Callable[[], bool] = bool
    """Returns whether a cancelled call will be continued when the run is resumed, so that its external work should go
    on."""
    emit: Callable[[Emitted], None] = _ignore
    """Emits a part of this call, from any thread: an event, a file, a source or a preview of the result.

    The part gets the call's id and tool; a file or source without an id gets one. Ignored after the call has ended.
    """
    history: Sequence[ChatMessage] = ()
    """Messages of the run up to this call."""
    deferred: Callable[[], Sequence[ToolSpec]] = tuple
    """Returns the deferred tools, for a tool that searches them."""
    conversation: str | None = None
    """Id of the chat that the run belongs to."""
    store: Any = None
    """Store of the chat (`sidestream.store.Store`), if it has one."""
    sources: tuple[str, ...] = ()
    """Untrusted sources that the conversation had read when the model made the call."""
    tools: "CallsTools" = _NO_TOOLS
    """The run's other tools, for tools that run programs."""


_DepsT_contra = TypeVar("_DepsT_contra")


class TakesContext(Protocol[_DepsT_contra]):
    """A function with a keyword `context`. Of other parameters, type checkers find the context by its position."""

    def __call__(self, *args: Any, context: ToolContext[_DepsT_contra], **kwargs: Any) -> Any: ...
