"""Typed arguments for functions that answer a provider's own calls (computer use, browsers, shells, patches).

Import them as `from sidestream.actions import Click, ComputerAction`. They depend on nothing but JSON.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "actions.browser": (
            "BrowserAction BrowserCall BrowserCloseTab BrowserCoordinate BrowserDoubleClick "
            "BrowserDownloadCompleted BrowserDownloadFailed BrowserDownloadStarted BrowserFileUpload BrowserFind "
            "BrowserFormInput BrowserGetPageText BrowserHoldKey BrowserHover BrowserJavascriptExec BrowserKey "
            "BrowserLeftClick BrowserLeftClickDrag BrowserLeftMouseDown BrowserLeftMouseUp BrowserListTabs "
            "BrowserMiddleClick BrowserMouseMove BrowserNavigate BrowserNewTab BrowserOther BrowserReadConsole "
            "BrowserReadNetwork BrowserReadPage BrowserRef BrowserRightClick BrowserScreenshot BrowserScroll "
            "BrowserScrollTo BrowserState BrowserSwitchTab BrowserTab BrowserTabOpened BrowserTarget "
            "BrowserTripleClick BrowserType BrowserWait BrowserZoom"
        ),
        "actions.computer": (
            "Click ComputerAction ComputerCall CursorPosition DoubleClick Drag GoBack GoForward HoldKeys Keypress "
            "MouseDown MouseUp Move Navigate OtherAction Point Screenshot Scroll TripleClick Type Wait Zoom"
        ),
        "actions.patch": "CreateFile DeleteFile PatchError PatchOperation UpdateFile apply_diff",
        "actions.values": "SafetyCheck",
        "actions.shell": "LocalShellCall ShellCall ShellOutput",
    },
)
