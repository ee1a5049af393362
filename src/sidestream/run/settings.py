"""What a run needs besides its turn."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from sidestream.limits import Limits
from sidestream.messages.fold import MessageMetadata
from sidestream.messages.message import ChatMessage
from sidestream.messages.replays import LoadedReplays
from sidestream.output import OutputType
from sidestream.providers.calls import Transport
from sidestream.providers.protocol import ChatModel, ModelRequest
from sidestream.run.recorder import Recorder
from sidestream.run.results import ResultMetadata
from sidestream.tools.approvals import Policy, Question, Verdict, judge
from sidestream.tools.server_side import ServerSideTool
from sidestream.tools.toolset import ToolBox
from sidestream.turn.machine import Turn


class RunHooks(Struct, frozen=True):
    """Who else follows a run."""

    recorder: Recorder | None = None
    ended: Callable[[Turn], None] | None = None
    """Called once when the run has come to its end or waits, unless it failed."""
    read_blobs: Callable[[Sequence[str]], Awaitable[Mapping[str, bytes]]] | None = None
    """Reads what messages of the history refer to from the log, by digest; what it does not have is left out."""


class RunSettings(Struct, kw_only=True):
    """What a run needs besides its turn."""

    model: ChatModel
    transport: Transport
    limits: Limits
    toolbox: ToolBox = field(default_factory=lambda: ToolBox({}))
    hosted: tuple[ServerSideTool, ...] = ()
    system: str | None = None
    options: Any = None
    stream: bool = True
    policy: Policy = "never"
    output: OutputType[Any] | None = None
    opening: tuple[ChatMessage, ...] = ()
    message_metadata: MessageMetadata = "session"
    result_metadata: ResultMetadata = "accumulated"
    warnings: tuple[str, ...] = ()
    """Warnings for the start of the stream, besides those of encoding the request."""
    hooks: RunHooks = RunHooks()

    @property
    def recorder(self) -> Recorder | None:
        """Records the run, if it is recorded."""
        return self.hooks.recorder

    def request(self, turn: Turn, replays: LoadedReplays) -> ModelRequest:
        """The next request to the model."""
        return ModelRequest(
            messages=tuple(turn.state.messages),
            system=self.system,
            tools=self.toolbox.specs,
            server_side_tools=self.hosted,
            output_schema=self.output.schema if self.output is not None else None,
            options=self.options,
            stream=self.stream,
            without=turn.state.without,
            replays=replays,
        )

    async def verdict_on(self, question: Question) -> Verdict:
        """Whether a call may run: by its tool's own policy, else by the run's."""
        tool = None if question.is_remote else self.toolbox.tools.get(question.tool)
        policy = tool.approval if tool is not None and tool.approval is not None else self.policy
        # A provider that asks about its own call was configured to ask: by default a person answers.
        policy = "always" if question.is_remote and policy == "never" else policy
        return await judge(question, policy, is_sensitive=tool is not None and tool.is_sensitive)
