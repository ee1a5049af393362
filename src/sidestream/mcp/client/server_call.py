"""One call to a server's tool, including the server's questions and the task it may become.

Imported with the first call, since it needs the official client.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import mcp_types
from mcp import MCPError
from msgspec.structs import replace

from sidestream.errors import SignInError, ToolServerError
from sidestream.jsontext import JsonObject, without_none
from sidestream.mcp.client import questions, tasks
from sidestream.mcp.client.connection import Connection, ServerStoppedError
from sidestream.mcp.client.content import outcome_of
from sidestream.mcp.client.questions import PausedCall
from sidestream.mcp.display import visible
from sidestream.text.redaction import redact
from sidestream.tools.context import ToolContext
from sidestream.tools.tool import ToolOutcome

MAX_ROUNDS = 10
"""Maximum rounds of questions in one call. A server that asks more often is refused."""
_MAX_MESSAGE_CHARACTERS = 2000
_MAX_PROGRESS_CHARACTERS = 1000
_MAX_PROGRESS_REPORTS = 1000
"""Maximum progress reports per call. Further ones are dropped."""
_STATE_ONLY_PAUSE_S = 0.25
"""Seconds before a call is repeated for a server that asks nothing and only wants its state back."""
_POLL_S = 1.0
"""Seconds between polls of a task, if its server does not say."""
_MIN_POLL_S, _MAX_POLL_S = 0.05, 60.0
_RECONNECT_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0)
"""Pauses in seconds between attempts to reach a task's server. After the last one the call fails."""
_CANCEL_TIMEOUT_S = 5.0
"""Seconds that a server may take to cancel a task."""

_T = TypeVar("_T", bound=mcp_types.Result)


