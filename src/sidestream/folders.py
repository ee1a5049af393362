"""The platform's folders for data and configuration.

Written here, since platformdirs is part of an extra: files must be found whichever extras are installed.
"""

import os
import sys
from pathlib import Path


def data_folder() -> Path:
    """The folder for data that the program stores."""
    return _folder("XDG_DATA_HOME", ".local/share")


def config_folder() -> Path:
    """The folder for the user's configuration."""
    return _folder("XDG_CONFIG_HOME", ".config")


def _folder(variable: str, usual: str) -> Path:
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "sidestream"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "sidestream"
    # The XDG specification says that relative paths are ignored.
    named = os.environ.get(variable, "")
    return (Path(named) if os.path.isabs(named) else home / usual) / "sidestream"
