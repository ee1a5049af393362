"""What a run needs besides its turn, and what its recorder and its listener must be."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from sidestream.errors import ConfigurationError, RunError
from sidestream.limits import Limits
from sidestream.messages.fold import MessageMetadata
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import LoadedReplays
from sidestream.messages.steering import steered_message
from sidestream.output import OutputType
from sidestream.providers.model_settings import ModelSettings
from sidestream.providers.protocol import ChatModel, ModelRequest
from sidestream.results.results import ResultMetadata
from sidestream.run.system import RunContext, System, system_text
from sidestream.stream.parts import Finish, FinishReason, Steer, StreamPart, ToolCall, Usage
from sidestream.tools.approvals import (
    Decision,
    PendingApproval,
    Policy,
    Question,
    Ruling,
    Suspended,
    judge,
    unless_checked,
)
from sidestream.tools.configs import changed
from sidestream.tools.grants import Grant
from sidestream.tools.interruption import InterruptionPolicy
from sidestream.tools.server_side import ServerSideTool
from sidestream.tools.tool import Tool, ToolOutcome
from sidestream.tools.toolset import ToolBox
from sidestream.transport.calls import HttpCall, HttpResponse, Transport

if TYPE_CHECKING:
    from sidestream.run.context import ContextKeeper
    from sidestream.turn.machine import Turn


class ObservedRun(Protocol):
    """What a listener may know of a run beside its turn. The model may change: another one can stand in."""

    @property
    def model(self) -> ChatModel: ...

    @property
    def opening(self) -> tuple[ChatMessage, ...]:
        """The user's own messages."""
        ...

    @property
    def is_typed(self) -> bool:
        """True if it has an output type."""
        ...

    @property
    def conversation(self) -> str | None:
        """The id of its conversation, if it has one."""
        ...


class RunListener(Protocol):
    """Follows one run. Its methods are called in the order of what happens; none may raise."""

    def started(self, turn: "Turn", settings: ObservedRun) -> None:
        """The run begins, or resumes."""
        ...

    def active(self) -> AbstractContextManager[object]:
        """Surrounds each piece of the run's work, between two of its parts."""
        ...

    def prepared(self, request: ModelRequest) -> None:
        """The next request is known."""
        ...

    def sending(self, call: HttpCall) -> AbstractContextManager[object]:
        """Surrounds the request, until its answer begins to arrive."""
        ...

    def opened(self, response: HttpResponse) -> None:
        """The answer begins to arrive."""
        ...

    def refused(self, error: RunError) -> None:
        """The request got no answer. The run may make another one."""
        ...

    def feed(self, parts: Sequence[StreamPart]) -> None:
        """The next parts of the stream."""
        ...

    def tool(self, call: ToolCall, tool: Tool | None) -> AbstractContextManager[Callable[[ToolOutcome], None]]:
        """Surrounds the execution of a client tool, in its task; the callable takes the outcome."""
        ...

    def ended(self, reason: FinishReason | None = None, error: BaseException | None = None) -> None:
        """The run is over, or waits; without a reason or an error it was cancelled. Only the first call counts."""
        ...


class Recorder(Protocol):
    """Records a run as it streams. It writes concurrently with the run; `commit` waits until all is safe."""

    def begin(
        self,
        run_id: str,
        *,
        model: str,
        opening: Sequence[ChatMessage],
        message_metadata: MessageMetadata,
        decisions: Sequence[Decision],
    ) -> None:
        """The run begins with its opening messages, or, without any, resumes after these decisions."""
        ...

    def feed(self, parts: Iterable[StreamPart]) -> None:
        """The next parts of the stream."""
        ...

    def prepared(self, without: frozenset[str], *, defers_output: bool) -> None:
        """A request is about to be sent that differs from the usual one."""
        ...

    def asked(self, approval: PendingApproval) -> None:
        """A call waits for a person."""
        ...

    def granted(self, grants: Sequence[Grant]) -> None:
        """These tools are allowed in the conversation from now on, and no others."""
        ...

    def tool_started(self, call: ToolCall, key: str, policy: InterruptionPolicy) -> None:
        """A client tool is about to run, with this idempotency key; it does once this is safe."""
        ...

    def tool_suspended(self, call_id: str, suspended: Suspended) -> None:
        """A tool waits for a person, or for work that is done elsewhere."""
        ...

    def left(self) -> None:
        """The run is left where it is, for another process to continue; nothing is written after the next `commit`."""
        ...

    def cancelled(self) -> None:
        """The run has been stopped before its end."""
        ...

    async def commit(self) -> StreamPart | None:
        """Waits until everything so far is safe. Where it cannot be, gives a notice for the stream, once.

        Raises ConflictError where someone else has written in between, or ApprovalError where they have used the same
        decision: the run must stop.
        """
        ...


StreamErrors = Literal["raise", "parts"]
"""What a failed run does when its parts are iterated: raise after the last part, or nothing beyond its `error` part."""
_STREAM_ERRORS = get_args(StreamErrors)


