"""Long conversations, whose history a run keeps within the model's context window."""

import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct, to_builtins

from sidestream.errors import ConfigurationError, RunError
from sidestream.messages import shortening
from sidestream.messages.message import ChatMessage
from sidestream.messages.tokens import message_tokens
from sidestream.parts import Custom, StepFinish, StreamPart, Usage
from sidestream.providers.protocol import ChatModel, CompactionPlan
from sidestream.transport.waits import report_wait

Strategy = Literal["auto", "provider", "summary", "cut"]

_ALWAYS_FITS = 3000
"""Tokens that fit into every window, so that a short conversation needs no window size."""
_TARGET = 0.6
"""Share of the window that a shortened history may take, so that the next messages fit too."""
_UNKNOWN_WINDOW = (
    "the model's context window is unknown, so the conversation is shortened only after a refusal: set "
    "Context(max_tokens=…)"
)
_TRANSCRIPT_TOKENS = 30_000
"""Maximum tokens of the transcript to summarise, if the window is unknown."""


class Context(Struct, frozen=True, kw_only=True):
    """Settings that keep a long conversation within the model's context window.

    ```python
    agent = Agent("openai-responses", context=Context(strategy="summary", keep_turns=4))
    ```
    """

    max_tokens: int | None = None
    """Size of the window in tokens. None means the size in the provider's list of models."""
    strategy: Strategy = "auto"
    """Strategy for older messages: `provider` lets the provider compact the conversation, `summary` summarises them
    with a model, and `cut` drops them. `auto` uses the provider if it can, else a summary, and a cut if that fails."""
    keep_turns: int = 2
    """Number of the last turns to keep unchanged, including the current one, as long as they fit."""
    threshold: float = 0.8
    """Share of the window above which a conversation is shortened."""
    summary_model: str | ChatModel | None = None
    """Model that summarises, such as a cheaper one. None means the agent's own."""

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise ConfigurationError(f"strategy must be one of {', '.join(get_args(Strategy))}, not {self.strategy!r}")
        if self.keep_turns < 1 or not 0 < self.threshold <= 1 or (self.max_tokens is not None and self.max_tokens < 1):
            raise ConfigurationError(
                f"keep_turns and max_tokens must be at least 1, and threshold above 0 and at most 1, not {self!r}"
            )


class Summary(Struct, frozen=True):
    """A summary, and its token usage."""

    text: str
    usage: Usage | None = None


class ContextKeeper:
    """Keeps the history of one run within the window."""

    def __init__(
        self,
        config: Context,
        *,
        by_provider: bool,
        window: Callable[[], Awaitable[int | None]],
        summarize: Callable[[str], Awaitable[Summary]],
    ) -> None:
        self.by_provider = by_provider
        """Whether the provider compacts the conversation."""
        self.warnings: tuple[str, ...] = ()
        self._config = config
        self._window = window
        self._summarize = summarize
        self._shortened_step: int | None = None

    def measure(self, messages: Sequence[ChatMessage], parts: Iterable[StreamPart]) -> None:
        """Remember the tokens of a request and its answer, which is the last message, if the parts end a step."""
        for part in parts:
            if isinstance(part, StepFinish):
                self._measure(messages, part)

    def _measure(self, messages: Sequence[ChatMessage], part: StepFinish) -> None:
        if part.reason == "error" or not messages or messages[-1].role != "model" or not part.usage.input.total:
            return
        last, tokens = messages[-1], part.usage.input.total + part.usage.output.text
        reference = weakref.KeyedRef(last, _forget, id(last))
        _measures[id(last)] = _Measure(reference, weakref.ref(messages[0]), len(messages) - 1, tokens)

    @property
    def compaction(self) -> CompactionPlan | None:
        """Compaction to request from the provider, or None."""
        if not self.by_provider:
            return None
        limit = self._config.max_tokens
        return CompactionPlan(None if limit is None else int(limit * self._config.threshold))

    async def shortening(
        self, messages: Sequence[ChatMessage], *, step: int, turn: int | None, overhead: int, is_forced: bool
    ) -> Custom | None:
        """Return the part that shortens the history before the next request, or None if it fits.

        `turn` is the index of the current turn's first message, and `overhead` the tokens besides messages. `is_forced`
        means that the provider has refused the request as too long.
        """
        total = measured_tokens(messages) or message_tokens(messages) + overhead
        if self._shortened_step == step or (not is_forced and (self.by_provider or total <= _ALWAYS_FITS)):
            return None
        # After a refusal, do not look up the window; a good part less than what was refused is a fair try.
        window = self._config.max_tokens or (None if is_forced else await self._window())
        if window is None and not is_forced:
            self.warnings = (_UNKNOWN_WINDOW,)
            return None
        if not is_forced and window is not None and total <= window * self._config.threshold:
            return None
        budget = int(_TARGET * min(total, window or total))
        dropped = shortening.plan(messages, total=total, budget=budget, keep_turns=self._config.keep_turns, turn=turn)
        if not dropped:
            return None
        self._shortened_step = step
        gone = [message for start, end in dropped for message in messages[start:end]]
        return Custom(
            shortening.SHORTENED,
            {
                "reason": "overflow" if is_forced else "threshold",
                "tokens": total,
                "window": window,
                "dropped": [list(entry) for entry in dropped],
                **await self._stand_in(gone, window),
            },
        )

    async def _stand_in(self, gone: list[ChatMessage], window: int | None) -> dict[str, Any]:
        """Return what the notice reports about dropped messages, which is their summary, or that there is none."""
        what = f"{len(gone)} older messages no longer fit the model's context window"
        if self._config.strategy == "cut":
            return {"message": f"{what} and were dropped."}
        report_wait("compaction", f"Summarising {len(gone)} older messages to fit the model's context window.")
        text = shortening.transcript(gone, window // 2 if window else _TRANSCRIPT_TOKENS)
        try:
            summary = await self._summarize(text)
        except RunError as error:
            return {"message": f"{what} and were dropped, since they could not be summarised: {error.message}"}
        usage = {} if summary.usage is None else {"usage": to_builtins(summary.usage)}
        return {"message": f"{what} and were summarised.", "summary": summary.text, **usage}


# Token counts of histories. A turn of a chat starts with the messages of the previous one, so the count is stored under
# the last answer. Messages are frozen, and the weak reference guards against a reused id.


class _Measure(Struct, frozen=True):
    message: "weakref.ref[ChatMessage]"
    first: "weakref.ref[ChatMessage]"
    place: int
    tokens: int


_measures: dict[int, _Measure] = {}


def measured_tokens(messages: Sequence[ChatMessage]) -> int | None:
    """Return the tokens of a history with a measured start, estimating newer messages, or None without one."""
    for place in reversed(range(len(messages))):
        known = _measures.get(id(messages[place]))
        if known is None or known.message() is not messages[place]:
            continue
        if known.place == place and known.first() is messages[0]:
            return known.tokens + message_tokens(messages[place + 1 :])
        return None  # It was measured behind other messages.
    return None


def _forget(reference: "weakref.KeyedRef[int, ChatMessage]") -> None:
    _measures.pop(reference.key, None)
