"""Functions that answer a provider's own calls: conversion of an `actions` call to the function's arguments.

A function takes what it needs: some fields of the call by name, the whole call as its one other parameter or, for
computer use, one `action` at a time.
"""

from collections.abc import Mapping

from msgspec.structs import fields

from sidestream.actions.computer import ComputerCall
from sidestream.actions.patch import UpdateFile
from sidestream.actions.shell import LocalShellCall, ShellCall
from sidestream.jsontext import JsonObject, objects
from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.tools.server_side import ApplyPatch, ComputerUse, LocalShell, Shell
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome

_CALLS = {Shell.key: ShellCall, LocalShell.key: LocalShellCall, ComputerUse.key: ComputerCall}
FIELDS: Mapping[str, frozenset[str]] = {
    **{key: frozenset(field.name for field in fields(call)) for key, call in _CALLS.items()},
    ApplyPatch.key: frozenset(field.name for field in fields(UpdateFile)) | {"type"},
}
"""Tool key → fields of its calls, which a function may take by name."""


def argument_sets(key: str, action: JsonObject, parameters: JsonObject) -> list[JsonObject]:
    """Return the arguments for each invocation of a function that answers a provider's call.

    `parameters` is the function's schema. Only a list of computer actions results in several invocations.
    """
    names: JsonObject = parameters.get("properties", {})
    known = FIELDS.get(key, frozenset(action))
    given = {name: value for name, value in action.items() if name in names}
    if "actions" in action and "action" in names and "actions" not in names:
        return [{**given, "action": entry} for entry in objects(action["actions"])]
    # A required parameter that matches no field takes the whole call.
    whole = [name for name in parameters.get("required", ()) if name not in known and name not in action]
    return [{**given, **({whole[0]: action} if len(whole) == 1 else {})}]


async def answer_call(
    tool: Tool, key: str, action: JsonObject, context: ToolContext, limits: Limits = DEFAULT_LIMITS
) -> ToolOutcome:
    """Answer a provider's call with the function and return the outcome.

    Several actions run one after the other, up to the first failure; the last outcome is returned. Raises only
    CancelledError, if cancelled.
    """
    outcome: ToolOutcome = ToolOutcome.failure("InvalidArguments", "The call contains no action.")
    for arguments in argument_sets(key, action, tool.parameters):
        outcome = await tool.run(arguments, context, limits)
        if outcome.is_error:
            break
    return outcome
