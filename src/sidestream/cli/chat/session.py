"""A chat in the terminal: its turns, approvals, errors and steering messages."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from sidestream.agent.chat import Chat
from sidestream.cli import exit_codes
from sidestream.cli.chat.approvals import ApprovalPrompt, PrintLine, ReadAnswer
from sidestream.cli.display.screen import Screen, one_line
from sidestream.cli.display.view import View, show_run
from sidestream.cli.inputs.agent_factory import AgentFactory
from sidestream.errors import ConflictError, SteerError, StoreError
from sidestream.messages.message import ChatMessage
from sidestream.run.prompts import Prompt
from sidestream.run.run import Run
from sidestream.store.protocol import Store
from sidestream.text.redaction import redact
from sidestream.tools.approvals import ApprovalError
from sidestream.turn.state import MUST_RESUME, TURN_STATUSES, TurnStatus, status_after


class Interjections(Protocol):
    """A source of lines that are entered while a run is in progress."""

    async def interjection(self) -> str | None:
        """Read the next line, or return None if no more can come."""
        ...

    def put_back(self, text: str) -> None:
        """Make a line that the run did not accept the next message."""
        ...


async def steer_by_lines(run: Run[Any], lines: Interjections, print_line: PrintLine) -> None:
    """Send each line to the run until it finishes. A line that comes too late becomes the next message."""
    while (line := await lines.interjection()) is not None:
        text = line.strip()
        if not text:
            continue
        if text.startswith("/") and text[1:].partition(" ")[0].isalpha():
            print_line(f"{one_line(text)}: commands work only at the prompt; press Ctrl-C to stop the answer", "yellow")
            continue
        try:
            await run.steer(text)
            print_line(f"steer: {one_line(text)} (pending)", "dim")
        except SteerError:
            lines.put_back(text)
            print_line(f"next message: {one_line(text)}", "dim")
            return
        except StoreError as error:
            print_line(f"error: {redact(one_line(str(error), 1000))}", "red")
            return


EXIT_CODES: dict[TurnStatus, int] = {
    "complete": exit_codes.OK,
    "failed": exit_codes.FAILED,
    "waiting": exit_codes.WAITING,
    "unfinished": exit_codes.WAITING,
    "cancelled": exit_codes.INTERRUPTED,
}
"""Exit codes, by status of the last turn."""

RESUME_QUESTION = "[r]esume it, [d]iscard it, or [q]uit? "


class ChatSession:
    """Runs the turns of a chat. `outcome` is the status of the last one."""

    def __init__(
        self,
        chat: Chat[Any],
        view: View,
        print_line: PrintLine,
        approvals: ApprovalPrompt,
        *,
        is_stored: bool,
        resume_flags: str = "",
        interjections: Interjections | None = None,
        call: Mapping[str, Any] | None = None,
        must_log: bool = True,
        store: Store | None = None,
    ) -> None:
        self.chat = chat
        self.call = dict(call or {})
        """Settings of every run, which override the agent's."""
        self.is_stored = is_stored
        self.outcome: TurnStatus = "complete"
        self.store_error: StoreError | None = None
        """Error that stopped logging. None means that the conversation is logged."""
        self._view = view
        self._print = print_line
        self._approvals = approvals
        self._resume_flags = resume_flags
        self._interjections = interjections
        self._must_log = must_log
        self._store = store
        self._history = () if is_stored else chat.messages

    @property
    def exit_code(self) -> int:
        """The exit code for the outcome of the last turn."""
        if self.store_error is not None and self._must_log:
            return exit_codes.FAILED
        return EXIT_CODES[self.outcome] or (exit_codes.FAILED if self._view.has_unsaved else exit_codes.OK)

    @property
    def resume_command(self) -> str:
        """The command that resumes the last turn."""
        return f"sidestream logs resume {self.chat.id}{self._resume_flags}"

    async def open(self, *, is_new: bool) -> None:
        """Load the conversation. If the store fails, report the error and continue a new conversation without it."""
        try:
            await self.chat.load()
        except StoreError as error:
            if not is_new:
                raise
            self._report_store_error(error)

    async def turn(self, prompt: Prompt, **call: Any) -> None:
        """Run a turn to its end, prompting for approvals. Discards an unfinished turn first."""
        if self.chat.status in MUST_RESUME:
            await self.chat.discard()
        self._history = self.chat.messages
        await self._run(self.chat.stream(prompt, errors="parts", **{**self.call, **call}))

    async def settle(self, read_answer: ReadAnswer | None, resume: Callable[[], Awaitable[None]] | None = None) -> bool:
        """Report an incomplete last turn and offer to resume it. Returns False if the command should end.

        A turn that must be resumed or discarded first needs an answer, so without `read_answer` the command ends.
        """
        status, meaning = self.chat.status, TURN_STATUSES[self.chat.status]
        if status == "complete":
            return True
        about = f"last turn of {self.chat.id}: {status} ({meaning})"
        if status not in MUST_RESUME:
            self._print(f"note: {about}; a new message drops it; resume it with: {self.resume_command}", "yellow")
            return True
        if read_answer is None:
            self.refuse()
            return False
        self._print(about, "yellow")
        return await self._settle(read_answer, resume or self.resume)

    def refuse(self) -> None:
        """Report that the last turn must be resumed or discarded first."""
        status, meaning = self.chat.status, TURN_STATUSES[self.chat.status]
        self.outcome = status
        self._print(f"error: last turn of {self.chat.id}: {status} ({meaning})", "red")
        self._print(f"Resume it with: {self.resume_command}", "yellow")
        self._print(f"Or discard it with: sidestream logs discard {self.chat.id}", "yellow")

    async def _settle(self, read_answer: ReadAnswer, resume: Callable[[], Awaitable[None]]) -> bool:
        while (answer := await read_answer(RESUME_QUESTION)) is not None:
            match answer.strip().lower()[:1]:
                case "r":
                    await resume()
                    return True
                case "d":
                    await self.chat.discard()
                    return True
                case "q":
                    break
                case _:
                    self._print("Answer r, d or q.")
        self.outcome = self.chat.status
        return False

    async def resume(self) -> None:
        """Resume the last turn. Raises ConfigurationError if the turn is complete."""
        state = self.chat.run_state
        pending = state.approvals if state is not None else ()
        decisions = await self._approvals.decide(pending, self.chat.messages, is_resumed=True)
        if decisions is None:
            self._report_pending()
            return
        await self._run(self.chat.resume_stream(decisions, errors="parts", **self.call))

    async def branch(self, messages: Sequence[ChatMessage]) -> None:
        """Continue in a new conversation with this history. The previous conversation is unchanged."""
        store = self._store if self.is_stored else None
        self.chat = Chat(self.chat.agent, messages, store=store, id=None if store is None else new_id())
        self._history = tuple(messages)
        self.outcome = "complete"
        await self.chat.load()

    async def recover(self) -> None:
        """Reload the chat after a cancelled or failed turn."""
        self._keep_store_error(self.chat.store_error)
        if self.store_error is not None and not isinstance(self.store_error, ConflictError):
            self._detach_store()
            return
        try:
            await self.chat.load()
        except StoreError as error:
            self._report_store_error(error)

    async def _run(self, run: Run[Any]) -> None:
        while True:
            # If showing the run is interrupted, the turn counts as cancelled.
            self.outcome = "cancelled"
            self.outcome = await self._show(run)
            self._keep_store_error(self.chat.store_error)
            if self.outcome == "failed":
                await self.recover()
            state = self.chat.run_state if self.outcome == "waiting" else None
            if state is None or not state.approvals:
                break
            decisions = await self._approvals.decide(state.approvals, self.chat.messages)
            if decisions is None:
                break
            run = self.chat.resume_stream(decisions, errors="parts", **self.call)
        if self.outcome == "waiting":
            self._report_pending()

    async def _show(self, run: Run[Any]) -> TurnStatus:
        try:
            async with run, self._steering(run):
                return status_after(await show_run(run, self._view))
        except (StoreError, ApprovalError) as error:
            self._keep_store_error(error if isinstance(error, StoreError) else None)
            self._print(f"error: {redact(one_line(str(error), 1000))}", "red")
            return "failed"

    @asynccontextmanager
    async def _steering(self, run: Run[Any]) -> AsyncGenerator[None]:
        """Steer the run with lines entered inside the context."""
        if self._interjections is None:
            yield
            return
        task = asyncio.create_task(steer_by_lines(run, self._interjections, self._print))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    def _report_pending(self) -> None:
        self.outcome = "waiting"
        state = self.chat.run_state
        is_external = state is not None and any(call.is_external for call in state.approvals)
        if self.is_stored:
            wanted = "an external result" if is_external else "your approval"
            self._print(f"The call needs {wanted}. Resume with: {self.resume_command}", "yellow")
        elif is_external:
            self._print("The call needs an external result, which only a logged conversation can receive.", "yellow")
        else:
            self._print("The call was not approved and did not run. Use --approve run to run such calls.", "yellow")

    def _report_store_error(self, error: StoreError) -> None:
        self._keep_store_error(error)
        kind, style = ("error", "red") if self._must_log else ("warning", "yellow")
        self._print(f"{kind}: the conversation is not logged: {redact(one_line(str(error), 1000))}", style)
        self._detach_store()

    def _detach_store(self) -> None:
        self.is_stored = False
        self.chat = Chat(self.chat.agent, self._history)

    def _keep_store_error(self, error: StoreError | None) -> None:
        self.store_error = self.store_error or error


def create_session(
    agents: AgentFactory,
    store: Store | None,
    id: str | None,
    screen: Screen,
    view: View,
    read_answer: ReadAnswer | None,
    interjections: Interjections | None = None,
    *,
    must_log: bool = True,
) -> ChatSession:
    """Create a session of the conversation with this id, or of an unlogged one if there is no store.

    Without `must_log`, the command succeeds even if the store fails.
    """
    return ChatSession(
        Chat(agents.create(), store=store, id=id),
        view,
        screen.line,
        ApprovalPrompt(screen.line, read_answer, agents.config.policy, agents.servers_with_approval),
        is_stored=store is not None,
        call=agents.call,
        must_log=must_log,
        store=store,
        resume_flags=agents.config.resume_flags,
        interjections=interjections,
    )


def new_id() -> str:
    """Return a new conversation id, short enough to type."""
    return f"chat_{secrets.token_hex(6)}"
