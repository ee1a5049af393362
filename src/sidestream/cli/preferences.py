"""What the command line remembers of the user's choices: a file in the configuration folder."""

from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.files.folders import config_folder, write_private


class Preferences(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user's choices."""

    model: str | None = None
    """The model of commands that name none."""
    aliases: dict[str, str] = {}
    """Alias → the model string that it stands for."""
    log: bool = True
    """Whether prompts are logged."""
    knows_log: bool = False
    """True once a command has said that prompts are logged."""


def path() -> Path:
    """The path of the file, whether it exists or not."""
    return config_folder() / "settings.json"


def load() -> Preferences:
    """The choices; the defaults if there is no file. Raises ConfigurationError."""
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
    """Changes some of the choices. Raises ConfigurationError if they cannot be saved."""
    file = path()
    try:
        write_private(file, jsontext.dumps(replace(load(), **fields)).decode() + "\n")
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None
