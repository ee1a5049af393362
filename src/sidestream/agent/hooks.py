"""Hooks, with which a program observes a run and intervenes in it."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from sidestream.errors import Blocked, ConfigurationError
from sidestream.jsontext import Json, JsonObject
from sidestream.parts import (
    Error,
    Finish,
    Preview,
    ReasoningDelta,
    Steer,
    StepFinish,
    StepStart,
    StreamPart,
    StreamStart,
    TextDelta,
    ToolApprovalRequest,
    ToolCall,
    ToolInputDelta,
    ToolResult,
    Usage,
)
from sidestream.providers.protocol import Decoder, ModelRequest
from sidestream.run.settings import MakesContext
from sidestream.run.system import RunContext
from sidestream.turn.state import blocked_finish

V = TypeVar("V")


class Response(Struct, frozen=True, kw_only=True):
    """A model's complete response to one request, before the run acts on it."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    """Calls, of client tools and of the provider's own."""
    parts: tuple[StreamPart, ...]
    finish_reason: str
    usage: Usage


class Hooks:
    """What a program does at fixed points of every run of an agent. Subclass it, and define what you need.

    ```python
    class Tokens(Hooks):
        def before_request(self, request, context):
            if len(request.messages) > 100:
                raise Blocked("the conversation is too long")

    agent = Agent("openai-responses", hooks=[Tokens()])
    ```

    Each method but `before_store` may be a coroutine. Several hooks are called in the order of the list, each with what
    the one before it returned. None means no change. A hook that raises `Blocked` ends the run with `finish(content-
    filter)`; its metadata has `blocked_by`, the name of the class, and `blocked`, the reason. Any other exception is a
    defect of the hook, and raises ConfigurationError.
    """

    def before_request(self, request: ModelRequest, context: RunContext[Any]) -> Any:
        """See a request before it is encoded. Return another one to send instead."""

    def after_response(self, response: Response, context: RunContext[Any]) -> Any:
        """See a complete response before the run acts on it. Its text has been streamed by then."""

    def before_tool(self, call: ToolCall, context: RunContext[Any]) -> Any:
        """See a call that is about to run here, after its approval. Return another input to run it with."""

    def after_tool(self, call: ToolCall, result: ToolResult, context: RunContext[Any]) -> Any:
        """See the result of such a call before the model, the stream and the log do. Return another value for it."""

    def on_part(self, part: StreamPart, context: RunContext[Any]) -> Any:
        """See each part before the program gets it. If it raises `Blocked`, the part's text is dropped."""

    def before_store(self, record: JsonObject) -> JsonObject | None:
        """See each record before a chat writes it to its log. Return another one to redact it.

        It has the `type` and the fields of the records of `sidestream.store`, as JSON, but files as bytes. This method
        is not a coroutine: records are numbered as they come, and the run does not wait for each. With it, texts are
        written when they are complete, not while they stream. What the run itself keeps in memory does not change.
        """


_NAMES: Final = ("before_request", "after_response", "before_tool", "after_tool", "on_part", "before_store")


class HookChain:
    """The hooks of an agent, in order. Points that no hook defines cost nothing."""

    def __init__(self, hooks: Sequence[Hooks]) -> None:
        for hook in hooks:
            if not isinstance(cast("object", hook), Hooks):
                raise ConfigurationError(f"hooks must be instances of Hooks, not {hook!r:.60}")
        self.at = {
            name: [(type(hook).__name__, getattr(hook, name)) for hook in hooks if _is_defined(hook, name)]
            for name in _NAMES
        }
        """The name of the class and the method of each hook, by point."""
        for who, method in self.at["before_store"]:
            if inspect.iscoroutinefunction(method):
                raise ConfigurationError(f"the hook {who}.before_store must be a plain function, not a coroutine")

    @property
    def before_store(self) -> Callable[[JsonObject], JsonObject] | None:
        """The function that a record passes before it is written, if there is one."""
        return self._stored if self.at["before_store"] else None

    def _stored(self, record: JsonObject) -> JsonObject:
        for who, method in self.at["before_store"]:
            try:
                changed: object = method(record)
            except Exception as error:
                raise _defect(who, "before_store", error) from error
            record = record if changed is None else cast("JsonObject", _expected(who, "before_store", changed, dict))
        return record

    def for_run(self) -> "RunInterceptor":
        """Return the interceptor of one run."""
        return RunInterceptor(self)


