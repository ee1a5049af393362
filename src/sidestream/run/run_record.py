"""The event log of a run, with its start, its pending approvals, and its end when it is closed early."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sidestream.errors import SidestreamError
from sidestream.parts import StepFinish, StreamPart
from sidestream.providers.protocol import Encoded
from sidestream.run.settings import CitationCheck, RunSettings
from sidestream.text.redaction import redact, without_registered
from sidestream.tools.approvals import Decision
from sidestream.transport.calls import HttpResponse, WrappedResponse
from sidestream.turn.machine import Turn

if TYPE_CHECKING:
    from sidestream.run.native_steering import NativeSteering


class RunRecord:
    """Records a run through the recorder of its settings, and does nothing if it has none."""

    def __init__(self, turn: Turn, settings: RunSettings) -> None:
        self._turn = turn
        self._settings = settings
        self._recorder = settings.hooks.recorder
        if self._recorder is not None:
            turn.set_logged()
        self._asked = tuple(approval.approval_id for approval in turn.state.waiting)
        """Ids of the pending approvals that the log has."""
        self._kept: list[_KeptResponse] = []
        """Responses of the current step whose bytes the log is to have."""

    def begin(self, decisions: Sequence[Decision] = (), *, spends: bool = False) -> None:
        """Record the start of the run, and spend the decisions that resume it if `spends` is set.

        Raises ApprovalError if a decision was spent before, and StoreError if the log cannot take the run.
        """
        settings = self._settings
        if spends and settings.hooks.decided is not None:
            settings.hooks.decided(decisions)
        if self._recorder is not None:
            self._recorder.begin(
                self._turn.state.run_id,
                model=f"{settings.model.provider}:{settings.model.name}",
                opening=settings.opening,
                message_metadata=settings.message_metadata,
                decisions=decisions,
            )

    def sending(self, encoded: Encoded, native: "NativeSteering | None") -> None:
        """Record the request that is about to be sent for the next step, unless the provider has begun its answer."""
        if self._recorder is None:
            return
        state, model = self._turn.state, self._settings.model
        if state.background is None and (native is None or native.successor is None):
            path = redact(urlsplit(encoded.call.url).path)
            name = f"{model.provider}:{model.name}"
            self._recorder.sent(encoded.call.body, model=name, path=path, step=state.step + 1)

    def kept(self, response: HttpResponse) -> HttpResponse:
        """Return the response, wrapped to keep its bytes if the log is to have them."""
        if self._recorder is None or not self._recorder.keeps_responses:
            return response
        self._kept.append(kept := _KeptResponse(response))
        return kept

    def feed(self, parts: list[StreamPart]) -> None:
        """Record the parts that the turn has just returned."""
        if self._recorder is not None:
            if self._kept and any(type(part) is StepFinish for part in parts):
                self._record_responses()
            self._recorder.feed(self._turn.outbox.logged(parts))

    def note(self, parts: list[StreamPart]) -> None:
        """Show the parts to those who need them at the end of the step."""
        if self._settings.context is not None:
            self._settings.context.measure(self._turn.state.messages, parts)
        if self._settings.citations is not None:
            self._settings.citations.feed(parts)

    def checked(self, citations: CitationCheck) -> None:
        """Record the last check of citations."""
        if self._recorder is not None:
            citations.record(self._recorder)

    def note_approvals(self) -> None:
        """Record the approvals that have become pending. The log has them before the parts that report them."""
        waiting = self._turn.state.waiting
        if self._recorder is not None:
            for approval in waiting:
                if approval.approval_id not in self._asked:
                    self._recorder.asked(approval)
        self._asked = tuple(approval.approval_id for approval in waiting)

    async def commit(self) -> StreamPart | None:
        """Wait until everything is in the log, or return a notice, once, if it cannot be."""
        return await self._recorder.commit() if self._recorder is not None else None

    async def close(self, *, is_ended: bool, is_cancelled: bool) -> None:
        """Record that the run was cancelled, or abandoned for another process, unless it has ended."""
        recorder = self._recorder
        if recorder is None:
            return
        if is_ended:
            # The end may still be in writing if the run was cancelled meanwhile. Its caller has had any error.
            with suppress(SidestreamError):
                await recorder.commit()
            return
        self._record_responses()
        recorder.cancelled() if is_cancelled else recorder.left()
        await recorder.commit()

    def _record_responses(self) -> None:
        assert self._recorder is not None
        for response in self._kept:
            content = without_registered(response.content.decode("utf-8", "surrogateescape"))
            self._recorder.received(
                content.encode("utf-8", "surrogateescape"),
                step=self._turn.state.step,
                status=response.status,
                is_stream=response.is_stream,
            )
        self._kept.clear()


class _KeptResponse(WrappedResponse):
    """A response that keeps what is read from it."""

    def __init__(self, inner: HttpResponse) -> None:
        super().__init__(inner)
        self._read: list[bytes] = []

    @property
    def content(self) -> bytes:
        """Bytes read so far, with events in the format of server-sent events."""
        return b"".join(self._read)

    async def events(self) -> list[bytes]:
        """Return the data of the next events."""
        events = await self._inner.events()
        self._read += [b"data: %b\n\n" % event.replace(b"\n", b"\ndata: ") for event in events]
        return events

    async def body(self) -> bytes:
        """Return the whole body."""
        body = await self._inner.body()
        self._read.append(body)
        return body
