"""A chat: a history that grows turn by turn. A turn that fails or is cancelled leaves it as it was."""

from collections.abc import AsyncGenerator, Iterable
from typing import Any, Generic, TypeVar, Unpack

from sidestream.agent import Agent
from sidestream.agent_settings import CallSettings, Prompt
from sidestream.approvals import Decision
from sidestream.errors import ConfigurationError
from sidestream.messages import ChatMessage, messages_from_json, messages_to_json
from sidestream.results import ChatResult
from sidestream.run import Run
from sidestream.run_state import RunState

T = TypeVar("T")


class Chat(Generic[T]):
    """A conversation with an agent. Change `chat.agent` to go on with another model or provider."""

    def __init__(self, agent: Agent[T], messages: Iterable[ChatMessage] = ()) -> None:
        self.agent = agent
        self._messages = list(messages)
        self._waiting: RunState | None = None

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """The history so far."""
        return tuple(self._messages)

    @property
    def run_state(self) -> RunState | None:
        """Set while the last turn waits for approvals."""
        return self._waiting

    def to_json(self) -> str:
        """The history as JSON text."""
        return messages_to_json(self._messages)

    @classmethod
    def from_json(cls, agent: Agent[T], text: str | bytes) -> "Chat[T]":
        """The chat whose history `to_json` wrote."""
        return cls(agent, messages_from_json(text))

    async def send(self, prompt: Prompt, **call: Unpack[CallSettings]) -> ChatResult[T]:
        """One turn."""
        return await self._keep(self.agent.stream(prompt, **self._with_history(call)))

    async def send_stream(self, prompt: Prompt, **call: Unpack[CallSettings]) -> AsyncGenerator[ChatResult[str]]:
        """One turn in chunks. It counts once its last chunk has come."""
        run = self.agent.stream(prompt, **self._with_history(call))
        new: list[ChatMessage] = []
        try:
            async for chunk in run.chunks():
                new.extend(chunk.messages)
                yield chunk
        finally:
            await run.aclose()
        self._take(run, new)

    async def resume(self, decisions: Iterable[Decision], **call: Unpack[CallSettings]) -> ChatResult[T]:
        """Goes on with the turn that waits for approvals."""
        if self._waiting is None:
            raise ConfigurationError("the chat does not wait for an approval")
        return await self._keep(self.agent.resume(self._waiting, decisions, **call))

    def _with_history(self, call: CallSettings) -> CallSettings:
        if "history" in call:
            raise ConfigurationError("a chat has its own history; pass messages to Chat(agent, messages)")
        if self._waiting is not None:
            raise ConfigurationError("the last turn waits for approvals; call chat.resume(decisions) first")
        return {**call, "history": self._messages}

    async def _keep(self, run: Run[T]) -> ChatResult[T]:
        result = await run.result()
        self._take(run, result.messages)
        return result

    def _take(self, run: Run[Any], new: Iterable[ChatMessage]) -> None:
        self._messages.extend(new)
        state = run.state
        self._waiting = state if state.approvals else None
