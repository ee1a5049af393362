"""Asks a person about calls that wait: what would run, with which arguments, and where the wish comes from."""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Protocol

from sidestream import jsontext
from sidestream.cli.process import UserInterruptError
from sidestream.cli.terminal import one_line
from sidestream.tools.approvals import Decision, PendingApproval

MAX_VALUE = 400
"""Characters of one argument that are shown at first."""
MAX_ARGUMENTS = 20
QUESTION = "run it? [y]es, [n]o (a reason may follow), [v]iew all: "
HOW = "answer y or n; after n a reason for the model may follow; v shows the arguments in full"
DENIED = "denied by the option --approve never"
PLAIN = "requested by the model"

_ANSWER = re.compile(r"\s*(y|yes|n|no|v|view)\b[\s:,.]*(.*)", re.IGNORECASE | re.DOTALL)


class PrintLine(Protocol):
    """Writes a line for the person."""

    def __call__(self, text: str, *styles: str) -> None: ...


ReadAnswer = Callable[[str], Awaitable[str | None]]
"""Shows a question and gives what was answered; None where nobody answers any more."""


class ApprovalPrompt:
    """Gets decisions; `read` is None where nobody can be asked."""

    def __init__(self, say: PrintLine, read: ReadAnswer | None, approve: str = "ask") -> None:
        self._say = say
        self._read = read
        self._approve = approve

    async def decide(self, waiting: Iterable[PendingApproval], *, is_old: bool = False) -> list[Decision] | None:
        """A decision on each call; None where one of them got no answer, and none counts then.

        `is_old`: the calls were asked about in an earlier run, so that `--approve always` covers them. What is still
        asked about in a run of its own is so for a reason that the option does not overrule.
        """
        decisions: list[Decision] = []
        for call in waiting:
            try:
                decision = self._settled(call, is_old=is_old) or await self._asked(call)
            except UserInterruptError:
                return None
            if decision is None:
                return None
            decisions.append(decision)
        return decisions

    def _settled(self, call: PendingApproval, *, is_old: bool) -> Decision | None:
        if self._approve == "never":
            return call.deny(DENIED)
        if self._approve == "always" and is_old and call.provenance == PLAIN:
            return call.approve()
        return None

    async def _asked(self, call: PendingApproval) -> Decision | None:
        self._show(call, MAX_VALUE)
        while self._read is not None and (answer := await self._read(QUESTION)) is not None:
            found = _ANSWER.fullmatch(answer)
            match found[1][0].lower() if found is not None else "":
                case "y" if found is not None and not found[2]:
                    return call.approve()
                case "n" if found is not None:
                    return call.deny(found[2].strip() or None)
                case "v":
                    self._show(call, None)
                case _:
                    self._say(HOW)
        return None

    def _show(self, call: PendingApproval, limit: int | None) -> None:
        owner = f" of {visible(call.server_label)}" if call.server_label else ""
        where = ", run by the provider" if call.is_remote else ""
        self._say(f"approval needed: {visible(call.tool)}{owner}{where}", "yellow", "bold")
        for line in arguments(call.input, limit):
            self._say(f"  {line}")
        is_plain = call.provenance.startswith("requested")
        self._say(f"  {one_line(call.provenance, 500)}" if is_plain else f"  warning: it {call.provenance}", "yellow")


def arguments(given: Any, limit: int | None = MAX_VALUE) -> Iterator[str]:
    """A call's arguments, one to a line, with everything that is no visible character written out."""
    fields = jsontext.as_object(given)
    if not fields:
        yield "without arguments" if given in (None, {}) else _cut(given, limit)
        return
    for number, (name, value) in enumerate(fields.items()):
        if limit is not None and number == MAX_ARGUMENTS:
            yield f"… and {len(fields) - number} more arguments"
            return
        yield f"{visible(name)[:200]}: {_cut(value, limit)}"


def _cut(value: Any, limit: int | None) -> str:
    text = visible(jsontext.dumps(value).decode("utf-8", "replace"))
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]} … (cut: {len(text):,} characters in all)"


def visible(text: str) -> str:
    """The text with characters that steer, hide or turn around written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
