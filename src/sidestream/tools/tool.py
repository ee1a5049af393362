"""Client tools: typed Python functions that a model can call, and external tools, which run outside this process.

A tool's schema comes from the function's signature and docstring. Running a tool never raises; a failure becomes a
result that the model can act on. pydantic and griffe are loaded when the first tool is created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import FunctionType
from typing import Any, Concatenate, Generic, NoReturn, Protocol, Self, cast, overload

from msgspec import Struct, field
from msgspec.structs import force_setattr

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject, is_object
from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.tools.approvals import Policy, check_policy
from sidestream.tools.arguments import ArgumentBinder, ArgumentBinding, InvalidArgumentsError, fits_strict, make_strict
from sidestream.tools.context import DepsT, TakesContext, ToolContext
from sidestream.tools.grants import pin_of
from sidestream.tools.interruption import InterruptionPolicy, check_interruption
from sidestream.tools.outcome import ToolError, ToolOutcome
from sidestream.tools.spec import Retrieve
from sidestream.tools.stages import StagesOf

__all__ = ["InvalidArgumentsError", "Tool", "ToolContext", "ToolError", "ToolOutcome", "as_tools", "tool"]

_NAME = r"[a-zA-Z0-9_-]{1,64}"
_GENERATORS = CO_GENERATOR | CO_ASYNC_GENERATOR


class Tool(Struct, Generic[DepsT], frozen=True, eq=False, kw_only=True):
    """A function that a model can call, with its schema. Calling the tool calls the function.

    A synchronous function runs in a separate thread, an async one in the event loop. A generator reports progress: each
    value it yields becomes progress when the next one is yielded, and the last one is the result. If a synchronous
    generator returns a value, that is the result, and everything it yields is progress.

    `Tool[Bank]` is a tool whose `ToolContext[Bank]` has `deps` of this type. Type checkers refuse it in an agent with
    other dependencies.
    """

    name: str
    description: str
    parameters: JsonObject
    strict: bool = False
    """Whether the schema requires all properties and allows no others, so that a provider can enforce it."""
    timeout_s: float | None = None
    """Timeout in seconds. None means `Limits.tool_timeout_s`."""
    approval: Policy | None = None
    """Approval policy for its calls. None means the agent's policy."""
    asks_by_default: bool = False
    """Whether its calls need approval if neither the tool nor the agent has a policy."""
    is_sensitive: bool = False
    """Whether it must never run unasked once the conversation has read an untrusted source."""
    is_open_world: bool = False
    """Whether its results are untrusted, as web pages are. An MCP tool's are, unless its server says otherwise."""
    reads_outside: bool = False
    """Whether `WebFetch` may fetch URLs in its results unasked. Set it only if a caller cannot choose them: a search
    does not let its caller write the URLs that it finds, while code, notes and error messages repeat their input."""
    server_label: str | None = None
    """Label of the MCP server that runs it. None means a function."""
    server_tool: str | None = None
    """Name on its MCP server. `name` differs if models do not accept it, or if another tool has it."""
    pin: str | None = None
    """Digest of the definition. An approval is valid only while it has not changed. None means that it is computed from
    name, description, schema, and the function's module and name."""
    key: str | None = None
    """Server-side tool that this one replaces. Its calls, events and files are reported under this key."""
    has_passages: bool = False
    """Whether its results hold passages that an answer may cite. Set for local searches and fetches, never for
    functions or MCP tools."""
    retrieve: Retrieve | None = None
    """When a search of the user's files takes place. None for every other tool."""
    defer_loading: bool = False
    """Whether the model, with `ToolSearch()`, sees it only after finding it."""
    stages: StagesOf | None = None
    """Lifecycle events that are emitted for its calls, if it replaces a hosted tool."""
    is_external: bool = False
    """Whether its calls are executed externally and wait for their results; see `ExternalTool`."""
    on_interruption: InterruptionPolicy = "ask"
    """Policy for a call that was started but has no result when its run is resumed, for example after a crash: `ask`
    the user, `retry` it (it must be idempotent), or `fail` with an error for the model."""
    function: Callable[..., Any]
    bind: ArgumentBinder

    def __post_init__(self) -> None:
        if not re.fullmatch(_NAME, self.name):
            raise ConfigurationError(
                f"invalid tool name {self.name!r}: use 1 to 64 of a-z, A-Z, 0-9, '_' and '-', "
                'for example with Tool.from_function(function, name="...")'
            )
        check_policy(self.approval)
        check_interruption(self.on_interruption, f"tool {self.name!r}")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigurationError(f"tool {self.name!r}: timeout_s must be more than 0, not {self.timeout_s}")
        if self.pin is None and not self.is_external:
            from sidestream.tools.signature import origin_of

            aspects = self.name, self.description, self.parameters, self.key, origin_of(self.function)
            force_setattr(self, "pin", pin_of(*aspects))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def is_silent(self) -> bool:
        """Whether a call to it emits nothing before its result: a plain function without a `ToolContext`."""
        function, bind = self.function, self.bind
        return (
            type(self) is Tool
            and isinstance(bind, ArgumentBinding)
            and not bind.contexts
            and type(function) is FunctionType
            and not function.__code__.co_flags & _GENERATORS
            and self.stages is None
        )

    @classmethod
    def from_function(
        cls,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float | None = None,
        strict: bool | None = None,
        approval: Policy | None = None,
        is_sensitive: bool = False,
        is_open_world: bool = False,
        reads_outside: bool = False,
        defer_loading: bool = False,
        key: str | None = None,
        on_interruption: InterruptionPolicy = "ask",
    ) -> Self:
        """Create a tool from a function, a bound method, a partial or an object with `__call__`.

        `name`, `description`, `timeout_s`, `approval`, `is_sensitive`, `is_open_world`, `reads_outside`,
        `defer_loading` and `on_interruption` are as for `@tool`. `key` is the server-side tool that it replaces.
        `strict=None` is strict if that does not change the schema; `strict=True` makes every argument required.
        """
        from sidestream.tools.signature import implementation, read_function

        if not callable(fn) or isinstance(fn, type):
            raise ConfigurationError(f"{fn!r} cannot be a tool: pass a function, a method or an object with __call__")
        target = implementation(fn)
        label = name if name is not None else getattr(target, "__name__", type(target).__name__)
        if label == "<lambda>":
            raise ConfigurationError(
                "a lambda has no name that a model could call: use a function made with def, or pass name=..."
            )
        read = read_function(fn, label, strict)
        return cls(
            name=label,
            description=read.description if description is None else description,
            parameters=read.parameters,
            strict=read.strict,
            timeout_s=timeout_s,
            approval=approval,
            is_sensitive=is_sensitive,
            is_open_world=is_open_world,
            reads_outside=reads_outside,
            defer_loading=defer_loading,
            key=key,
            on_interruption=on_interruption,
            function=fn,
            bind=read.bind,
        )

    async def run(self, arguments: object, context: ToolContext, limits: Limits = DEFAULT_LIMITS) -> ToolOutcome:
        """Validate the arguments and call the function. Raises only CancelledError, if cancelled.

        At the timeout a thread is abandoned, since it cannot be stopped. Python's exit does not wait for it.
        """
        from sidestream.tools.execution import ToolExecution

        timeout_s = limits.tool_timeout_s if self.timeout_s is None else self.timeout_s
        execution = ToolExecution(self.name, self.function, self.bind, timeout_s, limits.max_tool_result_bytes)
        return await execution.run(arguments, context)


