"""Shapes of the `data-*` parts that the UI message stream has besides the AI SDK's own.

`python -m tools.ui_types` writes them as TypeScript to `server/sidestream.d.ts`.
"""

from typing import Literal, NotRequired, TypedDict

from sidestream.jsontext import Json, JsonObject


class Tokens(TypedDict):
    """Token usage."""

    inputTokens: NotRequired[int]
    outputTokens: NotRequired[int]
    totalTokens: NotRequired[int]
    reasoningTokens: NotRequired[int]
    cachedInputTokens: NotRequired[int]
    cacheWriteInputTokens: NotRequired[int]


class RunData(TypedDict):
    """State of the run that writes the message, as `data-run`."""

    status: Literal["running", "waiting", "complete", "failed", "cancelled"]
    run: NotRequired[str]
    """Id of the run."""
    seq: NotRequired[int]
    """Sequence number of its last record."""
    provider: NotRequired[str]
    model: NotRequired[str]
    reason: NotRequired[str]
    """Finish reason."""
    cost: NotRequired[float]
    """Cost in US dollars, if all prices are known."""
    limit: NotRequired[Json]
    """Limit that ended the run."""
    unknown: NotRequired[int]
    """Number of unknown provider events."""
    ms: NotRequired[int]
    """Duration in milliseconds."""


class StepData(TypedDict):
    """A finished model call, as `data-step`."""

    step: int
    """Step number, from 0."""
    reason: NotRequired[str]
    """Finish reason."""
    usage: NotRequired[Tokens]
    cost: NotRequired[float]
    """Cost in US dollars."""
    ms: NotRequired[int]
    """Duration in milliseconds."""


class SubagentData(TypedDict):
    """Usage of a subagent so far."""

    steps: NotRequired[int]
    cost: NotRequired[float]
    """Cost in US dollars."""


class ToolData(TypedDict):
    """State of a tool call, as `data-tool`."""

    call: str
    """Id of the call, which is the `toolCallId` of the AI SDK's part."""
    tool: str
    """Portable name of the tool, the same for every provider."""
    name: NotRequired[str]
    """Provider's name of the tool."""
    label: NotRequired[str]
    """What the call is doing, did or failed at, in one line."""
    where: NotRequired[str]
    """Provider that runs it, or `here`."""
    status: NotRequired[Literal["started", "running", "waiting", "completed", "failed", "unfinished"]]
    step: NotRequired[int]
    """Step number, from 0."""
    stage: NotRequired[str]
    """Last lifecycle event."""
    queries: NotRequired[list[str]]
    pages: NotRequired[int]
    """Number of pages, passages or tools found."""
    snippet: NotRequired[str]
    previews: NotRequired[int]
    """Number of previews so far."""
    server: NotRequired[str]
    """Label of the MCP server."""
    grant: NotRequired[str]
    """Id of the remembered approval that it ran under."""
    exit: NotRequired[int]
    """Exit code."""
    error: NotRequired[str]
    agent: NotRequired[SubagentData]
    """Usage of a subagent. Absent for other tools."""
    parent: NotRequired[str]
    """Id of the subagent or program call that made this one."""
    ms: NotRequired[int]
    """Duration in milliseconds."""
    seq: NotRequired[int]
    """Sequence number of its first record."""


class ApprovalData(TypedDict):
    """A call that needs approval, and later the decision, as `data-approval`."""

    approval: str
    """Id of the approval."""
    call: str
    """Id of the call."""
    tool: str
    input: NotRequired[Json]
    """Arguments of the call."""
    digest: str
    """Digest of the arguments, which a decision in the short form must name."""
    server: NotRequired[str]
    """Label of the MCP server."""
    expires: NotRequired[float]
    """When the approval expires, in seconds since 1970."""
    form: NotRequired[JsonObject]
    """Form of an MCP server, to fill in or to visit."""
    origin: NotRequired[str]
    """Origin of the call, as a sentence."""
    checks: NotRequired[Json]
    """Safety checks of the provider."""
    remote: NotRequired[bool]
    """Whether the provider runs the call."""
    remember: NotRequired[bool]
    """Whether the tool can be allowed for the rest of the conversation."""
    read: NotRequired[list[str]]
    """URLs that the run has read before."""
    approved: NotRequired[bool]
    """Decision. Absent while the call waits."""
    automatic: NotRequired[bool]
    """Whether a policy decided."""


class SteerData(TypedDict):
    """State of a steering message, as `data-steer`."""

    id: str
    status: Literal["accepted", "applied", "failed"]
    text: str
    step: NotRequired[int]
    """Step that takes the message, from 0."""
    reason: NotRequired[str]
    """Reason why it failed."""


class ErrorData(TypedDict):
    """An error."""

    kind: str
    message: str
    code: NotRequired[str]
    """Provider's code."""
    status: NotRequired[int]
    """HTTP status."""
    retryable: NotRequired[bool]
    """Whether the same request may succeed later."""
    param: NotRequired[str]
    """Request field that the provider rejected."""


class NoticeData(TypedDict):
    """A warning, an error or another event for the user, as `data-notice`."""

    kind: str
    words: str
    """Text for the user."""
    error: NotRequired[ErrorData]


class WaitingData(TypedDict):
    """A wait of the run, as `data-waiting`."""

    reason: Literal["retry", "limiter", "queue", "compaction"]
    since: float
    """Start of the wait, in seconds since 1970."""
    until: NotRequired[float]
    """End of the wait, in seconds since 1970. Absent if it is unknown."""
    message: NotRequired[str]
    """Text for the user."""
    cause: NotRequired[str]
    """Status or error code that caused a retry."""
    attempt: NotRequired[int]
    """Number of the try that follows."""
    attempts: NotRequired[int]
    """Maximum number of tries."""
    over: NotRequired[bool]
    """Whether the wait has ended."""


class CodeData(TypedDict):
    """Code that a tool call is writing, as the transient `data-code`."""

    call: str
    delta: str
    whole: NotRequired[bool]
    """Whether `delta` is all code so far, for a client that reconnects."""
    parent: NotRequired[str]
    """Id of the subagent's call."""


class CallData(TypedDict):
    """A subagent's call, as `data-call`."""

    call: str
    parent: str
    """Id of the subagent or program call that made this one."""
    part: JsonObject
    """The call as an AI SDK tool part."""


class DataParts(TypedDict):
    """The `data-*` parts by the name after `data-`. Use it as `UIMessage<unknown, DataParts>`."""

    run: RunData
    step: StepData
    tool: ToolData
    approval: ApprovalData
    steer: SteerData
    notice: NoticeData
    waiting: WaitingData
    code: CodeData
    call: CallData
