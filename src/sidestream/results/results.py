"""Chunks and results, which are folds of the part stream.

`ChunkFold` (`chunks.py`) folds parts to chunks, and `ResultFold` folds chunks to the result, so `send` is exactly the
fold of `send_stream`.
"""

import warnings
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from msgspec import UNSET, Struct
from msgspec.structs import replace

from sidestream import parts
from sidestream.errors import ConfigurationError, NoOutputError
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import file_ids, with_file_references
from sidestream.output import OutputType
from sidestream.results.content import Content
from sidestream.results.tool_text import ToolTextFold
from sidestream.tools.approvals import PendingApproval
from sidestream.turn.state import RunState

if TYPE_CHECKING:
    from sidestream.results.citations import CitationStyle, CitedClaim, CitedText
    from sidestream.results.tool_runs import ToolRun, ToolStage

T = TypeVar("T")

ResultMetadata = Literal["accumulated", "response"]
"""Content of a result's metadata: every event of the run, or response-level fields only."""

RESPONSE_KEYS = ("response_id", "model", "status", "limit", "reached")


class _NoOutput:
    def __repr__(self) -> str:
        return "NO_OUTPUT"


NO_OUTPUT = _NoOutput()
"""Value of a typed run that ended without an output."""


class ChatResult(Content, Struct, Generic[T], frozen=True, kw_only=True, gc=False):
    """A chunk of a run, or the whole run. A chunk holds only what is new.

    ```python
    result = await agent.send("What is new in Python?")
    print(result.output)
    for file in result.files:
        file.save_to("downloads")
    for run in result.tool_runs:
        print(run.tool, run.status)
    ```
    """

    _value: Any = UNSET
    """Output of a typed run: an instance of its type, or NO_OUTPUT."""
    thinking: str = ""
    metadata: dict[str, Any] = {}
    """Tool events by key, always as lists; `thinking`, `response_id`, `model`, `status`; and `thinking_details`, with
    each finished block of thinking as `{"id", "text"}`."""
    usage: parts.Usage | None = None
    id: str | None = None
    """Provider's id of the last response."""
    code: str = ""
    """Code that tools run, as the model writes it. `tool_runs` has it by call."""
    _state: RunState | None = None
    _partial: "Partial | None" = None

    if TYPE_CHECKING:

        @property
        def output(self) -> T:
            """The answer, which is its text or, in a typed run, an instance of the output type.

            Raises NoOutputError if a typed run ended without one. Check `has_output` first. Warns if the run waits
            before it has said anything, since its text is empty then. Check `is_waiting` first.
            """
            ...

    else:
        # The field itself, since programs read it of every chunk. `_OwnOutput` has the other cases.
        output = Content.text

    @property
    def has_output(self) -> bool:
        """Whether there is an output. A typed run has none if it ended by a limit, an approval or a refusal."""
        return self._value is not NO_OUTPUT

    @property
    def partial_output(self) -> Any:
        """The object so far in a chunk of a typed run, not validated. None means there is none yet."""
        return self._partial.value() if self._partial is not None else None

    @property
    def approvals(self) -> tuple[PendingApproval, ...]:
        """Pending approvals."""
        return self._state.approvals if self._state is not None else ()

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for approvals or results."""
        return self._state is not None

    @property
    def run_state(self) -> RunState:
        """The state for `agent.resume`. Raises ConfigurationError if the run is not waiting."""
        if self._state is None:
            raise ConfigurationError(
                "there is nothing to resume: the run is not waiting for approvals or results "
                f"(finish_reason={self.finish_reason!r})"
            )
        return self._state

    def cited_text(self, style: "CitationStyle" = "numbers") -> "CitedText":
        """Return the text with numbered markers where sources support it, and the list of those sources.

        ```python
        cited = result.cited_text()
        print(cited.text)
        for source in cited.sources:
            print(source.number, source.title, source.url)
        ```

        `style` sets the form of the markers. For the chunks of a streaming run, use `Citations`.
        """
        from sidestream.results.citations import citations_of

        return citations_of(self, style).cited()

    def claims(self) -> "tuple[CitedClaim, ...]":
        """Return the statements that cite a source, each with its span and that of its marker."""
        from sidestream.results.citations import claims_of

        return claims_of(self)

    async def check_evidence(self, *, allow_hosts: Sequence[str] = ()) -> "ChatResult[T]":
        """Fetch the cited pages, and return this result with the evidence of each citation.

        `allow_hosts` are hosts, or `host:port`, that may have a private address.
        """
        from sidestream.results import check_evidence

        return await check_evidence(self, allow_hosts=allow_hosts)

    def _repr_markdown_(self) -> str:
        from sidestream.results.notebook import markdown

        return markdown(self)


def _waiting(approvals: Iterable[PendingApproval]) -> str:
    """Return the text of a warning that an empty output is read while calls wait."""
    calls = {
        entry.tool if entry.server_label is None else f"{entry.tool} of the MCP server {entry.server_label!r}": entry
        for entry in approvals
    }
    external = all(entry.is_external for entry in calls.values())
    return (
        f"there is no output yet: the run waits for {'the result' if external else 'approval'} of {', '.join(calls)}; "
        f"resume it with {'answers to' if external else 'decisions on'} result.approvals"
        + ("" if external else ', or set approval="run" if the calls need none')
    )


def with_partial(chunk: ChatResult[T], partial: "Partial") -> ChatResult[T]:
    """Return a copy of a chunk that knows the text before it."""
    return replace(chunk, _partial=partial)


class _OwnOutput(ChatResult[T], frozen=True, kw_only=True, gc=False):
    """A result whose output is not just its text, because its run is typed or waits."""

    @property
    def output(self) -> T:
        if self._value is UNSET:
            if self._state is not None and not self.text:
                warnings.warn(_waiting(self._state.approvals), stacklevel=2)
            return self.text  # pyright: ignore[reportReturnType] - in a run without an output type, T is str
        if self._value is NO_OUTPUT:
            raise NoOutputError(self.finish_reason)
        return self._value


_OwnOutput.__name__ = ChatResult.__name__  # for its repr


def with_state(result: ChatResult[Any], state: RunState | None) -> ChatResult[Any]:
    """Return the result with the state to resume from, if there is one."""
    return result if state is None else _with_own_output(result, _state=state)


def with_output(result: ChatResult[Any], output: Any) -> ChatResult[Any]:
    """Return a copy of a typed run's result, with its output or NO_OUTPUT."""
    return _with_own_output(result, _value=output)


