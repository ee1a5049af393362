"""A conversation at the terminal: its turns are shown, its approvals asked, and what goes wrong is said in one line."""

import secrets
from typing import TYPE_CHECKING, Any, Literal

from sidestream.agent.chat import Chat
from sidestream.cli import exits
from sidestream.cli.approving import Asker, Says
from sidestream.cli.playing import play
from sidestream.cli.render import View
from sidestream.cli.terminal import one_line
from sidestream.errors import ConflictError, StoreError
from sidestream.redaction import redact

if TYPE_CHECKING:
    from sidestream.agent.settings import Prompt
    from sidestream.run.run import Run

Ending = Literal["complete", "failed", "waiting", "cancelled"]

_ENDINGS: dict[str | None, Ending] = {None: "failed", "error": "failed", "approval": "waiting"}
"""Finish reason → how a turn ended for the command; any other reason completes it."""
CODES: dict[Ending, int] = {
    "complete": exits.OK,
    "failed": exits.FAILED,
    "waiting": exits.WAITING,
    "cancelled": exits.INTERRUPTED,
}


class Session:
    """Carries the turns of a chat out. `ending` says how the last one ended."""

    def __init__(
        self, chat: Chat[Any], view: View, say: Says, asker: Asker, *, is_stored: bool, options: str = ""
    ) -> None:
        self.chat = chat
        self.is_stored = is_stored
        self.ending: Ending = "complete"
        self.store_error: StoreError | None = None
        """Why the conversation is not written down, or not wholly."""
        self._view = view
        self._say = say
        self._asker = asker
        self._options = options
        self._before = () if is_stored else chat.messages

    @property
    def code(self) -> int:
        """The exit code that fits how things ended."""
        if self.store_error is not None:
            return exits.FAILED
        return CODES[self.ending] or (exits.FAILED if self._view.has_unsaved else exits.OK)

    @property
    def resume_words(self) -> str:
        """The command that goes on with the last turn."""
        return f"sidestream logs resume {self.chat.id}{self._options}"

    async def open(self, *, is_new: bool) -> None:
        """Reads the conversation. A new one goes on without a store that cannot be used; that is said."""
        try:
            await self.chat.load()
        except StoreError as error:
            if not is_new:
                raise
            self._without_store(error)

    async def turn(self, prompt: "Prompt", **call: Any) -> None:
        """One turn, to its end; calls that wait are asked about. An open turn before it is dropped."""
        if self.chat.status in ("waiting", "broken-off"):
            await self.chat.discard()
        self._before = self.chat.messages
        await self._go(self.chat.stream(prompt, **call))

    async def resume(self) -> None:
        """Goes on with the last turn. Raises ConfigurationError where it is complete."""
        state = self.chat.run_state
        waiting = state.approvals if state is not None else ()
        decisions = await self._asker.decide(waiting, is_old=True)
        if decisions is None:
            self._wait()
            return
        await self._go(self.chat.resume_stream(decisions))

    async def settle(self) -> None:
        """Brings the chat up to date after a turn that was stopped or that failed."""
        self._note(self.chat.store_error)
        if self.store_error is not None and not isinstance(self.store_error, ConflictError):
            self._leave_store()
            return
        try:
            await self.chat.load()
        except StoreError as error:
            self._without_store(error)

    async def _go(self, run: "Run[Any]") -> None:
        while True:
            # Until its end is known, a turn counts as stopped.
            self.ending = "cancelled"
            self.ending = await self._played(run)
            self._note(self.chat.store_error)
            if self.ending == "failed":
                await self.settle()
            state = self.chat.run_state if self.ending == "waiting" else None
            if state is None or not state.approvals:
                break
            decisions = await self._asker.decide(state.approvals)
            if decisions is None:
                break
            run = self.chat.resume_stream(decisions)
        if self.ending == "waiting":
            self._wait()

    async def _played(self, run: "Run[Any]") -> Ending:
        try:
            async with run:
                return _ENDINGS.get(await play(run, self._view), "complete")
        except StoreError as error:
            self._note(error)
            self._say(f"error: {redact(one_line(str(error), 1000))}", "red")
            return "failed"

    def _wait(self) -> None:
        self.ending = "waiting"
        if self.is_stored:
            self._say(f"the call waits for an approval; go on with: {self.resume_words}", "yellow")
        else:
            self._say("the call waited for an approval and was not run; --approve always lets such calls run", "yellow")

    def _without_store(self, error: StoreError) -> None:
        self._note(error)
        self._say(f"error: the conversation is not written down: {redact(one_line(str(error), 1000))}", "red")
        self._leave_store()

    def _leave_store(self) -> None:
        self.is_stored = False
        self.chat = Chat(self.chat.agent, self._before)

    def _note(self, error: StoreError | None) -> None:
        self.store_error = self.store_error or error


def new_id() -> str:
    """The id of a new conversation, short enough to be typed."""
    return f"chat_{secrets.token_hex(6)}"
