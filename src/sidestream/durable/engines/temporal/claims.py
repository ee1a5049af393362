"""Claims on Temporal: an attempt of an activity, with its heartbeats and its report."""

import asyncio
from datetime import timedelta

from temporalio.api.workflowservice.v1 import PollActivityTaskQueueResponse
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from sidestream.durable.engines.protocol import EngineError, LeaseLostError, Outcome, Task
from sidestream.durable.engines.temporal.address import ANSWER_S, forget_frames
from sidestream.durable.engines.temporal.workflow import Drive, Driven
from sidestream.durable.log.tokens import token_after, token_at
from sidestream.text.redaction import redact

FAILED_S = 0.5
"""How soon a task on which a worker failed is given to another; doubled with each attempt, up to a lease."""


class TemporalClaim:
    """The right to drive a conversation: the server counts from its last heartbeat."""

    def __init__(self, client: Client, answer: PollActivityTaskQueueResponse, drive: Drive, last: str) -> None:
        """`last` is the token in the last heartbeat of an earlier attempt."""
        self.task = Task(conversation=drive.conversation, position=drive.position, queue=drive.queue)
        self.token = _token(answer, max(drive.token, last))
        self.is_takeover = answer.attempt > 1 or drive.is_takeover
        self.lease_s = answer.heartbeat_timeout.ToTimedelta().total_seconds()
        self._attempt = answer.attempt
        self._activity = client.get_async_activity_handle(task_token=answer.task_token)

    async def heartbeat(self) -> None:
        """Renews the lease. Raises LeaseLostError, and EngineError if the service does not answer."""
        try:
            async with asyncio.timeout(self.lease_s / 2):
                await self._activity.heartbeat(self.token)
        except AsyncActivityCancelledError:
            raise self._lost() from None
        except TimeoutError:
            raise EngineError("Temporal does not answer") from None
        except RPCError as error:
            forget_frames(error)
            if error.status == RPCStatusCode.NOT_FOUND:
                raise self._lost() from None
            raise EngineError(f"Temporal: {redact(error.message)}") from None

    async def report(self, outcome: Outcome) -> None:
        """How far it was driven: the claim ends."""
        await self._end(
            Driven(
                position=outcome.position,
                token=self.token,
                is_waiting=outcome.is_waiting,
                until=outcome.until,
                is_handed_over=outcome.is_handed_over,
            )
        )

    async def give_back(self) -> None:
        """Ends the claim without a report: another worker drives it, at once."""
        position, was_lost = self.task.position, self.is_takeover
        await self._end(Driven(position=position, token=self.token, is_handed_over=True, is_takeover=was_lost))

    async def fail(self, error: BaseException) -> None:
        """This worker could not drive it: another does, later with each attempt."""
        wait_s = min(self.lease_s, FAILED_S * 2 ** min(self._attempt - 1, 20))
        # Without its traceback, which would be stored there.
        failure = ApplicationError(
            redact(str(error)), type=type(error).__name__, next_retry_delay=timedelta(seconds=wait_s)
        )
        await self._end(failure)

    async def _end(self, report: Driven | ApplicationError) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                if isinstance(report, Driven):
                    await self._activity.complete(report)
                else:
                    await self._activity.fail(report, last_heartbeat_details=[self.token])
        except TimeoutError:
            raise EngineError("Temporal does not answer") from None
        except RPCError as error:
            forget_frames(error)
            if error.status == RPCStatusCode.NOT_FOUND:
                raise self._lost() from None
            raise EngineError(f"Temporal: {redact(error.message)}") from None

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(f"the claim on conversation {self.task.conversation!r} is over")


def _token(answer: PollActivityTaskQueueResponse, previous: str) -> str:
    started_s = answer.started_time.ToNanoseconds() / 1e9
    token = token_at(started_s, answer.attempt)
    return token if token > previous else token_after(previous, started_s)
