"""The record of one tool call: what interfaces draw, whichever provider ran the tool."""

from typing import Any, Literal

from msgspec import Struct

from sidestream.stream.parts import File
from sidestream.text.reprs import ShortRepr

ToolStatus = Literal["writing", "running", "waiting", "done", "failed", "unfinished"]
"""`writing`: its input streams. `waiting`: for an approval, or for its result from outside. `unfinished`: the run ended
before it did."""

_ENDED = frozenset({"done", "failed", "unfinished"})


class ToolStage(Struct, frozen=True, eq=False):
    """A stage of a call, by the provider's name or ours (`input`, `called`, `approval`, `result`)."""

    name: str
    at: float | None = None
    """Seconds since the run began."""

    def __eq__(self, other: object) -> bool:
        # Two runs of one recording are equal; their clocks are not.
        return isinstance(other, ToolStage) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class ToolRun(ShortRepr, Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a tool, as far as it has come."""

    id: str
    """The first id it was known by; with `step`, it identifies the record in later chunks."""
    call_id: str
    """The id that its call and result have."""
    tool: str
    """The key of its events."""
    name: str
    provider_executed: bool = True
    step: int = 0
    status: ToolStatus = "writing"
    stages: tuple[ToolStage, ...] = ()
    input: Any = None
    queries: tuple[str, ...] = ()
    code: str | None = None
    """Set with the call; `chunk.code` has it as it is written."""
    result_count: int | None = None
    """How many pages, passages or tools it found."""
    snippet: str = ""
    """The beginning of its first result, at most 200 characters."""
    files: tuple[File, ...] = ()
    previews: int = 0
    server: str | None = None
    """The label of the MCP server that it calls."""
    grant: str | None = None
    """The id of the grant that let it run, where the policy would have asked."""
    exit_code: int | None = None
    error: str | None = None
    is_over: bool = False
    """True once nothing more comes but files that are downloaded. One chunk has the record with it, the last."""

    @property
    def has_ended(self) -> bool:
        """Whether its status is final. Files in its result may follow."""
        return self.status in _ENDED

    @property
    def seconds(self) -> float | None:
        """From its first to its last stage; None without a clock."""
        times = [stage.at for stage in self.stages if stage.at is not None]
        return times[-1] - times[0] if times else None

    @property
    def key(self) -> tuple[int, str]:
        """What identifies it within its run: providers may use an id again in a later step."""
        return self.step, self.id
