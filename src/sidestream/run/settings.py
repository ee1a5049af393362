"""The settings of a run besides its turn, and the protocols of its recorder and listener."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from sidestream.errors import Blocked, ConfigurationError, RunError, ToolRaisedError
from sidestream.limits import Limits
from sidestream.messages.fold import MessageMetadata
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import LoadedReplays
from sidestream.messages.steering import steered_message
from sidestream.output import OutputType
from sidestream.parts import Finish, FinishReason, Steer, StreamPart, ToolCall, ToolResult, Usage
from sidestream.providers.model_settings import ModelSettings
from sidestream.providers.protocol import ChatModel, Decoder, ModelRequest
from sidestream.results.results import ResultMetadata
from sidestream.run.system import RunContext, System, system_text
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
    from sidestream.store.records import EvidenceChecked
    from sidestream.turn.machine import Turn


class ObservedRun(Protocol):
    """The properties of a run that a listener may see besides its turn.

    The model may change if the run falls back to another one.
    """

    @property
    def model(self) -> ChatModel: ...

    @property
    def opening(self) -> tuple[ChatMessage, ...]:
        """The user's own messages."""
        ...

    @property
    def is_typed(self) -> bool:
        """Whether the run has an output type."""
        ...

    @property
    def conversation(self) -> str | None:
        """Conversation id, or None."""
        ...


class RunListener(Protocol):
    """Observes one run. Its methods are called in the order of events, and must not raise."""

    def started(self, turn: Turn, settings: ObservedRun) -> None:
        """Handle the start or resumption of the run."""
        ...

    def active(self) -> AbstractContextManager[object]:
        """Return a context for each piece of the run's work, between two of its parts."""
        ...

    def prepared(self, request: ModelRequest) -> None:
        """Handle the next request, before it is sent."""
        ...

    def sending(self, call: HttpCall) -> AbstractContextManager[object]:
        """Return a context for the request, until its answer begins to arrive."""
        ...

    def opened(self, response: HttpResponse) -> None:
        """Handle the start of an answer."""
        ...

    def refused(self, error: RunError) -> None:
        """Handle a failed request. The run may make another one."""
        ...

    def feed(self, parts: Sequence[StreamPart]) -> None:
        """Handle the next parts of the stream."""
        ...

    def tool(self, call: ToolCall, tool: Tool | None) -> AbstractContextManager[Callable[[ToolOutcome], None]]:
        """Return a context for the execution of a client tool, in its task. Its callable takes the outcome."""
        ...

    def ended(self, reason: FinishReason | None = None, error: BaseException | None = None) -> None:
        """Handle the end of the run, or its wait for approval. Only the first call counts.

        Without a reason and an error, the run was cancelled.
        """
        ...


class Recorder(Protocol):
    """Records a run as it streams, writing concurrently with it. `commit` waits until all records are safe."""

    def begin(
        self,
        run_id: str,
        *,
        model: str,
        opening: Sequence[ChatMessage],
        message_metadata: MessageMetadata,
        decisions: Sequence[Decision],
    ) -> None:
        """Record that the run starts with its opening messages, or, without any, resumes after these decisions."""
        ...

    def feed(self, parts: Iterable[StreamPart]) -> None:
        """Record the next parts of the stream."""
        ...

    def prepared(self, without: frozenset[str], *, defers_output: bool) -> None:
        """Record that a request that differs from the usual one is about to be sent."""
        ...

    @property
    def keeps_responses(self) -> bool:
        """Whether to pass the provider's own bytes of each response to `received`."""
        ...

    def sent(self, body: bytes | None, *, model: str, path: str, step: int) -> None:
        """Record that a request is about to be sent for a step, whose index is given."""
        ...

    def received(self, content: bytes, *, step: int, status: int, is_stream: bool) -> None:
        """Record the provider's own bytes of a response, with a stream's events as server-sent events."""
        ...

    def asked(self, approval: PendingApproval) -> None:
        """Record that a call waits for approval."""
        ...

    def granted(self, grants: Sequence[Grant]) -> None:
        """Record the complete remembered approvals that apply from now on."""
        ...

    def tool_started(self, call: ToolCall, key: str, policy: InterruptionPolicy) -> None:
        """Record that a client tool is about to run, with this idempotency key. It runs once this record is safe."""
        ...

    def tool_suspended(self, call_id: str, suspended: Suspended) -> None:
        """Record that a tool waits for the user or for work in another process."""
        ...

    def checked(self, check: EvidenceChecked, pages: Mapping[str, bytes]) -> None:
        """Record a check of citations, with the pages that were read, by digest."""
        ...

    def left(self) -> None:
        """Leave the run for another process to continue. Nothing is written after the next `commit`."""
        ...

    def cancelled(self) -> None:
        """Record that the run was stopped before its end."""
        ...

    async def commit(self) -> StreamPart | None:
        """Wait until all records are safe, or return a notice for the stream, once, if they cannot be stored.

        Raises ConflictError if someone else has written in between, or ApprovalError if they have used the same
        decision. The run must stop then.
        """
        ...