class MakesTool(Protocol):
    """Creates a tool from a function. The types are those of `tool`."""

    @overload
    def __call__(self, fn: Callable[Concatenate[ToolContext[DepsT], ...], Any], /) -> Tool[DepsT]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Any, ToolContext[DepsT], ...], Any], /) -> Tool[DepsT]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Any, Any, ToolContext[DepsT], ...], Any], /) -> Tool[DepsT]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Any, Any, Any, ToolContext[DepsT], ...], Any], /) -> Tool[DepsT]: ...
    @overload
    def __call__(self, fn: TakesContext[DepsT], /) -> Tool[DepsT]: ...
    @overload
    def __call__(self, fn: Callable[..., Any], /) -> Tool: ...  # pyright: ignore[reportOverlappingOverload]


# The context may be any of the first four parameters, or the keyword `context`. Pyright takes `...` for all of them.
@overload
def tool(fn: Callable[Concatenate[ToolContext[DepsT], ...], Any], /) -> Tool[DepsT]: ...
@overload
def tool(fn: Callable[Concatenate[Any, ToolContext[DepsT], ...], Any], /) -> Tool[DepsT]: ...
@overload
def tool(fn: Callable[Concatenate[Any, Any, ToolContext[DepsT], ...], Any], /) -> Tool[DepsT]: ...
@overload
def tool(fn: Callable[Concatenate[Any, Any, Any, ToolContext[DepsT], ...], Any], /) -> Tool[DepsT]: ...
@overload
def tool(fn: TakesContext[DepsT], /) -> Tool[DepsT]: ...
@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    strict: bool | None = None,
    approval: Policy | None = None,
    is_sensitive: bool = False,
    is_open_world: bool = False,
    reads_outside: bool = False,
    defer_loading: bool = False,
    on_interruption: InterruptionPolicy = "ask",
) -> MakesTool: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    strict: bool | None = None,
    approval: Policy | None = None,
    is_sensitive: bool = False,
    is_open_world: bool = False,
    reads_outside: bool = False,
    defer_loading: bool = False,
    on_interruption: InterruptionPolicy = "ask",
) -> Any:
    """Create a tool from the decorated function, as `@tool` or with settings.

    ```python
    @tool(approval="ask", timeout_s=20)
    def refund(order: int, reason: str = "") -> str:
        \"\"\"Refunds an order.

        Args:
            order: The number on the receipt.
        \"\"\"
        return f"order {order} is refunded"

    agent = Agent("openai-responses", tools=[refund])
    ```

    The model sees the function's name (or `name`), its docstring (or `description`) and its typed parameters; with
    `strict=True` all of them are required. `approval` is `ask`, `run`, `deny` or a function that decides. A tool
    that `is_sensitive` never runs unasked once the conversation has read an untrusted source; a tool that
    `is_open_world` is one. `reads_outside` lets `WebFetch` fetch URLs in its results. `defer_loading` keeps it out of
    requests until `ToolSearch()` finds it. `on_interruption` is the policy for a call that a crash interrupted:
    `ask` the user, `retry` it, or `fail`. Raises ConfigurationError if the function cannot be a tool.
    """

    def make(function: Callable[..., Any]) -> Tool:
        return Tool.from_function(
            function,
            name=name,
            description=description,
            timeout_s=timeout_s,
            strict=strict,
            approval=approval,
            is_sensitive=is_sensitive,
            is_open_world=is_open_world,
            reads_outside=reads_outside,
            defer_loading=defer_loading,
            on_interruption=on_interruption,
        )

    return make if fn is None else make(fn)


