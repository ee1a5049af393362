"""Conversion of the API's predefined computer-use functions to `sidestream.actions`. Pure.

The API measures a screen in thousandths, but a tool function gets pixels. Values are validated when the function is
called.
"""

from collections.abc import Callable, Iterable
from typing import Any

from sidestream.errors import UnsupportedError
from sidestream.jsontext import JsonObject, as_list, as_object, text_in, without_none
from sidestream.providers.google.context import GoogleContext
from sidestream.providers.google.options import GoogleComputerUse
from sidestream.providers.shared.hosting import refuse_others
from sidestream.tools.server_side import ComputerUse

_GRID = 1000
_ENVIRONMENTS = {"browser": "browser", "windows": "desktop", "mac": "desktop", "linux": "desktop", "ubuntu": "desktop"}
_SAFE = frozenset({"regular", "allowed", "allow"})
SAFETY = "safety_decision"
"""Argument that holds the API's safety decision, which may require the user's confirmation."""
ACKNOWLEDGEMENT = "safety_acknowledgement"
"""Response field that acknowledges the safety decision."""

Screen = tuple[int, int]
Convert = Callable[[JsonObject, Screen], JsonObject]


def computer_use(tool: ComputerUse) -> GoogleComputerUse:
    """Convert the portable tool to Google's. Raises UnsupportedError if the display size is missing."""
    refuse_others(tool, "Google", "display_width", "display_height", "environment")
    if tool.display_width is None or tool.display_height is None:
        raise UnsupportedError(
            "Google needs the screen size to convert coordinates; set ComputerUse(display_width=…, display_height=…)"
        )
    environment: Any = _ENVIRONMENTS[tool.environment or "browser"]
    return GoogleComputerUse(
        environment=environment, display_width=tool.display_width, display_height=tool.display_height
    )


def screen_of(server_side: Iterable[Any]) -> Screen | None:
    """Return the size of the screen that the model acts on, or None without computer use.

    If the size is unknown, it is the API's own grid.
    """
    tool = next((tool for tool in server_side if isinstance(tool, GoogleComputerUse)), None)
    return None if tool is None else (tool.display_width or _GRID, tool.display_height or _GRID)


def client_action(context: GoogleContext, name: str, arguments: JsonObject) -> tuple[str, JsonObject] | None:
    """Convert a predefined function call to its tool and portable terms, or return None for other functions."""
    if context.screen is None or name in context.functions:
        return None
    fields = {key: value for key, value in arguments.items() if key != SAFETY}
    convert = ACTIONS.get(name)
    other = {"type": "other", "name": name, "arguments": fields}
    body: JsonObject = {"actions": [other if convert is None else convert(fields, context.screen)]}
    check = _check(arguments.get(SAFETY))
    return ComputerUse.key, {**body, "safety_checks": [check]} if check else body


def _check(decision: Any) -> JsonObject | None:
    if decision is None:
        return None
    fields = as_object(decision)
    code = text_in(fields, "decision") or str(decision)
    if code.lower() in _SAFE:
        return None
    return without_none({"id": SAFETY, "code": code, "message": text_in(fields, "explanation")})


def _pixels(value: Any, size: int) -> Any:
    return round(value * size / _GRID) if isinstance(value, int | float) else value


def _at(fields: JsonObject, screen: Screen, prefix: str = "") -> JsonObject:
    x, y = fields.get(f"{prefix}x"), fields.get(f"{prefix}y")
    return without_none({"x": _pixels(x, screen[0]), "y": _pixels(y, screen[1])})


def _click(kind: str = "click", **more: str) -> Convert:
    return lambda fields, screen: {"type": kind, **_at(fields, screen), **more}


def _plain(kind: str, **more: Any) -> Convert:
    return lambda fields, screen: {"type": kind, **more}


def _type(fields: JsonObject, screen: Screen) -> JsonObject:
    flags = {"clears": fields.get("clear_before_typing"), "enters": fields.get("press_enter")}
    return {"type": "type", "text": fields.get("text"), **_at(fields, screen), **without_none(flags)}


def _keys(fields: JsonObject, screen: Screen) -> JsonObject:
    keys = fields.get("keys", fields.get("key"))
    named = [key for key in keys.split("+") if key] if isinstance(keys, str) else as_list(keys)
    return {"type": "keypress", "keys": named}


def _drag(fields: JsonObject, screen: Screen) -> JsonObject:
    return {"type": "drag", "path": [_at(fields, screen), _at(fields, screen, "destination_")]}


_DIRECTIONS = {"up": (1, -1), "down": (1, 1), "left": (0, -1), "right": (0, 1)}


def _scroll(fields: JsonObject, screen: Screen) -> JsonObject:
    """Convert a scroll. Without a magnitude, it covers most of the visible part."""
    axis, sign = _DIRECTIONS.get(str(fields.get("direction")), (1, 1))
    distance = sign * _pixels(fields.get("magnitude", 800), screen[axis])
    return {"type": "scroll", ("scroll_x", "scroll_y")[axis]: distance, **_at(fields, screen)}


ACTIONS: dict[str, Convert] = {
    "click_at": _click(),
    "click": _click(),
    "double_click": _click("double_click"),
    "triple_click": _click("triple_click"),
    "right_click": _click(button="right"),
    "middle_click": _click(button="middle"),
    "hover_at": _click("move"),
    "move": _click("move"),
    "type_text_at": _type,
    "type": _type,
    "key_combination": _keys,
    "press_key": _keys,
    "drag_and_drop": _drag,
    "scroll_at": _scroll,
    "scroll_document": _scroll,
    "navigate": lambda fields, screen: {"type": "navigate", "url": fields.get("url")},
    "go_back": _plain("go_back"),
    "go_forward": _plain("go_forward"),
    "wait_5_seconds": _plain("wait", duration_s=5),
    "take_screenshot": _plain("screenshot"),
}
"""Predefined function → its conversion to portable terms. Other functions are passed on unchanged."""
