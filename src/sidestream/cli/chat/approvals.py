"""Prompts for approving pending calls and filling in MCP servers' forms."""

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from sidestream import jsontext
from sidestream.cli.display.screen import one_line
from sidestream.cli.interrupts import UserInterruptError
from sidestream.jsontext import JsonObject, as_object
from sidestream.messages.message import ChatMessage, ToolResultPart
from sidestream.tools.approvals import Decision, PendingApproval, Verdict, choices, problem_with

MAX_VALUE = 400
"""Characters shown of each argument by default."""
MAX_ARGUMENTS = 20
QUESTION = "Run it? [y]es, [n]o (you can add a reason), [v]iew all: "
REMEMBER_QUESTION = "Run it? [y]es, [a]lways in this conversation, [n]o (you can add a reason), [v]iew all: "
ANSWER_HELP = "Answer y or n. After n, you can add a reason for the model. Answer v to see the full arguments."
REMEMBER_HELP = f"{ANSWER_HELP} Answer a to also allow later calls to the tool in this conversation."
EXTERNAL_QUESTION = "[n]o, refuse it (you can add a reason), [v]iew all, Enter to leave it pending: "
EXTERNAL_HELP = (
    "The result is external, so you cannot approve the call here. Answer n to refuse it, or press Enter to wait."
)
DENIED = "denied by the option --approve deny"
REQUESTED_BY_MODEL = "requested by the model"

_ANSWER = re.compile(r"\s*(y|yes|a|always|n|no|v|view)\b[\s:,.]*(.*)", re.IGNORECASE | re.DOTALL)


class PrintLine(Protocol):
    """A function that prints a line to the terminal."""

    def __call__(self, text: str, *styles: str) -> None: ...


ReadAnswer = Callable[[str], Awaitable[str | None]]
"""A function that prints a question and returns the answer, or None at the end of the input."""


class ApprovalPrompt:
    """Collects decisions on pending approvals. `read_answer` is None if the session is not interactive.

    `approve` decides on calls left over from an earlier run, except those of `servers_with_approval`, whose own policy
    takes precedence.
    """

    def __init__(
        self,
        print_line: PrintLine,
        read_answer: ReadAnswer | None,
        approve: Verdict = "ask",
        servers_with_approval: frozenset[str] = frozenset(),
    ) -> None:
        self._print = print_line
        self._read_answer = read_answer
        self._approve = approve
        self._servers_with_approval = servers_with_approval
        self._history: Sequence[ChatMessage] = ()

    async def decide(
        self, pending: Iterable[PendingApproval], history: Sequence[ChatMessage] = (), *, is_resumed: bool = False
    ) -> list[Decision] | None:
        """Return a decision for each call, or None if any call got no answer.

        Arguments that differ from the last call to the same tool in the history are shown with their previous values.
        `is_resumed` says that the calls are left over from an earlier run, so `--approve run` covers them. A call that
        needs approval in the current run needs it for a reason that the option does not override.
        """
        decisions: list[Decision] = []
        self._history = history
        for call in pending:
            try:
                decision = self._from_option(call, is_resumed=is_resumed) or await self._prompt(call)
            except UserInterruptError:
                return None
            if decision is None:
                return None
            decisions.append(decision)
        return decisions

    def _from_option(self, call: PendingApproval, *, is_resumed: bool) -> Decision | None:
        if self._approve == "deny":
            return call.deny(DENIED)
        is_covered = is_resumed and call.provenance == REQUESTED_BY_MODEL and not call.is_external
        if self._approve == "run" and is_covered and call.server_label not in self._servers_with_approval:
            return call.approve()
        return None

    async def _prompt(self, call: PendingApproval) -> Decision | None:
        if call.form is not None:
            return None if self._read_answer is None else await fill_in(call, self._print, self._read_answer)
        self._show(call, MAX_VALUE)
        question, help_text = (EXTERNAL_QUESTION, EXTERNAL_HELP) if call.is_external else (QUESTION, ANSWER_HELP)
        if call.can_remember:
            question, help_text = REMEMBER_QUESTION, REMEMBER_HELP
        while self._read_answer is not None and (answer := await self._read_answer(question)) is not None:
            found = _ANSWER.fullmatch(answer)
            match found[1][0].lower() if found is not None else "":
                case "" if call.is_external and not answer.strip():
                    return None
                case "y" if found is not None and not found[2] and not call.is_external:
                    return call.approve()
                case "a" if found is not None and not found[2] and call.can_remember:
                    return call.approve(remember="conversation")
                case "n" if found is not None:
                    return call.deny(found[2].strip() or None)
                case "v":
                    self._show(call, None)
                case _:
                    self._print(help_text)
        return None

    def _show(self, call: PendingApproval, limit: int | None) -> None:
        owner = f" of {escape_unprintable(call.server_label)}" if call.server_label else ""
        where = ", run by the provider" if call.is_remote else ""
        title = "external result needed" if call.is_external else "approval needed"
        self._print(f"{title}: {escape_unprintable(call.tool)}{owner}{where}", "yellow", "bold")
        for line in arguments(call.input, limit, previous_input(self._history, call)):
            self._print(f"  {line}")
        provenance = one_line(call.provenance, 500)
        self._print(
            f"  {provenance}" if provenance.startswith("requested") else f"  warning: it {provenance}", "yellow"
        )


