"""Actions on a computer, in one vocabulary for every provider.

Coordinates are pixels of the last screenshot, from its upper left corner. A click without coordinates happens at the
cursor.
"""

from typing import Annotated, Any, Literal, get_args

from msgspec import field

from sidestream.actions.values import ActionValue, SafetyCheck, Tagged

Button = Literal["left", "right", "middle", "back", "forward"]


class Point(ActionValue, frozen=True):
    """A place on the screen."""

    x: int
    y: int


class Click(ActionValue, frozen=True, tag_field="type", tag="click"):
    """Clicks a button of the mouse, while `keys` are held."""

    x: int | None = None
    y: int | None = None
    button: Button = "left"
    keys: tuple[str, ...] = ()


class DoubleClick(ActionValue, frozen=True, tag_field="type", tag="double_click"):
    """Clicks the left button twice."""

    x: int | None = None
    y: int | None = None
    keys: tuple[str, ...] = ()


class TripleClick(ActionValue, frozen=True, tag_field="type", tag="triple_click"):
    """Clicks the left button three times."""

    x: int | None = None
    y: int | None = None
    keys: tuple[str, ...] = ()


class MouseDown(ActionValue, frozen=True, tag_field="type", tag="mouse_down"):
    """Presses the left button at the cursor and holds it."""


class MouseUp(ActionValue, frozen=True, tag_field="type", tag="mouse_up"):
    """Releases the left button."""


class Move(ActionValue, frozen=True, tag_field="type", tag="move"):
    """Moves the cursor."""

    x: int
    y: int
    keys: tuple[str, ...] = ()


class Drag(ActionValue, frozen=True, tag_field="type", tag="drag"):
    """Drags with the left button along a path."""

    path: tuple[Point, ...]
    keys: tuple[str, ...] = ()


class Scroll(ActionValue, frozen=True, tag_field="type", tag="scroll"):
    """Scrolls by pixels, right and down if positive. A notch of a wheel counts as 100 pixels."""

    scroll_x: int = 0
    scroll_y: int = 0
    x: int | None = None
    y: int | None = None
    keys: tuple[str, ...] = ()


class Keypress(ActionValue, frozen=True, tag_field="type", tag="keypress"):
    """Presses keys together, `repeat` times."""

    keys: tuple[str, ...]
    repeat: int = 1


class HoldKeys(ActionValue, frozen=True, tag_field="type", tag="hold_keys"):
    """Holds keys for some time."""

    keys: tuple[str, ...]
    duration_s: float


class Type(ActionValue, frozen=True, tag_field="type", tag="type"):
    """Types text; with a place, after a click on it."""

    text: str
    x: int | None = None
    y: int | None = None
    clears: bool = False
    """Whether to delete the field's content first."""
    enters: bool = False
    """Whether to press Enter afterwards."""


class Wait(ActionValue, frozen=True, tag_field="type", tag="wait"):
    """Waits; without a duration, as long as you think fit."""

    duration_s: float | None = None


class Screenshot(ActionValue, frozen=True, tag_field="type", tag="screenshot"):
    """Nothing but a screenshot, which every call returns anyway."""


class Zoom(ActionValue, frozen=True, tag_field="type", tag="zoom"):
    """A screenshot of a region, enlarged."""

    left: int
    top: int
    right: int
    bottom: int


class CursorPosition(ActionValue, frozen=True, tag_field="type", tag="cursor_position"):
    """Reports where the cursor is."""


class Navigate(ActionValue, frozen=True, tag_field="type", tag="navigate"):
    """Opens an address in the browser."""

    url: str


class GoBack(ActionValue, frozen=True, tag_field="type", tag="go_back"):
    """Goes back in the browser's history."""


class GoForward(ActionValue, frozen=True, tag_field="type", tag="go_forward"):
    """Goes forward in the browser's history."""


class OtherAction(ActionValue, frozen=True, tag_field="type", tag="other"):
    """An action that is newer than this library, or that only one provider has: as the provider sent it."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


ComputerAction = Annotated[
    Click
    | DoubleClick
    | TripleClick
    | MouseDown
    | MouseUp
    | Move
    | Drag
    | Scroll
    | Keypress
    | HoldKeys
    | Type
    | Wait
    | Screenshot
    | Zoom
    | CursorPosition
    | Navigate
    | GoBack
    | GoForward
    | OtherAction,
    Tagged(),
]
"""One action: `match action: case Click(x=x, y=y): …`."""


ACTION_TYPES = frozenset(kind.__struct_config__.tag for kind in get_args(get_args(ComputerAction)[0]))
"""`type` of each action."""


class ComputerCall(ActionValue, frozen=True):
    """A whole call: actions to carry out in order. The result is a screenshot taken after the last one."""

    actions: tuple[ComputerAction, ...]
    safety_checks: tuple[SafetyCheck, ...] = ()
    """Safety checks that the user acknowledged by approving the call."""