class RunInterceptor:
    """Calls the hooks of an agent during one run."""

    def __init__(self, chain: HookChain) -> None:
        self._at = chain.at
        self._sees_parts = bool(chain.at["on_part"])
        self._answer: list[StreamPart] = []
        """The parts of the current answer."""
        self._unseen: list[StreamPart] = []
        self._is_answer = False
        """Whether the run emits parts of an answer next."""

    async def before_request(self, request: ModelRequest, context: MakesContext) -> ModelRequest:
        """Return the request to send."""
        for who, method in self._at["before_request"]:
            changed = await _called(who, "before_request", method, request, context())
            request = request if changed is None else _expected(who, "before_request", changed, ModelRequest)
        return request

    async def before_tool(self, call: ToolCall, context: MakesContext) -> ToolCall:
        """Return the call as it is to run."""
        for who, method in self._at["before_tool"]:
            changed = await _called(who, "before_tool", method, call, context())
            call = call if changed is None else replace(call, input=cast("Json", changed))
        return call

    async def after_tool(self, call: ToolCall, result: ToolResult, context: MakesContext) -> ToolResult:
        """Return the result as the model is to see it."""
        for who, method in self._at["after_tool"]:
            changed = await _called(who, "after_tool", method, call, result, context())
            result = result if changed is None else replace(result, result=cast("Json", changed))
        return result

    async def answered(self, parts: list[StreamPart], decoder: Decoder, context: MakesContext) -> list[StreamPart]:
        """Return the parts of an answer that the run may use. If a hook blocks one, the answer ends there."""
        self._is_answer = True
        for index, part in enumerate(parts):
            self._answer.append(part)
            try:
                if isinstance(part, Finish):
                    await self._show_answer(part, context)
                elif not isinstance(part, Error):
                    await self._show(part, context)
            except Blocked as blocked:
                self._answer = []
                return [*parts[:index], *_ended(parts[index:], decoder, blocked)]
        return parts

    def ended(self, decoder: Decoder, blocked: Blocked) -> list[StreamPart]:
        """Return the parts that end an answer of which nothing more is used."""
        self._answer, self._is_answer = [], True
        return _ended([], decoder, blocked)

    def emitted(self, parts: Sequence[StreamPart]) -> None:
        """Take note of parts that the run emits. Those of an answer were shown before."""
        if self._sees_parts:
            self._unseen += [part for part in parts if type(part) in _OF_RUN] if self._is_answer else parts
        self._is_answer = False

    async def show_emitted(self, context: MakesContext) -> None:
        """Show the parts that the run has emitted by itself."""
        unseen, self._unseen = self._unseen, []
        for part in unseen:
            await self._show(part, context)

    async def _show(self, part: StreamPart, context: MakesContext) -> None:
        for who, method in self._at["on_part"]:
            await _called(who, "on_part", method, part, context())

    async def _show_answer(self, finish: Finish, context: MakesContext) -> None:
        parts, self._answer = self._answer, []
        if finish.reason == "error" or not self._at["after_response"]:
            return
        response = Response(
            text="".join(part.delta for part in parts if isinstance(part, TextDelta)),
            tool_calls=tuple(part for part in parts if isinstance(part, ToolCall)),
            parts=tuple(parts),
            finish_reason=finish.reason,
            usage=finish.usage,
        )
        for who, method in self._at["after_response"]:
            await _called(who, "after_response", method, response, context())


_OF_RUN = frozenset({StreamStart, StepStart, StepFinish, Finish, Error, Steer})
"""Parts that the run makes of an answer, or adds to it."""
_DROPPED = (TextDelta, ReasoningDelta, ToolInputDelta, Preview, ToolApprovalRequest)


def _ended(rest: list[StreamPart], decoder: Decoder, blocked: Blocked) -> list[StreamPart]:
    """Return the parts that end an answer, without its text and calls from there on."""
    kept = [
        part
        for part in rest
        if not isinstance(part, _DROPPED) and not (isinstance(part, ToolCall) and not part.provider_executed)
    ]
    if not any(isinstance(part, Finish) for part in kept):
        kept += decoder.close(Error("limit", blocked.reason))
    return [
        blocked_finish(blocked.by, blocked.reason, part) if isinstance(part, Finish) else part
        for part in kept
        if not isinstance(part, Error)
    ]


def chain_of(hooks: Iterable[Hooks]) -> HookChain | None:
    """Return the chain of these hooks, or None without any."""
    given = tuple(hooks)
    return HookChain(given) if given else None


def _is_defined(hook: Hooks, name: str) -> bool:
    return getattr(type(hook), name) is not getattr(Hooks, name) or name in getattr(hook, "__dict__", ())


async def _called(who: str, name: str, method: Callable[..., object], *arguments: object) -> object:
    try:
        value = method(*arguments)
        return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value
    except Blocked as blocked:
        blocked.by = blocked.by or who
        raise
    except Exception as error:
        raise _defect(who, name, error) from error


def _defect(who: str, name: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"the hook {who}.{name} raised {type(error).__name__}: {error}")


def _expected(who: str, name: str, value: object, kind: type[V]) -> V:
    if not isinstance(value, kind):
        raise ConfigurationError(
            f"the hook {who}.{name} returned {type(value).__name__}; it must return {kind.__name__} or None"
        )
    return value