def as_tools(items: Iterable[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    """Return the tools by name, converting functions to tools.

    Raises ConfigurationError if a function cannot be a tool, or if two tools share a name.
    """
    tools: dict[str, Tool] = {}
    for item in items:
        made = cast(Tool, item) if isinstance(item, Tool) else Tool.from_function(item)
        if made.name in tools:
            raise ConfigurationError(f"duplicate tool name {made.name!r}: rename one with name=...")
        tools[made.name] = made
    return tools


class ExternalTool(Struct, frozen=True):
    """A function that the model can call but this process does not run. Its calls wait for their results.

    Give the result with `approval.answer(output)` of the pending call. Approval policies do not apply.

    ```python
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    agent = Agent("openai-responses", tools=[ExternalTool("weather", "The weather in a city.", schema)])
    result = await agent.send("Is it raining in Bern?")
    result = await agent.resume(result.run_state, [call.answer("dry, 12 °C") for call in result.approvals])
    ```
    """

    name: str
    description: str = ""
    schema: JsonObject = field(default_factory=dict[str, Any])
    """JSON schema of its arguments, which must be an object schema."""
    strict: bool | None = None
    """Whether the schema is strict. None means strict if that does not change the schema."""
    is_open_world: bool = False
    """Whether its results are untrusted, as web pages are."""
    reads_outside: bool = False
    """Whether `WebFetch` may fetch URLs in its results unasked."""

    def __post_init__(self) -> None:
        self.as_tool()

    def as_tool(self) -> Tool:
        """Convert it to the tool that a run uses.

        Raises ConfigurationError if no model could use its name or schema.
        """
        from copy import deepcopy

        if not is_object(self.schema) or self.schema.get("type", "object") != "object":
            raise ConfigurationError(f"tool {self.name!r}: schema must be an object schema, with type 'object'")
        schema: JsonObject = {"type": "object", "properties": {}, **deepcopy(self.schema)}
        strict = fits_strict(schema) if self.strict is None else self.strict
        if strict:
            make_strict(schema, self.name)
        return Tool(
            name=self.name,
            description=self.description,
            parameters=schema,
            strict=strict,
            is_external=True,
            is_open_world=self.is_open_world,
            reads_outside=self.reads_outside,
            function=_not_here,
            bind=lambda arguments, context: {},
        )


def _not_here() -> NoReturn:
    raise ToolError("This tool does not run here; its result comes from outside.")
