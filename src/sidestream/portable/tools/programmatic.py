"""Programs that call tools, for every model: Python in a container, in which each of the agent's tools is a function.

A program that needs the user's decision ends there. When it is resumed, it runs again from its beginning in a new
container. Calls that it has already made return their earlier results, so no tool is called twice.
"""

import asyncio
import keyword
import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from sidestream.jsontext import Json, JsonObject
from sidestream.portable.sandbox.port import CellOutcome, ToolAnswer
from sidestream.portable.services import Services
from sidestream.portable.tools.functions import Functions
from sidestream.portable.tools.machine import Machine, Place, deliver, emit_event
from sidestream.tools.approvals import PendingApproval, Suspended, digest_of
from sidestream.tools.server_side import ProgrammaticToolCalling
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome
from sidestream.tools.toolset import Toolset


def toolset(config: ProgrammaticToolCalling, services: Services) -> Toolset:
    """Create the tool `programmatic_tool_calling`."""
    programs = _Programs(config)
    # Sources read by its tools count for the run, as with their direct results.
    is_open_world = config.sandbox == "none"
    tool = Tool.from_function(programs.run, name=config.key, key=config.key, is_open_world=is_open_world)
    return Functions(config.key, [tool], programs.machine.containers.aclose)


class _Programs:
    def __init__(self, config: ProgrammaticToolCalling) -> None:
        self.machine = Machine(config)

    async def run(self, context: ToolContext, code: str) -> ToolOutcome:
        """Runs a Python program that calls your other tools, and returns what it printed.

        Each of your other tools is an async function of the same name (with _ for -), which takes its arguments as
        keywords and returns its result: `data = await get_weather(city="Paris")`. Several at once:
        `await asyncio.gather(...)`, after `import asyncio`. Only what the program prints comes back, so print what you
        need and no more. Each program starts without the variables of earlier ones.

        Args:
            code: The program. `await` works at its top level.
        """  # noqa: D401 (sent to models)
        attempt = _Attempt(context, code)
        async with self.machine.place(context, is_private=True) as place:
            try:
                outcome = await attempt.run(place)
            finally:
                await place.kept.container.kill()
        if outcome is None:
            return ToolOutcome(None, suspended=attempt.suspended())
        return self._result(context, place, outcome)

    def _result(self, context: ToolContext, place: Place, outcome: CellOutcome) -> ToolOutcome:
        deliver(context, place, outcome.files)
        reason = self.machine.explained(outcome.ending)
        status = "completed" if outcome.ending == "completed" else "incomplete"
        result: JsonObject = {"status": status, "result": outcome.logs}
        if notes := [*outcome.notes, *([reason] if reason else [])]:
            result["notes"] = notes
        return ToolOutcome(result, is_error=reason is not None)


class Progress(Struct):
    """What a program has besides its calls' results, which the run keeps, while it waits for decisions."""

    answers: dict[str, ToolAnswer] = {}
    """Results of calls, by key. Only runs that were suspended by older versions have them here."""
    decisions: dict[str, bool] = {}


class _Attempt:
    """One execution of a program."""

    def __init__(self, context: ToolContext, code: str) -> None:
        self._context = context
        self._code = code
        self._names = _functions(context.tools.names)
        self._progress = Progress()
        self._counts: dict[str, int] = {}
        self._waiting: list[PendingApproval] = []
        self._stops = asyncio.Event()
        self._running = 0
        if context.suspended is not None:
            self._progress = msgspec.json.decode(context.suspended.state, type=Progress)
            made = {decision.call_id: decision.is_approved for decision in context.suspended.decisions}
            self._progress.decisions |= {call_id.rpartition("/")[2]: answer for call_id, answer in made.items()}

    async def run(self, place: Place) -> CellOutcome | None:
        """Run the program and return its outcome, or None if it waits for decisions."""
        working = asyncio.ensure_future(
            place.kept.container.run(self._code, self._print, tools=list(self._names), call_tool=self._call)
        )
        stopping = asyncio.ensure_future(self._stops.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.wait({working, stopping})

    def suspended(self) -> Suspended:
        """Return the pending approvals and the calls made so far."""
        return Suspended(msgspec.json.encode(self._progress).decode(), tuple(self._waiting))

    def _print(self, text: str) -> None:
        emit_event(self._context, "program", "logs", logs=text)

    async def _call(self, function: str, arguments: Json) -> ToolAnswer:
        name = self._names.get(function, function)
        digest = digest_of(name, arguments)
        self._counts[digest] = count = self._counts.get(digest, 0) + 1
        key = f"{digest[:24]}-{count}"
        if (known := self._progress.answers.get(key)) is not None:
            return known
        call_id = f"{self._context.call_id}/{key}"
        if (earlier := self._context.tools.answer(call_id, name)) is not None:
            return ToolAnswer(earlier.result, earlier.is_error)
        self._running += 1
        try:
            outcome = await self._context.tools.call(
                call_id, name, arguments, is_approved=self._progress.decisions.get(key)
            )
        finally:
            self._running -= 1
        if outcome.suspended is None:
            self._stop_if_idle()
            return ToolAnswer(outcome.result, outcome.is_error)
        self._waiting += outcome.suspended.approvals
        self._stop_if_idle()
        await asyncio.Event().wait()  # until the program is stopped
        raise AssertionError

    def _stop_if_idle(self) -> None:
        """Stop a program that waits for the user, once none of its calls is running whose result would be lost."""
        if self._waiting and not self._running:
            self._stops.set()


def _functions(names: Sequence[str]) -> dict[str, str]:
    """Map function names to tool names."""
    found: dict[str, str] = {}
    for name in names:
        function = re.sub(r"\W", "_", name)
        function = f"_{function}" if function[:1].isdigit() or keyword.iskeyword(function) else function
        found.setdefault(function, name)
    return found
