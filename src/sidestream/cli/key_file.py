"""The command line's API key file. It is private to the user, and environment variables take precedence."""

import json
import os
import re
import shlex
from collections.abc import MutableMapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

import click

from sidestream.errors import ConfigurationError
from sidestream.files.folders import config_folder, write_private
from sidestream.text.redaction import register_secret

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_VALUE = 16 * 1024
"""Characters of a key. Some clouds issue tokens of several thousand characters."""


def path() -> Path:
    """Return the path of the file, which may not exist."""
    return config_folder() / "keys.json"


def read() -> dict[str, str]:
    """Return the keys by name, empty if there is no file. Raises ConfigurationError if the file is invalid."""
    file = path()
    try:
        content: Any = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(f"cannot read the keys in {file}: {error.strerror}") from None
    except ValueError:
        raise ConfigurationError(
            f"{file} is not the JSON that `sidestream keys set` writes; fix or remove it"
        ) from None
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} must contain a JSON object of keys by name; fix or remove it")
    keys = {str(name): value for name, value in cast(dict[Any, Any], content).items() if isinstance(value, str)}
    for value in keys.values():
        register_secret(value)
    return keys


def stored_key(text: str) -> str:
    """Return the stored key with this name, or the text itself, which is a key. Raises ConfigurationError if empty."""
    key = (read().get(text) or text).strip()
    if not key:
        raise ConfigurationError("--key is empty: give an API key, or the name of a stored one")
    register_secret(key)
    return key


def load(environment: MutableMapping[str, str] | None = None, *, warns: bool = True) -> None:
    """Set the keys in the environment of this process, except variables that are already set.

    Warns once on standard error if keys are used from a file that other users can read.
    """
    target = os.environ if environment is None else environment
    used = {name: value for name, value in read().items() if not target.get(name) and NAME.fullmatch(name)}
    target.update(used)
    if used and warns:
        warn_if_readable()


@cache
def warn_if_readable() -> None:
    """Warn on standard error, once per process, if other users can read the file."""
    if not is_private():
        command = shlex.join(["chmod", "600", str(path())])
        click.echo(f"warning: other users can read the keys in {path()}; run: {command}", err=True)


def store(name: str, value: str) -> None:
    """Store a key. Raises ConfigurationError if the value cannot be a key."""
    value = value.strip()
    register_secret(value)
    if not value:
        raise ConfigurationError(f"no key given for {name}")
    if len(value) > MAX_VALUE or not value.isascii() or not value.isprintable() or " " in value:
        raise ConfigurationError(f"invalid key for {name}: use one word of printable ASCII characters")
    _write(read() | {name: value})


def remove(name: str) -> bool:
    """Remove a key and return whether it was stored."""
    keys = read()
    if name not in keys:
        return False
    del keys[name]
    _write(keys)
    return True


def is_private() -> bool:
    """Return whether only the user can read the file."""
    with suppress(OSError):
        return os.name == "nt" or not path().stat().st_mode & 0o077
    return True


def _write(keys: dict[str, str]) -> None:
    file = path()
    try:
        write_private(file, f"{json.dumps(keys, indent=2, sort_keys=True)}\n")
    except OSError as error:
        raise ConfigurationError(f"cannot store the key in {file}: {error.strerror}") from None
