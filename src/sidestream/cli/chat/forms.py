"""Prompts a person to fill in the form of an MCP server, field by field."""

import math
import re
from typing import Any

from sidestream import jsontext
from sidestream.cli.chat.approvals import PrintLine, ReadAnswer, escape_unprintable
from sidestream.jsontext import JsonObject, as_object
from sidestream.tools.approvals import Decision, PendingApproval
from sidestream.tools.forms import choices, problem_with

VISITED = "have you done that? [y]es, [n]o: "
FORM_HELP = "an empty line takes the default or leaves the field out; a line with only ! declines the whole form"
DECLINE = "!"

_YES = re.compile(r"\s*(y|yes|true)\s*", re.IGNORECASE)
_NO = re.compile(r"\s*(n|no|false)\s*", re.IGNORECASE)


async def fill_in(call: PendingApproval, print_line: PrintLine, read_answer: ReadAnswer) -> Decision | None:
    """The decision on a form, or None at the end of the input. Repeats the form until the answers fit."""
    form = call.form or {}
    owner = escape_unprintable(call.server_label or call.tool)
    print_line(f"{owner} asks: {escape_unprintable(str(form.get('message', '')))}", "yellow", "bold")
    if "url" in form:
        print_line(f"  open this address: {escape_unprintable(str(form['url']))}")
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
    """The text as the type of the field; as it is where it has none of it, which the check then reports."""
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
