"""The agent: a model, its tools, and four ways to run it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sidestream.calls import Transport
from sidestream.errors import ConfigurationError, RunError
from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.messages import ChatMessage, MessagePart
from sidestream.models import ChatModel, ModelRequest, ModelString, Settings, ToolSpec, find_provider
from sidestream.results import ChatResult, ChunkFold, MessageMetadata, ResultFold, ResultMetadata
from sidestream.run import Run
from sidestream.server_tools import ServerTool
from sidestream.tools import Tool, as_tools
from sidestream.turn import Turn

if TYPE_CHECKING:
    from aiohttp import ClientSession

Prompt = str | ChatMessage | Sequence[str | MessagePart]


class Agent:
    """A model with tools. It keeps no history: pass `history` to go on with a conversation."""

    def __init__(
        self,
        model: str | ChatModel,
        *,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        server_side_tools: Iterable[ServerTool] = (),
        system: str | None = None,
        options: Any = None,
        api_key: str | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Callable[[], Mapping[str, str]] | None = None,
        transport: Transport | None = None,
        session: "ClientSession | None" = None,
        limits: Limits = DEFAULT_LIMITS,
        message_metadata: MessageMetadata = "session",
        result_metadata: ResultMetadata = "accumulated",
    ) -> None:
        if isinstance(model, str):
            parsed = ModelString.parse(model)
            provider = find_provider(parsed.provider)
            settings = Settings(api_key=api_key, base_url=base_url, headers=dict(headers or {}), auth=auth)
            name = parsed.models.get("chat") or provider.default_models.get("chat", "")
            self.model: ChatModel = provider.chat_model(name, settings)
            transport = transport or provider.transport(name)
        else:
            self.model = model
        self.tools = as_tools(tools)
        self.server_side_tools = tuple(server_side_tools)
        self.system = system
        self.options = options
        self.limits = limits
        self._transport = transport
        self._session = session
        self._message_metadata: MessageMetadata = message_metadata
        self._result_metadata: ResultMetadata = result_metadata

    def __repr__(self) -> str:
        return f"Agent({self.model.provider}:{self.model.name})"

    def stream(self, prompt: Prompt, *, history: Iterable[ChatMessage] = (), stream: bool = True) -> Run:
        """The typed parts of a run: `async with agent.stream("…") as run: async for part in run: …`.

        What goes wrong on the way comes as an `error` part; nothing is raised for it. With `stream=False` the answer is
        asked for whole and gives the same parts.
        """
        # A function that answers a provider's own call type is not offered a second time.
        client_calls = frozenset(tool.client_call for tool in self.server_side_tools if tool.client_call)
        specs = tuple(
            ToolSpec(tool.name, tool.description, tool.parameters, tool.strict)
            for tool in self.tools.values()
            if tool.name not in client_calls
        )

        def request(turn: Turn) -> ModelRequest:
            return ModelRequest(
                messages=tuple(turn.state.messages),
                system=self.system,
                tools=specs,
                server_tools=self.server_side_tools,
                options=self.options,
                stream=stream,
                without=frozenset(turn.state.without),
            )

        turn = Turn(
            [*history, user_message(prompt)],
            tools=frozenset(self.tools),
            handed_over=client_calls,
            limits=self.limits,
            message_metadata=self._message_metadata,
        )
        return Run(
            turn,
            model=self.model,
            transport=self._carrier(),
            request=request,
            tools=self.tools,
            limits=self.limits,
        )

    async def send_stream(
        self, prompt: Prompt, *, history: Iterable[ChatMessage] = (), stream: bool = True
    ) -> AsyncGenerator[ChatResult[str]]:
        """The run in chunks, each with what is new. A run that fails raises after its last chunk."""
        message = user_message(prompt)
        folding = ChunkFold([message], self._message_metadata)
        for chunk in folding.opening():
            yield chunk
        run = self.stream(message, history=history, stream=stream)
        try:
            async for part in run:
                for chunk in folding.feed(part):
                    yield chunk
            if run.error is not None:
                raise run.error
        finally:
            await run.aclose()

    async def send(
        self, prompt: Prompt, *, history: Iterable[ChatMessage] = (), stream: bool = True
    ) -> ChatResult[str]:
        """The result of a run: exactly the fold of `send_stream`. An error carries what had come in `error.result`."""
        folding = ResultFold(self._result_metadata)
        try:
            async for chunk in self.send_stream(prompt, history=history, stream=stream):
                folding.feed(chunk)
        except RunError as error:
            error.result = folding.result()
            raise
        return folding.result()

    def send_sync(self, prompt: Prompt, *, history: Iterable[ChatMessage] = ()) -> ChatResult[str]:
        """`send` for code that is not async."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.send(prompt, history=history))
        raise ConfigurationError(
            "send_sync was called inside a running event loop; write `await agent.send(...)` there"
        )

    def _carrier(self) -> Transport:
        if self._transport is None:
            from sidestream.wire.http import HttpTransport

            self._transport = HttpTransport(self._session)
        return self._transport


def user_message(prompt: Prompt) -> ChatMessage:
    """The user's message: text, parts, or a message as it is."""
    if isinstance(prompt, ChatMessage):
        return prompt
    if isinstance(prompt, str):
        return ChatMessage.user(prompt)
    return ChatMessage.user(*prompt)
