"""The event log of a run, with its start, its pending approvals, and its end when it is closed early."""

from collections.abc import Sequence
from contextlib import suppress

from sidestream.errors import SidestreamError
from sidestream.parts import StreamPart
from sidestream.run.settings import RunSettings
from sidestream.tools.approvals import Decision
from sidestream.turn.machine import Turn


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

    def feed(self, parts: list[StreamPart]) -> None:
        """Record the parts that the turn has just returned."""
        if self._recorder is not None:
            self._recorder.feed(self._turn.outbox.logged(parts))

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
        recorder.cancelled() if is_cancelled else recorder.left()
        await recorder.commit()
