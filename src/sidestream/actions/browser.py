"""Actions of Anthropic's browser toolset, one class per member.

Coordinates are pixels of the viewport. A reference names an element that `BrowserReadPage` or `BrowserFind` found; it
is valid in its tab until the page changes.
"""

from typing import Annotated, Any, Literal, get_args

from msgspec import field

from sidestream.actions.values import ActionValue, SafetyCheck, Tagged


class BrowserCoordinate(ActionValue, frozen=True, tag_field="type", tag="coordinate"):
    """A place in the viewport."""

    x: int
    y: int


class BrowserRef(ActionValue, frozen=True, tag_field="type", tag="ref"):
    """An element of the page."""

    ref: str


BrowserTarget = BrowserCoordinate | BrowserRef
"""Target of an action on a page."""


class _Action(ActionValue, frozen=True, kw_only=True, tag_field="type"):
    tab_id: str | None = None
    """Tab id. None means the active tab."""


class _Click(_Action, frozen=True, kw_only=True):
    target: BrowserTarget
    modifiers: str | None = None
    """Keys to hold meanwhile, e.g. `ctrl+shift`."""


class _Move(_Action, frozen=True, kw_only=True):
    target: BrowserCoordinate


class BrowserNavigate(_Action, frozen=True, kw_only=True, tag="navigate"):
    """Opens an address; `back`, `forward` and `reload` move in the tab's history."""

    url: str


class BrowserListTabs(ActionValue, frozen=True, tag_field="type", tag="list_tabs"):
    """Lists the open tabs."""


class BrowserNewTab(ActionValue, frozen=True, tag_field="type", tag="new_tab"):
    """Opens an empty tab."""


class BrowserSwitchTab(ActionValue, frozen=True, tag_field="type", tag="switch_tab"):
    """Makes a tab the active one."""

    tab_id: str


class BrowserCloseTab(ActionValue, frozen=True, tag_field="type", tag="close_tab"):
    """Closes a tab."""

    tab_id: str


class BrowserReadPage(_Action, frozen=True, kw_only=True, tag="read_page"):
    """Returns the page, or what is below `ref`, as a tree of elements with references; at most 50 000 characters."""

    depth: int = 15
    filter: Literal["all", "interactive"] | None = None
    """Elements to include. None means visible ones; `all` adds those outside the viewport."""
    ref: str | None = None


class BrowserGetPageText(_Action, frozen=True, kw_only=True, tag="get_page_text"):
    """Returns the text of the page."""


class BrowserReadConsole(_Action, frozen=True, kw_only=True, tag="read_console"):
    """Returns the messages of the console. Off unless enabled."""


class BrowserReadNetwork(_Action, frozen=True, kw_only=True, tag="read_network"):
    """Returns the requests of the page. Off unless enabled."""


class BrowserFind(_Action, frozen=True, kw_only=True, tag="find"):
    """Finds elements by a description; at most 20."""

    query: str


class BrowserFormInput(_Action, frozen=True, kw_only=True, tag="form_input"):
    """Sets the value of a form element."""

    target: BrowserRef
    value: str | float | bool


class BrowserFileUpload(_Action, frozen=True, kw_only=True, tag="file_upload"):
    """Sets the files of a form element. Off unless enabled; a person must approve it."""

    target: BrowserRef
    paths: tuple[str, ...] = ()
    document_ids: tuple[str, ...] = ()


class BrowserScrollTo(_Action, frozen=True, kw_only=True, tag="scroll_to"):
    """Scrolls until an element is visible."""

    target: BrowserRef


class BrowserScreenshot(_Action, frozen=True, kw_only=True, tag="screenshot"):
    """Returns a screenshot of the viewport."""


class BrowserZoom(_Action, frozen=True, kw_only=True, tag="zoom"):
    """Returns a region of the viewport, enlarged: left, top, right, bottom."""

    region: tuple[int, int, int, int]


class BrowserLeftClick(_Click, frozen=True, kw_only=True, tag="left_click"):
    """Clicks the left button."""


class BrowserRightClick(_Click, frozen=True, kw_only=True, tag="right_click"):
    """Clicks the right button."""


class BrowserMiddleClick(_Click, frozen=True, kw_only=True, tag="middle_click"):
    """Clicks the middle button."""


class BrowserDoubleClick(_Click, frozen=True, kw_only=True, tag="double_click"):
    """Clicks the left button twice."""


class BrowserTripleClick(_Click, frozen=True, kw_only=True, tag="triple_click"):
    """Clicks the left button three times."""


class BrowserHover(_Action, frozen=True, kw_only=True, tag="hover"):
    """Moves the pointer over a place or an element."""

    target: BrowserTarget


