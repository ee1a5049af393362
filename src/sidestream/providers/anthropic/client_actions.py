"""Conversion of calls that the client answers (computer, browser and bash) to `sidestream.actions`.

Values are validated when a function is called with them.
"""

from collections.abc import Callable

from sidestream.jsontext import JsonObject, as_list, text_in, without_none
from sidestream.providers.shared.decoding import int_in

TOOLSETS = {"computer": "computer_use", "browser": "browser"}
"""Toolset name → the function that answers the calls of all its members."""

_NOTCH = 100
"""Pixels per notch of a mouse wheel."""
_DIRECTIONS = {"up": ("scroll_y", -1), "down": ("scroll_y", 1), "left": ("scroll_x", -1), "right": ("scroll_x", 1)}


def portable(tool: str, member: str, given: JsonObject) -> JsonObject | None:
    """Convert a tool call to portable terms, or return None if it needs no conversion.

    `member` is the API's name for the tool.
    """
    if tool == "local_shell":
        return _bash(given)
    if tool == "browser":
        return _browser(member, given)
    if tool != "computer_use":
        return None
    # The older tool names the action in its input. In the toolset, each member is an action.
    name = text_in(given, "action") or member
    fields = {key: value for key, value in given.items() if key != "action"}
    convert = ACTIONS.get(name)
    return {"actions": [{"type": "other", "name": name, "arguments": fields} if convert is None else convert(fields)]}


OFF_BY_DEFAULT = frozenset({"file_upload", "read_console", "read_network", "javascript_exec"})
APPROVED = {
    "javascript_exec": "The model wants to run JavaScript in the page.",
    "file_upload": "The model wants to upload files to the page.",
}
"""Members that need the user's approval, each with its reason."""


def _browser(member: str, given: JsonObject) -> JsonObject:
    # Few programs use a browser, so its classes are imported with the first call.
    from sidestream.actions.browser import BROWSER_MEMBERS

    if member not in BROWSER_MEMBERS:
        return {"actions": [{"type": "other", "name": member, "arguments": given}]}
    call: JsonObject = {"actions": [{**without_none(given), "type": member}]}
    if member in APPROVED:
        call["safety_checks"] = [{"id": member, "code": member, "message": APPROVED[member]}]
    return call


def _bash(given: JsonObject) -> JsonObject:
    if given.get("restart") is True:
        return {"restart": True}
    script = text_in(given, "command") or ""
    return {"command": ["bash", "-c", script], "script": script}


def _at(fields: JsonObject, name: str = "coordinate") -> JsonObject:
    place = as_list(fields.get(name))
    return {"x": place[0], "y": place[1]} if len(place) == 2 else {}


def _keys(fields: JsonObject) -> list[str]:
    """Return the keys of a combination such as `ctrl+s`. `ctrl++` contains the key `+`."""
    text = text_in(fields, "text") or ""
    keys = [key for key in text.removesuffix("+").split("+") if key]
    return [*keys, "+"] if text.endswith("+") else keys


def _held(fields: JsonObject) -> JsonObject:
    return {"keys": keys} if (keys := _keys(fields)) else {}


def _click(kind: str = "click", **more: str) -> Callable[[JsonObject], JsonObject]:
    return lambda fields: {"type": kind, **_at(fields), **_held(fields), **more}


def _drag(fields: JsonObject) -> JsonObject:
    return {"type": "drag", "path": [_at(fields, "start_coordinate"), _at(fields)], **_held(fields)}


def _scroll(fields: JsonObject) -> JsonObject:
    axis, sign = _DIRECTIONS.get(str(fields.get("scroll_direction")), ("scroll_y", 1))
    return {
        "type": "scroll",
        axis: sign * _NOTCH * (int_in(fields, "scroll_amount") or 0),
        **_at(fields),
        **_held(fields),
    }


def _key(fields: JsonObject) -> JsonObject:
    return without_none({"type": "keypress", "keys": _keys(fields), "repeat": fields.get("repeat")})


def _hold_key(fields: JsonObject) -> JsonObject:
    return {"type": "hold_keys", "keys": _keys(fields), "duration_s": fields.get("duration")}


def _zoom(fields: JsonObject) -> JsonObject:
    return {
        "type": "zoom",
        **dict(zip(("left", "top", "right", "bottom"), as_list(fields.get("region")), strict=False)),
    }


ACTIONS: dict[str, Callable[[JsonObject], JsonObject]] = {
    "left_click": _click(),
    "right_click": _click(button="right"),
    "middle_click": _click(button="middle"),
    "double_click": _click("double_click"),
    "triple_click": _click("triple_click"),
    "left_mouse_down": lambda fields: {"type": "mouse_down"},
    "left_mouse_up": lambda fields: {"type": "mouse_up"},
    "mouse_move": _click("move"),
    "left_click_drag": _drag,
    "scroll": _scroll,
    "key": _key,
    "hold_key": _hold_key,
    "type": lambda fields: {"type": "type", "text": fields.get("text")},
    "wait": lambda fields: without_none({"type": "wait", "duration_s": fields.get("duration")}),
    "screenshot": lambda fields: {"type": "screenshot"},
    "zoom": _zoom,
    "cursor_position": lambda fields: {"type": "cursor_position"},
}
"""The provider's action → its conversion to portable terms."""