MakesContext = Callable[[], RunContext[Any]]


class Interceptor(Protocol):
    """The program's own hooks, for one run. Its coroutines may raise `Blocked`, which ends the run."""

    async def before_request(self, request: ModelRequest, context: MakesContext) -> ModelRequest:
        """Return the request to send."""
        ...

    async def before_tool(self, call: ToolCall, context: MakesContext) -> ToolCall:
        """Return the call as it is to run."""
        ...

    async def after_tool(self, call: ToolCall, result: ToolResult, context: MakesContext) -> ToolResult:
        """Return the result as the model is to see it."""
        ...

    async def answered(self, parts: list[StreamPart], decoder: Decoder, context: MakesContext) -> list[StreamPart]:
        """Return the parts of an answer that the run may use. It does not raise `Blocked`."""
        ...

    def ended(self, decoder: Decoder, blocked: Blocked) -> list[StreamPart]:
        """Return the parts that end an answer of which nothing more is used."""
        ...

    def emitted(self, parts: Sequence[StreamPart]) -> None:
        """Take note of parts that the run emits. Those of an answer follow `answered`, which has shown them."""
        ...

    async def show_emitted(self, context: MakesContext) -> None:
        """Show the parts that the run has emitted by itself."""
        ...


class EvidenceCheck(Struct, frozen=True, kw_only=True):
    """A check of hosted citations at the end of each answer, by rules and, if you name one, by a model too.

    ```python
    agent = Agent("openai-responses", server_side_tools=[WebSearch()], evidence=EvidenceCheck())
    ```
    """

    judge: str | ChatModel | None = None
    """Model that gives its opinion on each claim, beside what the rules establish. None means that no model is asked,
    and that the check costs nothing but time."""
    allow_hosts: Sequence[str] = ()
    """Hosts, or `host:port`, that may have a private address."""

    def __post_init__(self) -> None:
        if isinstance(self.allow_hosts, str):
            raise ConfigurationError(f"allow_hosts must be a list of hosts, not {self.allow_hosts!r}")


class CitationCheck(Protocol):
    """Checks the citations of one run's answers. It does not raise for pages and models that fail."""

    def feed(self, parts: Iterable[StreamPart]) -> None:
        """Take note of parts that the run emits."""
        ...

    @property
    def is_due(self) -> bool:
        """Whether the current answer has citations to check."""
        ...

    async def check(self) -> list[StreamPart]:
        """Check the current answer, and return its sources with their evidence, and a notice about its cost, if any."""
        ...

    def record(self, recorder: Recorder) -> None:
        """Record the last check, if it has read any pages."""
        ...


StreamErrors = Literal["raise", "parts"]
"""How a failed run ends when its parts are iterated: `raise` raises after the last part, `parts` only yields an `error`
part."""
_STREAM_ERRORS = get_args(StreamErrors)
ToolErrors = Literal["report", "raise"]
"""How a run treats an unexpected exception of a tool: `report` sends its type to the model, `raise` ends the run."""


class RunHooks(Struct, frozen=True):
    """Callbacks and observers of a run."""

    recorder: Recorder | None = None
    ended: Callable[[Turn], None] | None = None
    """Called once when the run has ended or waits, unless it failed."""
    decided: Callable[[Sequence[Decision]], None] | None = None
    """Called once before decisions take effect. They have no effect if it raises ApprovalError."""
    read_blobs: Callable[[Sequence[str]], Awaitable[Mapping[str, bytes]]] | None = None
    """Reads blobs that messages of the history refer to from the log, by digest, omitting missing ones."""
    listener: RunListener | None = None
    interceptor: Interceptor | None = None
    conversation: str | None = None
    """Id of the chat that the run belongs to."""
    store: Any = None
    """Store of that chat, in which locally executed tools keep their data, or None."""


