"""Handlers for shell, patch and computer calls, most of which the client executes."""

import shlex
from typing import Any

from sidestream import jsontext
from sidestream.jsontext import JsonObject, as_list, as_object, is_object, without_none
from sidestream.providers.openai.responses.decode import shapes
from sidestream.providers.openai.responses.decode.state import ItemState, ResponsesState

_BUTTONS = {"wheel": "middle"}


def local_shell_action(action: JsonObject) -> JsonObject:
    """Convert a local shell action, with the command as a list and as a shell script."""
    command = [str(word) for word in as_list(action.get("command"))]
    rest = {name: action.get(name) for name in ("env", "timeout_ms", "user", "working_directory")}
    return {"command": command, "script": shlex.join(command), **without_none(rest)}


def computer_action(actions: list[Any], checks: list[Any]) -> JsonObject:
    """Convert computer actions and the pending safety checks."""
    body: JsonObject = {"actions": [_computer(as_object(action)) for action in actions]}
    return {**body, "safety_checks": [safety_check(check) for check in checks]} if checks else body


def safety_check(check: Any) -> JsonObject:
    """Convert a safety check. An unreadable one is kept as a message, since the user must still see it."""
    fields = as_object(check) if is_object(check) else {"message": str(check)}
    texts = {name: fields[name] for name in ("code", "message") if isinstance(fields.get(name), str)}
    return {"id": str(fields.get("id", "")), **texts}


def _computer(action: JsonObject) -> JsonObject:
    from sidestream.actions.computer import ACTION_TYPES

    kind = str(action.get("type"))
    fields = without_none({key: value for key, value in action.items() if key != "type"})
    if kind not in ACTION_TYPES:
        return {"type": "other", "name": kind, "arguments": fields}
    if "button" in fields:
        fields["button"] = _BUTTONS.get(str(fields["button"]), fields["button"])
    return {"type": kind, **fields}


def _shell_hosted(s: ResponsesState, value: shapes.ShellItem) -> bool:
    """Return whether the provider executes a shell call.

    The call's own environment decides, or else the tool as declared in the response or the request.
    """
    environment = s.shell_environment if value.environment is None else value.environment
    if environment is not None:
        return str(jsontext.as_object(environment).get("type")).startswith("container")
    return bool(s.context.hosted_shell)


def shell_added(s: ResponsesState, item: ItemState, value: shapes.ShellItem) -> None:
    """Emit a `tool-input-start`."""
    item.provider_executed = _shell_hosted(s, value)
    s.open_input(item)


def shell_done(s: ResponsesState, item: ItemState, value: shapes.ShellItem) -> None:
    """Emit `tool-input-end` and `tool-call`."""
    item.provider_executed = _shell_hosted(s, value)
    item.action = {}
    action = {key: content for key, content in (value.action or {}).items() if content is not None}
    commands: Any = action.pop("commands", [])
    if item.streamed and not item.called:
        # The streamed commands are the start of the JSON text.
        if item.command is not None:
            command_done(s, item, "".join(item.command))
        rest = jsontext.dumps(action).decode()[1:]
        s.input_delta(item, "]" + ("," + rest if len(rest) > 1 else "}"))
        s.call(item, {"commands": commands, **action})
    else:
        s.whole_call(item, {"commands": commands, **action})


def command_delta(s: ResponsesState, item: ItemState, delta: str) -> None:
    """Emit more of a shell command, and open the command and the list of commands if necessary."""
    s.open_input(item)
    if item.command is None:
        s.input_delta(item, ',"' if item.streamed else '{"commands":["')
        item.streamed.append("")
        item.command = []
    item.command.append(delta)
    s.input_delta(item, jsontext.escape(delta))


def command_done(s: ResponsesState, item: ItemState, command: str) -> None:
    """Emit the end of a shell command."""
    streamed = "".join(item.command or ())
    command_delta(s, item, command[len(streamed) :] if command.startswith(streamed) else "")
    s.input_delta(item, '"')
    item.command = None


def patch_added(s: ResponsesState, item: ItemState, value: shapes.PatchItem) -> None:
    """Emit `tool-input-start` and the start of the JSON text. A deletion is complete at once."""
    operation = value.operation or {}
    if not operation:
        return
    if operation.get("type") == "delete_file":
        s.open_input(item, jsontext.dumps(operation).decode())
        s.close_input(item)
        return
    head = {key: content for key, content in operation.items() if key != "diff"}
    s.open_input(item, jsontext.dumps({**head, "diff": ""}).decode()[:-2])
    if operation.get("diff"):
        item.streamed.append(str(operation["diff"]))
        s.input_delta(item, jsontext.escape(str(operation["diff"])))


def patch_done(s: ResponsesState, item: ItemState, value: shapes.PatchItem) -> None:
    """Emit `tool-input-end` unless already emitted, and `tool-call`."""
    operation = value.operation or {}
    item.action = {}
    if not item.input_started:
        patch_added(s, item, value)
    if item.input_open:
        diff = str(operation.get("diff") or item.input_final or "".join(item.streamed))
        s.wrapped_call(item, diff, '"}', {**operation, "diff": diff})
    else:
        s.call(item, operation)


def action_done(s: ResponsesState, item: ItemState, value: shapes.ActionItem) -> None:
    """Emit `tool-input-*` and `tool-call`."""
    if item.tool == "local_shell":
        item.action = local_shell_action(value.action or {})
        s.whole_call(item, value.action or {})
        return
    item.action = computer_action(
        value.actions or ([value.action] if value.action else []), value.pending_safety_checks or []
    )
    checks = {"pending_safety_checks": value.pending_safety_checks} if value.pending_safety_checks else {}
    actions = {"actions": value.actions} if value.actions else {"action": value.action}
    s.whole_call(item, {**actions, **checks})