def _with_own_output(result: ChatResult[Any], **changes: Any) -> ChatResult[Any]:
    return _OwnOutput(**({name: getattr(result, name) for name in result.__struct_fields__} | changes))


class Partial:
    """The text of a typed run up to one chunk, parsed on demand."""

    def __init__(self, texts: list[str], count: int, output: OutputType[Any]) -> None:
        self._texts = texts
        self._count = count
        self._output = output

    def value(self) -> Any:
        """Return the object so far."""
        return self._output.partial("".join(self._texts[: self._count]))


_NOTED = frozenset({parts.ToolInputDelta, parts.File, parts.StepStart})


class ResultFold:
    """A fold of chunks to the result of a run."""

    def __init__(self, policy: ResultMetadata = "accumulated") -> None:
        self._policy = policy
        self._output: list[str] = []
        self._text_ids: list[str | None] = []
        """Block id of each text in the output."""
        self._steps: list[int] = [0]
        """Index of each step's first text."""
        self._corrections: dict[tuple[int, str | None], str] = {}
        """Final texts that differ from what was streamed, by step and block id."""
        self._thinking: list[str] = []
        self._thinking_metadata: list[str] = []
        self._messages: list[ChatMessage] = []
        self._parts: list[parts.StreamPart] = []
        self._code: list[str] = []
        self._tool_events: list[ToolStage] = []
        self._tool_text = ToolTextFold()
        self._tool_runs: dict[tuple[int, str], ToolRun] = {}
        self._keys: dict[str, tuple[int, str]] = {}
        """Keys of the newest tool runs, by call id."""
        self._metadata: dict[str, Any] = {}
        self._usage: parts.Usage | None = None
        self._reason: parts.FinishReason | None = None
        self._id: str | None = None

    def feed_all(self, chunks: Iterable[ChatResult[str]]) -> None:
        """Add chunks, each of which has parts, or the delta or the messages of one part."""
        for chunk in chunks:
            if chunk.text_id is not None:
                self._output.append(chunk.text)
                self._text_ids.append(chunk.text_id)
                if chunk.correction is not None:
                    self._corrections[len(self._steps), chunk.text_id] = chunk.correction
            if chunk.parts:
                if _NOTED.isdisjoint(map(type, chunk.parts)):
                    self._parts += chunk.parts
                else:
                    self._note(chunk.parts)
                if chunk.tool_text:
                    self._code.append(chunk.code)
                    self._tool_text.feed(chunk.tool_text)
                if chunk.tool_runs:
                    self._tool_events += chunk.tool_events
                    for run in chunk.tool_runs:
                        key = run.step, run.id
                        self._tool_runs[key] = run
                        self._keys[run.call_id] = key
                if chunk.finish_reason is not None:
                    self._reason, self._usage = chunk.finish_reason, chunk.usage
                elif chunk.id is not None:
                    self._id = chunk.id
            elif chunk.thinking:
                self._thinking.append(chunk.thinking)
            elif chunk.messages:
                self._messages += chunk.messages
            if chunk.metadata:
                _merge(self._metadata, chunk.metadata)
                if "thinking" in chunk.metadata:
                    self._thinking_metadata.append(str(chunk.metadata["thinking"]))

    def _note(self, new: Iterable[parts.StreamPart]) -> None:
        """Add parts, some of which affect more than the result's parts."""
        for part in new:
            if type(part) is parts.ToolInputDelta:
                continue  # The call has the whole input.
            self._parts.append(part)
            if type(part) is parts.File:
                self._late(part)
            elif type(part) is parts.StepStart:
                self._steps.append(len(self._output))

    def _late(self, file: parts.File) -> None:
        """Add a file downloaded after its call ended to the tool run, which no later chunk contains."""
        run = self._tool_runs.get(self._keys.get(file.call_id or "", (0, "")))
        if run is not None and run.is_over and file.data is not None:
            self._tool_runs[run.key] = replace(run, files=(*run.files, file))

    def result(self) -> ChatResult[str]:
        """Return the result, with texts and messages joined, and events in order of arrival."""
        if self._thinking_metadata:
            self._metadata["thinking"] = "".join(self._thinking_metadata)
        files = (part for part in self._parts if isinstance(part, parts.File))
        metadata = with_file_references(self._metadata, file_ids(files))
        if self._policy == "response":
            metadata = {key: metadata[key] for key in RESPONSE_KEYS if key in metadata}
        return ChatResult(
            text=self._corrected() if self._corrections else "".join(self._output),
            messages=tuple(self._messages),
            thinking="".join(self._thinking),
            metadata=metadata,
            usage=self._usage,
            finish_reason=self._reason,
            id=self._id,
            parts=tuple(self._parts),
            code="".join(self._code),
            tool_runs=tuple(self._tool_runs.values()),
            tool_events=tuple(self._tool_events),
            tool_text=self._tool_text.result(),
        )

    def _corrected(self) -> str:
        """Return the corrected output, with the text of each step on a new line."""
        steps: list[str] = []
        has_text = False
        for step, (begin, end) in enumerate(pairwise([*self._steps, len(self._output)]), 1):
            blocks: dict[str | None, list[str]] = {}
            is_flowing = False
            for text_id, text in zip(self._text_ids[begin:end], self._output[begin:end], strict=True):
                if (step, text_id) in self._corrections:
                    blocks.setdefault(text_id, [])
                if text:
                    # The first text of a step begins with the newline that separates it from earlier text.
                    blocks.setdefault(text_id, []).append(text[1:] if has_text and not is_flowing else text)
                    has_text = is_flowing = True
            finals = (self._corrections.get((step, name)) for name in blocks)
            texts = (
                "".join(pieces) if final is None else final
                for final, pieces in zip(finals, blocks.values(), strict=True)
            )
            steps.append("".join(texts))
        return "\n".join(filter(None, steps))


def fold(chunks: Iterable[ChatResult[str]], policy: ResultMetadata = "accumulated") -> ChatResult[str]:
    """Return the result of a run's chunks."""
    folding = ResultFold(policy)
    folding.feed_all(chunks)
    return folding.result()


def _merge(metadata: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, list) and isinstance(metadata.get(key), list):
            metadata[key].extend(value)
        elif isinstance(value, list):
            metadata[key] = list(cast(list[Any], value))
        else:
            metadata[key] = value
