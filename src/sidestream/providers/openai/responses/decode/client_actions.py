"""Calls that the client answers, in the terms of `sidestream.actions`, where the API's own differ.

Their values are checked when a function is called with them.
"""

import shlex
from typing import Any

from sidestream.jsontext import JsonObject, as_list, as_object, is_object
from sidestream.providers.shared.decoding import present

_BUTTONS = {"wheel": "middle"}


def local_shell_action(action: JsonObject) -> JsonObject:
    """One command, also as text for a shell."""
    command = [str(word) for word in as_list(action.get("command"))]
    rest = {name: action.get(name) for name in ("env", "timeout_ms", "user", "working_directory")}
    return {"command": command, "script": shlex.join(command), **present(rest)}


def computer_action(actions: list[Any], checks: list[Any]) -> JsonObject:
    """Actions to carry out in order, and the safety checks that are pending."""
    body: JsonObject = {"actions": [_computer(as_object(action)) for action in actions]}
    return {**body, "safety_checks": [safety_check(check) for check in checks]} if checks else body


def safety_check(check: Any) -> JsonObject:
    """A safety check. One that cannot be read is still one that a person must see."""
    fields = as_object(check) if is_object(check) else {"message": str(check)}
    texts = {name: fields[name] for name in ("code", "message") if isinstance(fields.get(name), str)}
    return {"id": str(fields.get("id", "")), **texts}


def _computer(action: JsonObject) -> JsonObject:
    from sidestream.actions.computer import ACTION_TYPES

    kind = str(action.get("type"))
    fields = present({key: value for key, value in action.items() if key != "type"})
    if kind not in ACTION_TYPES:
        return {"type": "other", "name": kind, "arguments": fields}
    if "button" in fields:
        fields["button"] = _BUTTONS.get(str(fields["button"]), fields["button"])
    return {"type": kind, **fields}