class ModelSetup(Struct, kw_only=True):
    """The settings of a run that depend on its model."""

    model: ChatModel
    transport: Transport
    toolbox: ToolBox = field(default_factory=lambda: ToolBox({}))
    hosted: tuple[ServerSideTool, ...] = ()
    handed_over: frozenset[str] = frozenset()
    """Functions that answer the provider's own call types."""
    settings: ModelSettings = ModelSettings()
    options: Any = None
    remote_policies: Mapping[str, Policy] = {}
    """Policies of remote MCP servers, by label, wherever they are called from."""
    warnings: tuple[str, ...] = ()
    """Warnings for the start of the stream, besides those of encoding the request."""
    context: ContextKeeper | None = None
    """Keeps the history within the model's window. None means that it is not shortened."""
    price: Callable[[Finish], Usage] | None = None
    """Function that adds the cost to the usage of a response."""

    @property
    def name(self) -> str:
        """Name of the model as users write it."""
        return f"{self.model.provider}:{self.model.name}"

    def values(self) -> dict[str, Any]:
        """Return the settings by name."""
        return asdict(self)


class RunSettings(ModelSetup, kw_only=True):
    """The settings of a run besides its turn."""

    limits: Limits
    system: System | None = None
    deps: Any = None
    """Value that the caller passes to tools, policies and the system prompt. Never serialised."""
    stream: bool = True
    policy: Policy | None = None
    """Explicit policy of the agent or the call. None means that neither has one."""
    output: OutputType[Any] | None = None
    opening: tuple[ChatMessage, ...] = ()
    message_metadata: MessageMetadata = "session"
    result_metadata: ResultMetadata = "accumulated"
    hooks: RunHooks = RunHooks()
    errors: StreamErrors = "raise"
    fallbacks: tuple[ModelSetup, ...] = ()
    """Models to call, in this order, if this one fails before any output."""
    tool_errors: ToolErrors = "report"
    citations: CitationCheck | None = None
    """Check of hosted citations at the end of each answer. None means that they stay unchecked."""
    first_step: int | None = None
    """Last step before the run's first request, once that is made."""

    def __post_init__(self) -> None:
        if self.errors not in _STREAM_ERRORS:
            raise ConfigurationError(f"errors must be 'raise' or 'parts', not {self.errors!r}")

    def use(self, setup: ModelSetup) -> None:
        """Switch to another model."""
        for name, value in setup.values().items():
            setattr(self, name, value)

    @property
    def conversation(self) -> str | None:
        """Id of the conversation that the run belongs to, or None."""
        return self.hooks.conversation

    @property
    def is_typed(self) -> bool:
        """Whether the run has an output type."""
        return self.output is not None

    def request(
        self, turn: Turn, system: str | None, replays: LoadedReplays, steers: Iterable[Steer] = ()
    ) -> ModelRequest:
        """Build the next request to the model, with the user's messages since the last one."""
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

    async def system_text(self, turn: Turn) -> str | None:
        """Return the system prompt of the next request. Raises ConfigurationError if its function fails."""
        return await system_text(self.system, lambda: self.run_context(turn))

    def run_context(self, turn: Turn) -> RunContext[Any]:
        """Return what a function of the program may know about the run."""
        return RunContext(
            deps=self.deps,
            provider=self.model.provider,
            model=self.model.name,
            messages=tuple(turn.state.messages),
            step=turn.state.step + 1,
            run_id=turn.state.run_id,
        )

    def failure_of(self, outcome: ToolOutcome) -> ToolRaisedError | None:
        """Warn of a tool's bug, or return the error with which the run must end because of it."""
        fault = outcome.fault
        if fault is None:
            return None
        raised = fault.exception if self.tool_errors == "raise" else fault.warn()
        if raised is None:
            return None
        error = ToolRaisedError(f"tool {fault.tool!r} raised {type(fault.exception).__name__}")
        error.exception = raised
        return error

    async def verdict_on(self, question: Question) -> Ruling:
        """Decide whether a call may run, by the policy of its tool, its remote server or the run.

        Functions may by default.
        """
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
