"""The synchronous methods of an agent, for scripts and threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from sidestream.agent.settings import CallSettings, shows_settings
from sidestream.tools.context import DepsT

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import Unpack

    from sidestream.output import OutputType
    from sidestream.results.results import ChatResult
    from sidestream.run.blocking import SyncRun
    from sidestream.run.prompts import Prompt
    from sidestream.run.run import Run
    from sidestream.run.settings import StreamErrors
    from sidestream.tools.approvals import Decision
    from sidestream.turn.state import RunState

T = TypeVar("T")
OutT = TypeVar("OutT")


class RunsBlocking(ABC, Generic[T, DepsT]):
    """The synchronous methods of an agent, each of which runs it in a separate event loop and waits."""

    @abstractmethod
    def stream(
        self,
        prompt: Prompt,
        *,
        output_type: Any = None,
        errors: StreamErrors = "raise",
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[Any]: ...

    @abstractmethod
    def resume(
        self,
        state: RunState | str | bytes,
        decisions: Iterable[Decision] = (),
        *,
        output_type: Any = None,
        errors: StreamErrors = "raise",
        **call: Unpack[CallSettings[DepsT]],
    ) -> Run[Any]:
        """Continue a waiting run."""

    @overload
    def send_sync(self, prompt: Prompt, **call: Unpack[CallSettings[DepsT]]) -> ChatResult[T]: ...
    @overload
    def send_sync(
        self, prompt: Prompt, *, output_type: type[OutT] | OutputType[OutT], **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[OutT]: ...
    @overload
    def send_sync(
        self, prompt: Prompt, *, output_type: Any, **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[Any]: ...
    @shows_settings(CallSettings)
    def send_sync(
        self, prompt: Prompt, *, output_type: Any = None, **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[Any]:
        """Run `send` synchronously, for scripts and threads."""
        from sidestream.run.blocking import refuse_running_loop, wait_for

        refuse_running_loop("send_sync", "await agent.send(...)")
        run = self.stream(prompt, output_type=output_type, **call)
        return wait_for(run.result, "send_sync", "await agent.send(...)")

    @overload
    def stream_sync(
        self, prompt: Prompt, *, errors: StreamErrors = ..., **call: Unpack[CallSettings[DepsT]]
    ) -> SyncRun[T]: ...
    @overload
    def stream_sync(
        self,
        prompt: Prompt,
        *,
        output_type: type[OutT] | OutputType[OutT],
        errors: StreamErrors = ...,
        **call: Unpack[CallSettings[DepsT]],
    ) -> SyncRun[OutT]: ...
    @overload
    def stream_sync(
        self, prompt: Prompt, *, output_type: Any, errors: StreamErrors = ..., **call: Unpack[CallSettings[DepsT]]
    ) -> SyncRun[Any]: ...
    @shows_settings(CallSettings)
    def stream_sync(
        self,
        prompt: Prompt,
        *,
        output_type: Any = None,
        errors: StreamErrors = "raise",
        **call: Unpack[CallSettings[DepsT]],
    ) -> SyncRun[Any]:
        """Run `stream` synchronously, as in `with agent.stream_sync("…") as run: for part in run: …`."""
        from sidestream.run.blocking import SyncRun, refuse_running_loop, started

        refuse_running_loop("stream_sync", "async with agent.stream(...) as run")
        return SyncRun(started(self.stream(prompt, output_type=output_type, errors=errors, **call)))

    @shows_settings(CallSettings)
    def send_stream_sync(
        self, prompt: Prompt, *, output_type: Any = None, **call: Unpack[CallSettings[DepsT]]
    ) -> Generator[ChatResult[str]]:
        """Run `send_stream` synchronously, as in `for chunk in agent.send_stream_sync("…"): …`."""
        from sidestream.run.blocking import refuse_running_loop, started, sync_chunks

        refuse_running_loop("send_stream_sync", "async for chunk in agent.send_stream(...)")
        return sync_chunks(started(self.stream(prompt, output_type=output_type, **call)))

    @overload
    def resume_sync(
        self, state: RunState | str | bytes, decisions: Iterable[Decision] = (), **call: Unpack[CallSettings[DepsT]]
    ) -> ChatResult[T]: ...
    @overload
    def resume_sync(
        self,
        state: RunState | str | bytes,
        decisions: Iterable[Decision] = (),
        *,
        output_type: type[OutT] | OutputType[OutT],
        **call: Unpack[CallSettings[DepsT]],
    ) -> ChatResult[OutT]: ...
    @overload
    def resume_sync(
        self,
        state: RunState | str | bytes,
        decisions: Iterable[Decision] = (),
        *,
        output_type: Any,
        **call: Unpack[CallSettings[DepsT]],
    ) -> ChatResult[Any]: ...
    @shows_settings(CallSettings)
    def resume_sync(
        self,
        state: RunState | str | bytes,
        decisions: Iterable[Decision] = (),
        *,
        output_type: Any = None,
        **call: Unpack[CallSettings[DepsT]],
    ) -> ChatResult[Any]:
        """Run `await agent.resume(...)` synchronously."""
        from sidestream.run.blocking import refuse_running_loop, wait_for

        refuse_running_loop("resume_sync", "await agent.resume(...)")
        run = self.resume(state, decisions, output_type=output_type, **call)
        return wait_for(run.result, "resume_sync", "await agent.resume(...)")