class BrowserLeftClickDrag(_Move, frozen=True, kw_only=True, tag="left_click_drag"):
    """Drags with the left button from `start` to the target."""

    start: BrowserCoordinate = field(name="from")


class BrowserLeftMouseDown(_Move, frozen=True, kw_only=True, tag="left_mouse_down"):
    """Presses the left button and holds it."""


class BrowserLeftMouseUp(_Move, frozen=True, kw_only=True, tag="left_mouse_up"):
    """Releases the left button."""


class BrowserMouseMove(_Move, frozen=True, kw_only=True, tag="mouse_move"):
    """Moves the pointer."""


class BrowserScroll(_Move, frozen=True, kw_only=True, tag="scroll"):
    """Scrolls by notches of a wheel."""

    scroll_direction: Literal["up", "down", "left", "right"]
    scroll_amount: int = 3


class BrowserType(_Action, frozen=True, kw_only=True, tag="type"):
    """Types text where the focus is."""

    text: str


class BrowserKey(_Action, frozen=True, kw_only=True, tag="key"):
    """Presses keys: `+` joins those pressed together, blanks separate those pressed one after the other."""

    text: str
    repeat: int = 1


class BrowserHoldKey(_Action, frozen=True, kw_only=True, tag="hold_key"):
    """Holds keys for some time, at most 30 s."""

    text: str
    duration_s: float = field(name="duration")


class BrowserWait(_Action, frozen=True, kw_only=True, tag="wait"):
    """Waits, at most 30 s."""

    duration_s: float = field(name="duration")


class BrowserJavascriptExec(_Action, frozen=True, kw_only=True, tag="javascript_exec"):
    """Runs JavaScript in the page, returns its last expression. Off unless enabled; a person must approve it."""

    text: str


class BrowserOther(ActionValue, frozen=True, tag_field="type", tag="other"):
    """A member that is newer than this library: as the provider sent it."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


BrowserAction = Annotated[
    BrowserNavigate
    | BrowserListTabs
    | BrowserNewTab
    | BrowserSwitchTab
    | BrowserCloseTab
    | BrowserReadPage
    | BrowserGetPageText
    | BrowserReadConsole
    | BrowserReadNetwork
    | BrowserFind
    | BrowserFormInput
    | BrowserFileUpload
    | BrowserScrollTo
    | BrowserScreenshot
    | BrowserZoom
    | BrowserLeftClick
    | BrowserRightClick
    | BrowserMiddleClick
    | BrowserDoubleClick
    | BrowserTripleClick
    | BrowserHover
    | BrowserLeftClickDrag
    | BrowserLeftMouseDown
    | BrowserLeftMouseUp
    | BrowserMouseMove
    | BrowserScroll
    | BrowserType
    | BrowserKey
    | BrowserHoldKey
    | BrowserWait
    | BrowserJavascriptExec
    | BrowserOther,
    Tagged(),
]
"""One action: `match action: case BrowserNavigate(url=url): …`."""

BROWSER_MEMBERS = frozenset(
    str(kind.__struct_config__.tag) for kind in get_args(get_args(BrowserAction)[0]) if kind is not BrowserOther
)
"""Name of each member of the toolset, which is the `type` of its action."""


class BrowserCall(ActionValue, frozen=True):
    """A whole call."""

    actions: tuple[BrowserAction, ...]
    safety_checks: tuple[SafetyCheck, ...] = ()
    """Safety checks that the user acknowledged by approving the call."""


class BrowserTab(ActionValue, frozen=True):
    """An open tab. Exactly one is active."""

    tab_id: str
    title: str
    url: str
    active: bool = False


class BrowserTabOpened(ActionValue, frozen=True, tag_field="type", tag="tab_opened"):
    """The action opened a tab."""

    tab_id: str


class BrowserDownloadStarted(ActionValue, frozen=True, tag_field="type", tag="download_started"):
    """A download began."""

    download_id: str
    url: str


class BrowserDownloadCompleted(ActionValue, frozen=True, tag_field="type", tag="download_completed"):
    """A download ended."""

    download_id: str
    url: str
    path: str | None = None
    size_bytes: int | None = None


class BrowserDownloadFailed(ActionValue, frozen=True, tag_field="type", tag="download_failed"):
    """A download failed."""

    download_id: str
    url: str
    error: str | None = None


class BrowserState(ActionValue, frozen=True, tag_field="type", tag="browser_state"):
    """All tabs after an action, and what else it caused. Return it beside the result: `[screenshot, state]`."""

    tabs: tuple[BrowserTab, ...]
    state_changes: tuple[
        BrowserTabOpened | BrowserDownloadStarted | BrowserDownloadCompleted | BrowserDownloadFailed, ...
    ] = ()