class RunHooks(Struct, frozen=True):
    """Who else follows a run."""

    recorder: Recorder | None = None
    ended: "Callable[[Turn], None] | None" = None
    """Called once when the run has come to its end or waits, unless it failed."""
    decided: Callable[[Sequence[Decision]], None] | None = None
    """Called once before decisions take effect. May raise ApprovalError: then nothing happens."""
    read_blobs: Callable[[Sequence[str]], Awaitable[Mapping[str, bytes]]] | None = None
    """Reads what messages of the history refer to from the log, by digest; what it does not have is left out."""
    listener: RunListener | None = None
    conversation: str | None = None
    """The id of the chat that the run belongs to."""
    store: Any = None
    """The store of that chat, if it has one: tools that run here keep their data in it."""


class ModelSetup(Struct, kw_only=True):
    """What of a run depends on the model that it calls."""

    model: ChatModel
    transport: Transport
    toolbox: ToolBox = field(default_factory=lambda: ToolBox({}))
    hosted: tuple[ServerSideTool, ...] = ()
    handed_over: frozenset[str] = frozenset()
    """Functions that answer the provider's own call types."""
    settings: ModelSettings = ModelSettings()
    options: Any = None
    remote_policies: Mapping[str, Policy] = {}
    """Label of a remote MCP server → its policy, wherever it is called from."""
    warnings: tuple[str, ...] = ()
    """Warnings for the start of the stream, besides those of encoding the request."""
    context: "ContextKeeper | None" = None
    """Keeps the history within the model's window, if it is to be kept there."""
    price: Callable[[Finish], Usage] | None = None
    """Gives the usage of a response with its cost."""

    @property
    def name(self) -> str:
        """The model as users write it."""
        return f"{self.model.provider}:{self.model.name}"


class RunSettings(ModelSetup, kw_only=True):
    """What a run needs besides its turn."""

    limits: Limits
    system: System | None = None
    deps: Any = None
    """What the caller passes to tools, policies and the system prompt. Never serialised."""
    stream: bool = True
    policy: Policy | None = None
    """The explicit policy of the agent or the call; None if neither has one."""
    output: OutputType[Any] | None = None
    opening: tuple[ChatMessage, ...] = ()
    message_metadata: MessageMetadata = "session"
    result_metadata: ResultMetadata = "accumulated"
    hooks: RunHooks = RunHooks()
    errors: StreamErrors = "raise"
    fallbacks: tuple[ModelSetup, ...] = ()
    """Models to call if this one fails before it has said anything, in this order."""
    first_step: int | None = None
    """The last step before the run's first request, once it is made."""

    def __post_init__(self) -> None:
        if self.errors not in _STREAM_ERRORS:
            raise ConfigurationError(f"errors must be 'raise' or 'parts', not {self.errors!r}")

    def use(self, setup: ModelSetup) -> None:
        """Continues with another model."""
        for name in ModelSetup.__struct_fields__:
            setattr(self, name, getattr(setup, name))

    @property
    def conversation(self) -> str | None:
        """The id of the conversation that the run belongs to, if it has one."""
        return self.hooks.conversation

    @property
    def is_typed(self) -> bool:
        """True if the run has an output type."""
        return self.output is not None

    def request(
        self, turn: "Turn", system: str | None, replays: LoadedReplays, steers: Iterable[Steer] = ()
    ) -> ModelRequest:
        """The next request to the model, with what the user has said since the last one."""
        self.first_step = turn.state.step if self.first_step is None else self.first_step
        settings = self.settings
        if settings.tool_choice is not None and turn.state.step > self.first_step:
            settings = changed(settings, tool_choice=None)
        return ModelRequest(
            messages=(*turn.state.messages, *map(steered_message, steers)),
            system=system,
            tools=self.toolbox.specs(turn.state.messages),
            server_side_tools=self.hosted,
            output_schema=self.output.schema if self.output is not None else None,
            settings=settings,
            options=self.options,
            stream=self.stream,
            without=turn.state.without,
            replays=replays,
            compaction=self.context.compaction if self.context is not None else None,
        )

    async def system_text(self, turn: "Turn") -> str | None:
        """The system prompt of the next request. Raises ConfigurationError if its function fails."""
        return await system_text(
            self.system,
            lambda: RunContext(
                deps=self.deps,
                provider=self.model.provider,
                model=self.model.name,
                messages=tuple(turn.state.messages),
                step=turn.state.step + 1,
                run_id=turn.state.run_id,
            ),
        )

    async def verdict_on(self, question: Question) -> Ruling:
        """Whether a call may run: by the policy of its tool, its remote server or the run. By default functions do."""
        if question.is_external:
            return "ask-each"
        tool = None if question.is_remote else self.toolbox.tools.get(question.tool)
        policy = tool.approval if tool is not None else None
        if policy is None and question.server_label is not None:
            policy = self.remote_policies.get(question.server_label)
        if policy is None:
            policy = self.policy
        if policy is None:
            # A provider that requests approval of its own call was configured to.
            policy = "ask" if question.is_remote or (tool is not None and tool.asks_by_default) else "run"
        # The stored question has no deps.
        question = question if self.deps is None else replace(question, deps=self.deps)
        verdict = await judge(question, policy, is_sensitive=tool is not None and tool.is_sensitive)
        return unless_checked(verdict, question)
