"""Where the platform wants programs to keep their files.

The rules stand here and not in a library, so that files are found whichever extras are installed, and the command line
starts fast.
"""

import os
import sys
from pathlib import Path


def data_folder() -> Path:
    """The folder for what the program keeps."""
    return _folder("XDG_DATA_HOME", ".local/share")


def config_folder() -> Path:
    """The folder for what the user sets."""
    return _folder("XDG_CONFIG_HOME", ".config")


def _folder(variable: str, usual: str) -> Path:
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "sidestream"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "sidestream"
    # The rule says that a relative path is to be ignored.
    named = os.environ.get(variable, "")
    return (Path(named) if os.path.isabs(named) else home / usual) / "sidestream"
