"""The user's preferences for the command line, stored in the configuration folder."""

from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.files.folders import config_folder, write_private


class Preferences(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored preferences."""

    model: str | None = None
    """Default model. None means that none is set."""
    aliases: dict[str, str] = {}
    """Model strings, by alias."""
    log: bool = True
    """Whether prompts are logged."""
    knows_log: bool = False
    """Whether the user has been told that prompts are logged."""
    known_model: str | None = None
    """Model that was chosen for the user and named to them."""


def path() -> Path:
    """Return the path of the file, which may not exist."""
    return config_folder() / "settings.json"


def load() -> Preferences:
    """Load the preferences, or the defaults if there is no file. Raises ConfigurationError if the file is invalid."""
    file = path()
    try:
        return msgspec.json.decode(file.read_bytes(), type=Preferences)
    except FileNotFoundError:
        return Preferences()
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{file} is not the JSON that sidestream writes; fix or remove it") from None


def change(**fields: object) -> None:
    """Change some preferences. Raises ConfigurationError if they cannot be saved."""
    file = path()
    try:
        write_private(file, jsontext.dumps(replace(load(), **fields)).decode() + "\n")
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None