def previous_input(history: Sequence[ChatMessage], call: PendingApproval) -> JsonObject:
    """Return the arguments of the tool's last successful call in the history, or an empty object."""
    done = {
        part.id
        for message in history
        for part in message.parts
        if isinstance(part, ToolResultPart) and not part.is_error and part.id != call.call_id
    }
    calls = (part for message in reversed(history) for part in reversed(message.tool_calls))
    found = (part.input for part in calls if part.name == call.tool and part.id in done)
    return jsontext.as_object(next(found, None))


def arguments(given: Any, limit: int | None = MAX_VALUE, previous: JsonObject | None = None) -> Iterator[str]:
    """Yield a call's arguments and their previous values, one per line, with unprintable characters escaped."""
    fields = jsontext.as_object(given)
    if not fields:
        yield "no arguments" if given in (None, {}) else _truncated(given, limit)
        return
    for number, (name, value) in enumerate(fields.items()):
        if limit is not None and number == MAX_ARGUMENTS:
            yield f"… and {len(fields) - number} more arguments"
            return
        was = f"   (was {_truncated(previous[name], limit)})" if previous and previous.get(name, value) != value else ""
        yield f"{escape_unprintable(name)[:200]}: {_truncated(value, limit)}{was}"
    for name, value in (previous or {}).items():
        if name not in fields:
            yield f"{escape_unprintable(name)[:200]}: not given   (was {_truncated(value, limit)})"


def _truncated(value: Any, limit: int | None) -> str:
    text = escape_unprintable(jsontext.dumps(value).decode("utf-8", "replace"))
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]} … (truncated, {len(text):,} characters in total)"


def escape_unprintable(text: str) -> str:
    """Escape control, invisible and bidirectional characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


VISITED = "Have you done that? [y]es, [n]o: "
FORM_HELP = "An empty line takes the default or skips the field. A line with only ! declines the whole form."
DECLINE = "!"

_YES = re.compile(r"\s*(y|yes|true)\s*", re.IGNORECASE)
_NO = re.compile(r"\s*(n|no|false)\s*", re.IGNORECASE)


async def fill_in(call: PendingApproval, print_line: PrintLine, read_answer: ReadAnswer) -> Decision | None:
    """Return the decision on a form, or None at the end of the input. Repeats the form until the answers are valid."""
    form = call.form or {}
    owner = escape_unprintable(call.server_label or call.tool)
    print_line(f"{owner} asks: {escape_unprintable(str(form.get('message', '')))}", "yellow", "bold")
    if "url" in form:
        print_line(f"  Open this URL: {escape_unprintable(str(form['url']))}")
        return await _visited(call, read_answer)
    print_line(f"  {FORM_HELP}", "dim")
    while True:
        answers: JsonObject = {}
        for name, field in as_object(as_object(form.get("schema")).get("properties")).items():
            answer = await read_answer(_prompt(name, as_object(field)))
            if answer is None:
                return None
            if answer.strip() == DECLINE:
                return call.deny()
            if answer.strip():
                answers[name] = _value(as_object(field), answer.strip())
        problem = problem_with(form, answers)
        if problem is None:
            return call.approve(answers)
        print_line(escape_unprintable(problem), "yellow")


async def _visited(call: PendingApproval, read_answer: ReadAnswer) -> Decision | None:
    while (answer := await read_answer(VISITED)) is not None:
        if _YES.fullmatch(answer):
            return call.approve()
        if _NO.fullmatch(answer) or answer.strip() == DECLINE:
            return call.deny()
    return None


def _prompt(name: str, field: JsonObject) -> str:
    title = str(field.get("title") or name)
    allowed = [str(value) for value in choices(field)]
    if field.get("type") == "boolean":
        allowed = ["yes", "no"]
    hint = f" ({', '.join(allowed)})" if allowed else ""
    default = f" [{_written(field['default'])}]" if "default" in field else ""
    return escape_unprintable(f"{title}{hint}{default}: ")


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else jsontext.dumps(value).decode()


def _value(field: JsonObject, text: str) -> Any:
    """Convert an answer to the field's type. An answer that does not fit stays a string, which validation reports."""
    match field.get("type"):
        case "boolean" if _YES.fullmatch(text) or _NO.fullmatch(text):
            return _YES.fullmatch(text) is not None
        case "integer" | "number":
            try:
                return int(text)
            except ValueError:
                return _number(text)
        case "array":
            return [entry.strip() for entry in text.split(",")]
        case _:
            return text


def _number(text: str) -> float | str:
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
