"""The agent, which combines a model with tools, and the ways to run it."""

from __future__ import annotations

from importlib import import_module
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from sidestream.agent.blocking import RunsBlocking
from sidestream.agent.checks import (
    check_credentials,
    check_settings,
    checked_output,
    checked_server_side_tools,
    checked_tools,
)
from sidestream.agent.files import HandlesFiles
from sidestream.agent.models import (
    ContextWindows,
    Models,
    check_options,
    chosen_models,
    list_models,
    overridden,
    override_of,
)
from sidestream.agent.placement import LocalToolsets, agent_tool, mcp_servers, own_tools, task_message
from sidestream.agent.settings import (
    AgentSettings,
    CallSettings,
    CommonSettings,
    call_options,
    hide_secrets,
    model_settings,
    refuse_unknown,
    shows_settings,
)
from sidestream.errors import ConfigurationError
from sidestream.limits import DEFAULT_LIMITS
from sidestream.run.system import check_system
from sidestream.tools.approvals import check_policy, check_unspent, spend
from sidestream.tools.context import DepsT

# What a run needs is imported by the functions that start one: a program that imports an agent may not run it yet.
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Literal, Self, Unpack

    from aiohttp import ClientSession
    from typing_extensions import TypeVar as _TypeVar

    from sidestream.agent.hooks import HookChain, Hooks
    from sidestream.agent.media import MediaResult
    from sidestream.agent.placement import Servers
    from sidestream.agent.settings import TransportName, TypedTool
    from sidestream.limits import Limits
    from sidestream.messages.fold import MessageMetadata
    from sidestream.messages.message import ChatMessage
    from sidestream.output import OutputType
    from sidestream.portable.services import Services
    from sidestream.prices.price import Price
    from sidestream.providers.embedding import EmbeddingsResult
    from sidestream.providers.model_settings import Stop, Thinking
    from sidestream.providers.protocol import ChatModel, ModelInfo
    from sidestream.results.results import ChatResult, ResultMetadata
    from sidestream.run.context import Context
    from sidestream.run.prompts import Prompt
    from sidestream.run.run import Run
    from sidestream.run.settings import EvidenceCheck, RunHooks, StreamErrors, ToolErrors
    from sidestream.run.system import System
    from sidestream.telemetry.settings import Telemetry
    from sidestream.tools.approvals import Decision, Policy
    from sidestream.tools.interruption import InterruptionPolicy
    from sidestream.tools.server_side import ServerSideTool
    from sidestream.tools.tool import Tool, ToolContext
    from sidestream.tools.toolset import Toolset
    from sidestream.transport.calls import Auth, Transport
    from sidestream.turn.state import RunState, TurnState
    from sidestream.wire.limiter import Limiter

    T = _TypeVar("T", default=str)
else:
    T = TypeVar("T")
OutT = TypeVar("OutT")


