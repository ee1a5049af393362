"""Where the platform wants programs to keep their data."""

import os
import sys
from pathlib import Path


def data_folder() -> Path:
    """The folder in which the platform wants programs to keep their data.

    The rules stand here and not in a library, so that data is found whichever extras are installed.
    """
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "sidestream"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "sidestream"
    # The rule says that a relative path is to be ignored.
    named = os.environ.get("XDG_DATA_HOME", "")
    return (Path(named) if os.path.isabs(named) else home / ".local" / "share") / "sidestream"