class ServerCall:
    """One call, until it has a result or waits for the user."""

    def __init__(
        self, connect: Callable[[], Connection], label: str, name: str, arguments: JsonObject, context: ToolContext
    ) -> None:
        self._connect = connect
        self._label = label
        self._name = name
        self._arguments = arguments
        self._context = context
        self._reports = 0
        self._state = PausedCall()

    async def run(self) -> object:
        suspended = self._context.suspended
        if suspended is None:
            return await self._finish(await self._send(None))
        self._state = PausedCall.of(suspended)
        answers = await self._answers(questions.decided(self._state, suspended.decisions))
        if self._state.task is not None:
            return await self._follow(self._state.task, _POLL_S, answers)
        return await self._finish(await self._send(answers))

    async def _send(
        self, answers: dict[str, mcp_types.InputResponse] | None
    ) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult | mcp_types.Result:
        return await self._connect().call(
            self._name,
            self._arguments,
            self._on_progress,
            answers,
            self._state.request_state,
            self._context.idempotency_key,
        )

    async def _finish(
        self, result: mcp_types.CallToolResult | mcp_types.InputRequiredResult | mcp_types.Result
    ) -> object:
        while isinstance(result, mcp_types.InputRequiredResult):
            self._count_round()
            self._state = replace(self._state, request_state=result.request_state)
            if not result.input_requests:
                await asyncio.sleep(_STATE_ONLY_PAUSE_S)
                result = await self._send(None)
                continue
            if self._needs_person(result.input_requests):
                return questions.stop(self._state, self._label, self._arguments, self._context)
            result = await self._send(await self._answers({}))
        if isinstance(result, tasks.TaskCreated):
            return await self._follow(result.task_id, _seconds(result.poll_interval_ms), {})
        assert isinstance(result, mcp_types.CallToolResult)
        return outcome_of(result)

    # Questions

    def _count_round(self) -> None:
        self._state = replace(self._state, rounds=self._state.rounds + 1)
        if self._state.rounds > MAX_ROUNDS:
            raise questions.refusal(self._label, f"it requested more input {self._state.rounds} times")

    def _needs_person(self, requests: dict[str, mcp_types.InputRequest]) -> bool:
        """Store the requests, and return whether the user must answer some of them."""
        self._state = replace(self._state, requests=questions.dump(requests))
        return not self._connect().answers_questions and any(map(questions.is_question, requests.values()))

    async def _answers(self, decided: Mapping[str, mcp_types.InputResponse]) -> dict[str, mcp_types.InputResponse]:
        """Combine the user's decisions with the callbacks' answers to the other requests."""
        answers: dict[str, mcp_types.InputResponse] = dict(decided)
        for key, request in questions.parse(self._state.requests).items():
            if key not in answers:
                answer = await self._connect().answer(key, request)
                if isinstance(answer, mcp_types.ErrorData):
                    raise MCPError.from_error_data(answer)
                answers[key] = answer
        return answers

    # Tasks

    async def _follow(self, task_id: str, poll_s: float, answers: dict[str, mcp_types.InputResponse]) -> object:
        """Poll a task until it has ended or waits for the user.

        Cancelling the call cancels the task, unless it will be continued when the run is resumed.
        """
        params = tasks.TaskParams(task_id=task_id)
        self._state = PausedCall(task=task_id, rounds=self._state.rounds)
        # Answers are not kept: if the process ends before the server has them, it asks again.
        await self._context.checkpoint(self._state.to_json())
        try:
            return await self._poll(params, poll_s, answers)
        except asyncio.CancelledError:
            if not self._context.is_left():
                with suppress(Exception):
                    async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                        await self._connect().request(tasks.CancelTask(params=params), mcp_types.EmptyResult)
            raise

    async def _poll(
        self, params: tasks.TaskParams, poll_s: float, answers: dict[str, mcp_types.InputResponse]
    ) -> object:
        answered = set(answers)
        if answers:
            update = tasks.UpdateParams(task_id=params.task_id, input_responses=answers)
            await self._request(tasks.UpdateTask(params=update), mcp_types.EmptyResult)
        last: tuple[str, str | None] | None = None
        while True:
            task = await self._request(tasks.GetTask(params=params), tasks.ServerTask)
            if (task.status, task.status_message) != last:
                last = task.status, task.status_message
                self._report({"status": task.status, "message": task.status_message})
            if task.status == "completed":
                return outcome_of(await self._connect().validated(self._name, tasks.result_of(task)))
            if task.status in ("failed", "cancelled"):
                return self._failure(task)
            asked = {key: request for key, request in (task.input_requests or {}).items() if key not in answered}
            if task.status == "input_required" and asked:
                self._count_round()
                if self._needs_person(asked):
                    return questions.stop(self._state, self._label, self._arguments, self._context)
                answers = await self._answers({})
                answered |= answers.keys()
                update = tasks.UpdateParams(task_id=params.task_id, input_responses=answers)
                await self._request(tasks.UpdateTask(params=update), mcp_types.EmptyResult)
            poll_s = poll_s if task.poll_interval_ms is None else _seconds(task.poll_interval_ms)
            await asyncio.sleep(poll_s)

    async def _request(self, request: mcp_types.Request[Any, Any], result_type: type[_T]) -> _T:
        """Send a request about a task, reconnecting if the connection is lost."""
        for pause_s in _RECONNECT_S:
            try:
                return await self._connect().request(request, result_type)
            except SignInError:
                raise
            except (ServerStoppedError, ToolServerError):
                await asyncio.sleep(pause_s)
        return await self._connect().request(request, result_type)

    def _failure(self, task: tasks.ServerTask) -> ToolOutcome:
        reason = task.error.message if task.error is not None else task.status_message or "it gives no reason"
        text = visible(redact(reason), _MAX_MESSAGE_CHARACTERS)
        ending = "was cancelled" if task.status == "cancelled" else "failed"
        return ToolOutcome.failure("ToolError", f"The task of the MCP server {self._label} {ending}: {text}")

    # Progress

    async def _on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self._report({"progress": progress, "total": total, "message": message})

    def _report(self, report: dict[str, Any]) -> None:
        self._reports += 1
        if self._reports > _MAX_PROGRESS_REPORTS:
            return
        message = report["message"]
        report["message"] = message and visible(message, _MAX_PROGRESS_CHARACTERS)
        self._context.progress(without_none(report))


def _seconds(interval_ms: float | None) -> float:
    return _POLL_S if interval_ms is None else min(max(interval_ms / 1000, _MIN_POLL_S), _MAX_POLL_S)