class Agent(RunsBlocking[T, DepsT], HandlesFiles, Generic[T, DepsT]):
    """A model with tools. It keeps no history, so pass `history` or use `Chat`.

    `model` is a provider, such as `"anthropic"`, or one of its models, such as `"openai-responses:gpt-5.6"`. The
    settings apply to every call, and a call can override them.

    ```python
    agent = Agent("openai-responses", server_side_tools=[WebSearch()], system="Answer in one sentence.")
    print(agent.send_sync("What is new in Python?").output)
    ```
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, arguments: object) -> GenericAlias:
            return GenericAlias(cls, arguments)  # `Generic` requires both arguments, as TypeVars have no defaults yet.

    @overload
    def __init__(
        self,
        model: str | ChatModel | None = None,
        *,
        output_type: type[T] | OutputType[T] | None = None,
        models: Sequence[str | ChatModel] = ...,
        prices: Mapping[str, Price] | None = ...,
        system: System | None = ...,
        tools: Iterable[TypedTool[DepsT]] = ...,
        server_side_tools: Iterable[ServerSideTool] = ...,
        mcp: Servers = ...,
        temperature: float | None = ...,
        top_p: float | None = ...,
        max_tokens: int | None = ...,
        stop: Stop | None = ...,
        seed: int | None = ...,
        thinking: Thinking | None = ...,
        cache: bool | None = ...,
        tool_choice: str | None = ...,
        unsupported: Literal["raise", "warn"] = ...,
        options: Any = ...,
        approval: Policy | None = ...,
        limits: Limits = ...,
        tool_errors: ToolErrors = ...,
        context: Context | None = ...,
        evidence: EvidenceCheck | None = ...,
        api_key: str | None = ...,
        base_url: str | None = ...,
        headers: Mapping[str, str] | None = ...,
        auth: Auth | None = ...,
        transport: Transport | TransportName | None = ...,
        session: ClientSession | None = ...,
        limiter: Limiter | None = ...,
        message_metadata: MessageMetadata = ...,
        result_metadata: ResultMetadata = ...,
        hooks: Sequence[Hooks] = ...,
        telemetry: Telemetry | bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Any, Any],
        model: str | ChatModel | None = None,
        *,
        output_type: Any,
        **settings: Unpack[AgentSettings],
    ) -> None: ...
    @shows_settings(AgentSettings)
    def __init__(
        self, model: str | ChatModel | None = None, *, output_type: Any = None, **settings: Unpack[AgentSettings]
    ) -> None:
        check_credentials(settings)
        hide_secrets(settings)
        refuse_unknown(settings, AgentSettings)
        check_settings(settings)
        self._candidates = chosen_models(model, settings)
        self._models = self._candidates[0]
        self._prices: Mapping[str, Price] = settings.get("prices") or {}
        servers, remote = mcp_servers(settings.get("mcp", ()))
        self._own = own_tools([*checked_tools(settings.get("tools", ())), *servers])
        self._local_toolsets = LocalToolsets(self._services)
        self.server_side_tools = (*checked_server_side_tools(settings.get("server_side_tools", ())), *remote)
        self.system = settings.get("system")
        check_system(self.system)
        self.settings = model_settings(settings)
        self.options = settings.get("options")
        check_options(self._candidates, self.options)
        self.approval: Policy | None = settings.get("approval")
        check_policy(self.approval)
        self.limits = settings.get("limits", DEFAULT_LIMITS)
        self._tool_errors: ToolErrors = settings.get("tool_errors", "report")
        self.context = settings.get("context")
        self.evidence = settings.get("evidence")
        self._windows = ContextWindows(self.limits)
        self.output_type = checked_output(output_type)
        self._message_metadata: MessageMetadata = settings.get("message_metadata", "session")
        self._result_metadata: ResultMetadata = settings.get("result_metadata", "accumulated")
        self.telemetry = settings.get("telemetry", True)
        self._hooks = _chain(settings["hooks"]) if "hooks" in settings else None

    @property
    def model(self) -> ChatModel:
        """The agent's model, or the first of its models. Inside `override`, the other one.

        Raises MissingKeyError if its API key is missing.
        """
        return self._chosen.chat

    def check(self) -> None:
        """Raise MissingKeyError if the API key of a model is missing. No request is sent.

        Without this call, the first request raises it, so that a module with an agent can be imported without a key.
        """
        for models in self._tried(None):
            models.chat  # noqa: B018

    @property
    def tools(self) -> dict[str, Tool]:
        """Functions of the agent, by name."""
        return self._own.functions

    @property
    def toolsets(self) -> tuple[Toolset, ...]:
        """Tool servers of the agent, such as MCP servers that this process calls."""
        return self._own.toolsets

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop the tool servers and sandboxes that the agent started.

        Safe to call twice. The agent can be used again.
        """
        for toolset in self._own.toolsets:
            await toolset.aclose()
        await self._local_toolsets.aclose()

    def override(
        self, *, model: str | ChatModel | None = None, **settings: Unpack[CommonSettings]
    ) -> AbstractContextManager[None]:
        """Override the model or settings for runs started in the `with` block, even those that a call sets.

        Intended for tests. It applies to the block's own task and tasks started in it, so tests can run concurrently:

        ```python
        with agent.override(model=ScriptedModel(["Hello."])):
            assert agent.send_sync("Hi").output == "Hello."
        ```
        """
        refuse_unknown(settings, CommonSettings)
        return overridden(self, None if model is None else Models(model, {}), settings)

    @property
    def _chosen(self) -> Models:
        return override_of(self).models or self._models

    def _carrier(self) -> Transport:
        return self._chosen.transport

    def __repr__(self) -> str:
        if "_models" not in self.__dict__:  # Shown by a traceback or a debugger after the settings were refused.
            return "Agent(not configured)"
        return f"Agent({self._chosen.label})"

    @overload
    def stream(self, prompt: Prompt, *, errors: StreamErrors = ..., **call: Unpack[CallSettings[DepsT]]) -> Run[T]: ...
    @overload
    def stream(
        self,
        prompt: Prompt,
        *,
        output_type: type[OutT] | OutputType[OutT],
        errors: StreamErrors = ...,
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[OutT]: ...
    @overload
    def stream(
        self, prompt: Prompt, *, output_type: Any, errors: StreamErrors = ..., **call: Unpack[CallSettings[DepsT]]
    ) -> Run[Any]: ...
    @shows_settings(CallSettings)
    def stream(
        self,
        prompt: Prompt,
        *,
        output_type: Any = None,
        errors: StreamErrors = "raise",
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[Any]:
        """Start a run and return its typed parts as an async iterator. `await run.result()` folds the rest of them.

        ```python
        async with agent.stream("What is new in Python?") as run:
            async for part in run:
                print(part.delta if isinstance(part, TextDelta) else f"[{part.type}]")
        ```

        A failed run yields `error` and `finish`, then raises. With `errors="parts"` it does not raise, and `run.error`
        holds the error. With `stream=False` a non-streaming response is requested, which yields the same parts.
        """
        return self._begun(prompt, output_type, call, None, errors)

    def _begun(
        self, prompt: Prompt, output: Any, call: CallSettings, hooks: RunHooks | None, errors: StreamErrors
    ) -> Run[Any]:
        from sidestream.agent.setup import new_state
        from sidestream.run.prompts import user_message

        refuse_unknown(call, CallSettings)
        call = override_of(self).applied(call)
        message = user_message(prompt)
        return self._run(new_state(message, call), output, call, opening=(message,), hooks=hooks, errors=errors)

    @overload
    def resume(
        self,
        state: RunState | str | bytes,
        decisions: Iterable[Decision] = (),
        *,
        errors: StreamErrors = ...,
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[T]: ...
    @overload
    def resume(
        self,
        state: RunState | str | bytes,
        decisions: Iterable[Decision] = (),
        *,
        output_type: type[OutT] | OutputType[OutT],
        errors: StreamErrors = ...,
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[OutT]: ...
    @overload
    def resume(
        self,
        state: RunState | str | bytes,
        decisions: Iterable[Decision] = (),
        *,
        output_type: Any,
        errors: StreamErrors = ...,
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[Any]: ...
    @shows_settings(CallSettings)
    def resume(
        self,
        state: RunState | str | bytes,
        decisions: Iterable[Decision] = (),
        *,
        output_type: Any = None,
        errors: StreamErrors = "raise",
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[Any]:
        """Resume a run that waits for approvals, or whose state was saved, even in another process.

        ```python
        result = await agent.send("Refund order 7.")
        if result.is_waiting:
            result = await agent.resume(result.run_state, [call.approve() for call in result.approvals])
        ```

        Raises ApprovalError if a decision was made for other arguments or another run, or was used before in this
        process. Only a chat's log remembers decisions across processes.
        """
        from sidestream.run.settings import RunHooks

        decided = list(decisions)
        check_unspent(decided)
        return self._resumed(state, decided, output_type, call, RunHooks(decided=spend), errors)

    def _resumed(
        self,
        state: RunState | str | bytes,
        decisions: list[Decision],
        output: Any,
        call: CallSettings,
        hooks: RunHooks | None,
        errors: StreamErrors,
    ) -> Run[Any]:
        refuse_unknown(call, CallSettings)
        call = override_of(self).applied(call)
        if "history" in call:
            raise ConfigurationError("history cannot be set for a resumed run, which has its own; leave it out")
        from sidestream.agent.setup import new_run_id
        from sidestream.turn.interruptions import resumed_state

        turn_state, decided = resumed_state(state, decisions)
        turn_state.run_id = turn_state.run_id or new_run_id()  # A fork may begin with a message.
        return self._run(turn_state, output, call, decisions=decided, hooks=hooks, errors=errors)

    @overload
    def send_stream(self, prompt: Prompt, **call: Unpack[CallSettings[DepsT]]) -> AsyncGenerator[ChatResult[str]]: ...
    @overload
    def send_stream(
        self, prompt: Prompt, *, output_type: Any, **call: Unpack[CallSettings[DepsT]]
    ) -> AsyncGenerator[ChatResult[str]]: ...
    @shows_settings(CallSettings)
    def send_stream(
        self, prompt: Prompt, *, output_type: Any = None, **call: Unpack[CallSettings[DepsT]]
    ) -> AsyncGenerator[ChatResult[str]]:
        """Start a run and yield it in chunks, each with what is new. A failed run raises after its last chunk.

        ```python
        async for chunk in agent.send_stream("Say hello in French."):
            print(chunk.output, end="", flush=True)
        ```
        """
        return self.stream(prompt, output_type=output_type, **call).chunks()

    @overload
    async def send(self, prompt: Prompt, **call: Unpack[CallSettings[DepsT]]) -> ChatResult[T]: ...
    @overload
    async def send(
        self, prompt: Prompt, *, output_type: type[OutT] | OutputType[OutT], **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[OutT]: ...
    @overload
    async def send(
        self, prompt: Prompt, *, output_type: Any, **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[Any]: ...
    @shows_settings(CallSettings)
    async def send(
        self, prompt: Prompt, *, output_type: Any = None, **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[Any]:
        """Run the agent and return the result, which is exactly the fold of `send_stream`.

        An error has the partial result in `error.result`. `prompt` is a string, or a list of strings and files.
        `output_type` is a pydantic model, a dataclass, a TypedDict, a list, a union or a JSON schema; `output` is then
        an object of that type.
        """
        return await self.stream(prompt, output_type=output_type, **call).result()

    async def list_models(self) -> list[ModelInfo]:
        """Return the models that the provider lists, with their properties."""
        return await list_models(self.model, self._carrier(), self.limits)

    async def embed_query(self, text: str, *, options: Any = None) -> EmbeddingsResult:
        """Embed one text, as in `(await agent.embed_query("a cat")).vector`."""
        return await self.embed_documents([text], options=options)

    async def embed_documents(self, texts: Iterable[str], *, options: Any = None) -> EmbeddingsResult:
        """Embed texts in batches, and return the vectors in their order. Without texts, no request is sent."""
        from sidestream.agent.embeddings import embed
        from sidestream.agent.models import priced_embeddings
        from sidestream.telemetry.activation import embedding_span

        model = self._chosen.embedder()
        with embedding_span(self.telemetry, model) as ended:
            result = await embed(model, self._carrier(), self.limits, texts, options)
            ended(result)
        return result if result.usage.is_empty else priced_embeddings(result, model, self._prices)

    @shows_settings(CallSettings)
    async def generate_media(
        self, prompt: Prompt, *, mime_types: Sequence[str], **call: Unpack[CallSettings[DepsT]]
    ) -> MediaResult:
        """Generate files, such as `mime_types=["image/png"]`, as `result.assets`.

        `metadata["way"]` tells how they were made.
        """
        from sidestream.agent.media import join

        return join([chunk async for chunk in self.generate_media_stream(prompt, mime_types=mime_types, **call)])

    @shows_settings(CallSettings)
    def generate_media_stream(
        self, prompt: Prompt, *, mime_types: Sequence[str], **call: Unpack[CallSettings[DepsT]]
    ) -> AsyncGenerator[MediaResult]:
        """Generate files of these `mime_types`, and yield them in chunks, with previews as they arrive."""
        from sidestream.agent.media import media_call, media_chunks, media_plan
        from sidestream.agent.setup import new_state
        from sidestream.run.prompts import user_message
        from sidestream.run.system import extended

        refuse_unknown(call, CallSettings)
        call = override_of(self).applied(call)
        plan, maker = media_plan(self._chosen, mime_types)
        system = extended(call.get("system", self.system), plan.instruction)
        changed = media_call(plan, {**call, "system": system}, self.server_side_tools, self.options)
        message = user_message(prompt)
        state = new_state(message, call)
        return media_chunks(self._run(state, None, changed, opening=(message,), model=maker), plan)

    def as_tool(
        self,
        name: str,
        description: str,
        *,
        approval: Policy | None = None,
        timeout_s: float | None = None,
        on_interruption: InterruptionPolicy = "ask",
    ) -> Tool:
        """Wrap this agent as a tool, as in `Agent(model, tools=[agent.as_tool("research", "Looks things up.")])`.

        Its parts arrive in the calling agent's stream as events under its name. The calling run requests its approvals,
        and also counts its usage and sources. `approval` and `on_interruption` are as for `@tool`.
        """
        return agent_tool(
            self._run_as_tool,
            name,
            description,
            approval=approval,
            timeout_s=timeout_s,
            on_interruption=on_interruption,
            tools=(*self._own.functions.values(), *self.server_side_tools, *self._own.toolsets),
        )

    def to_web(self, **settings: Any) -> Any:
        """Create an ASGI app with a chat page, for `uvicorn module:app` after `app = agent.to_web()`.

        `settings` are those of `sidestream.server.create_app`. Needs the extra `server`.
        """
        # By name: the server is built on agents, not the other way round.
        return import_module("sidestream.server.app").create_app(self, **settings)

    def _run_as_tool(self, context: ToolContext, task: str) -> Run[Any]:
        """Start the run for a call to this agent as a tool, or resume the one that waited."""
        suspended = context.suspended
        if suspended is None:
            return self.stream(task_message(task, context), errors="parts", deps=context.deps)
        # The calling run has taken the decisions and marked them as used.
        call: CallSettings = {"deps": context.deps}
        return self._resumed(suspended.state, list(suspended.decisions), None, call, None, "parts")

    def _run(
        self,
        state: TurnState,
        output: Any,
        call: CallSettings,
        *,
        opening: tuple[ChatMessage, ...] = (),
        decisions: list[Decision] | None = None,
        model: ChatModel | None = None,
        hooks: RunHooks | None = None,
        errors: StreamErrors = "raise",
    ) -> Run[Any]:
        from sidestream.agent.setup import SetupPlan, citation_check, followed, setups, turn_for
        from sidestream.run.run import Run
        from sidestream.run.settings import RunHooks, RunSettings

        check_settings(call)
        limits = call.get("limits", self.limits)
        policy = self.approval if call.get("approval") is None else call.get("approval")
        check_policy(policy)
        system = call.get("system", self.system)
        check_system(system)
        typed = self.output_type if output is None else checked_output(output)
        context, evidence = call.get("context", self.context), call.get("evidence", self.evidence)
        plan = SetupPlan(
            call=call,
            own=own_tools(checked_tools(call["tools"])) if "tools" in call else self._own,
            servers=self._local_toolsets,
            server_side_tools=checked_server_side_tools(call.get("server_side_tools", self.server_side_tools)),
            settings=self.settings,
            options=call_options(self.options, call),
            policy=policy,
            limits=limits,
            context=context,
            prices=self._prices,
            window=self._windows.of,
            messages=state.messages,
        )
        first, *fallbacks = setups(plan, self._tried(model), state.model, model)
        turn = turn_for(first, state, plan, typed is not None, self._message_metadata, bool(fallbacks))
        settings = RunSettings(
            **first.values(),
            limits=limits,
            system=system,
            deps=call.get("deps"),
            stream=call.get("stream", True),
            policy=policy,
            output=typed,
            opening=opening,
            message_metadata=self._message_metadata,
            result_metadata=self._result_metadata,
            hooks=followed(hooks or RunHooks(), self.telemetry, self._hooks),
            errors=errors,
            fallbacks=tuple(fallbacks),
            tool_errors=call.get("tool_errors", self._tool_errors),
            citations=None if evidence is None else citation_check(evidence, plan, self, turn),
        )
        return Run(turn, settings, decisions)

    def _services(self) -> Services:
        """Return the services that locally executed tools may use."""
        from sidestream.agent.services import services_of

        return services_of(self.limits, self._delegated)

    def _delegated(
        self,
        model: str,
        prompt: str,
        tools: Sequence[ServerSideTool],
        context: ToolContext,
        *,
        system: str | None = None,
    ) -> Run[Any]:
        """Start a run on another model that hosts a tool."""
        delegate = Agent(model, server_side_tools=tools, system=system, limits=self.limits)
        return delegate._run_as_tool(context, prompt)

    def _tried(self, model: ChatModel | None) -> tuple[Models, ...]:
        """Return the models of a run in the order in which they are tried. A media model has no fallback."""
        models = override_of(self).models
        return self._candidates if models is None and model is None else (self._chosen,)


def _chain(hooks: Sequence[Hooks]) -> HookChain | None:
    from sidestream.agent.hooks import chain_of

    return chain_of(hooks)
