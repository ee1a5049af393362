"""Typed arguments for functions that answer a provider's own calls: computer use, browsers, shells, patches.

`from sidestream.actions import Click, ComputerAction`. Depends on nothing but JSON.
"""

from typing import TYPE_CHECKING

from sidestream.lazy import lazy_names

if TYPE_CHECKING:
    from sidestream.actions.browser import (
        BrowserAction as BrowserAction,
        BrowserCall as BrowserCall,
        BrowserCloseTab as BrowserCloseTab,
        BrowserCoordinate as BrowserCoordinate,
        BrowserDoubleClick as BrowserDoubleClick,
        BrowserDownloadCompleted as BrowserDownloadCompleted,
        BrowserDownloadFailed as BrowserDownloadFailed,
        BrowserDownloadStarted as BrowserDownloadStarted,
        BrowserFileUpload as BrowserFileUpload,
        BrowserFind as BrowserFind,
        BrowserFormInput as BrowserFormInput,
        BrowserGetPageText as BrowserGetPageText,
        BrowserHoldKey as BrowserHoldKey,
        BrowserHover as BrowserHover,
        BrowserJavascriptExec as BrowserJavascriptExec,
        BrowserKey as BrowserKey,
        BrowserLeftClick as BrowserLeftClick,
        BrowserLeftClickDrag as BrowserLeftClickDrag,
        BrowserLeftMouseDown as BrowserLeftMouseDown,
        BrowserLeftMouseUp as BrowserLeftMouseUp,
        BrowserListTabs as BrowserListTabs,
        BrowserMiddleClick as BrowserMiddleClick,
        BrowserMouseMove as BrowserMouseMove,
        BrowserNavigate as BrowserNavigate,
        BrowserNewTab as BrowserNewTab,
        BrowserOther as BrowserOther,
        BrowserReadConsole as BrowserReadConsole,
        BrowserReadNetwork as BrowserReadNetwork,
        BrowserReadPage as BrowserReadPage,
        BrowserRef as BrowserRef,
        BrowserRightClick as BrowserRightClick,
        BrowserScreenshot as BrowserScreenshot,
        BrowserScroll as BrowserScroll,
        BrowserScrollTo as BrowserScrollTo,
        BrowserState as BrowserState,
        BrowserSwitchTab as BrowserSwitchTab,
        BrowserTab as BrowserTab,
        BrowserTabOpened as BrowserTabOpened,
        BrowserTarget as BrowserTarget,
        BrowserTripleClick as BrowserTripleClick,
        BrowserType as BrowserType,
        BrowserWait as BrowserWait,
        BrowserZoom as BrowserZoom,
    )
    from sidestream.actions.computer import (
        Click as Click,
        ComputerAction as ComputerAction,
        ComputerCall as ComputerCall,
        CursorPosition as CursorPosition,
        DoubleClick as DoubleClick,
        Drag as Drag,
        GoBack as GoBack,
        GoForward as GoForward,
        HoldKeys as HoldKeys,
        Keypress as Keypress,
        MouseDown as MouseDown,
        MouseUp as MouseUp,
        Move as Move,
        Navigate as Navigate,
        OtherAction as OtherAction,
        Point as Point,
        Screenshot as Screenshot,
        Scroll as Scroll,
        TripleClick as TripleClick,
        Type as Type,
        Wait as Wait,
        Zoom as Zoom,
    )
    from sidestream.actions.patch import (
        CreateFile as CreateFile,
        DeleteFile as DeleteFile,
        PatchError as PatchError,
        PatchOperation as PatchOperation,
        UpdateFile as UpdateFile,
        apply_diff as apply_diff,
    )
    from sidestream.actions.shell import (
        LocalShellCall as LocalShellCall,
        ShellCall as ShellCall,
        ShellOutput as ShellOutput,
    )
    from sidestream.actions.values import SafetyCheck as SafetyCheck

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
