"""Files that the user stores under a name, in a folder of the configuration: templates, schemas."""

import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import click
from msgspec import Struct

from sidestream.cli.display.screen import one_line, write
from sidestream.errors import ConfigurationError
from sidestream.files.folders import config_folder, write_private

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


class NamedFiles(Struct, frozen=True):
    """One kind of stored files."""

    kind: str
    """What one of them is called: `template`."""
    suffix: str

    @property
    def folder(self) -> Path:
        """Where they are, whether it exists or not."""
        return config_folder() / f"{self.kind}s"

    def names(self) -> list[str]:
        """The names that are taken."""
        return sorted(path.stem for path in self.folder.glob(f"*{self.suffix}"))

    def is_name(self, text: str) -> bool:
        """True if one may be stored under this name."""
        return _NAME.fullmatch(text) is not None

    def path_of(self, name: str) -> Path:
        """The file of a name. Raises ConfigurationError for a name that cannot be one."""
        if not self.is_name(name):
            raise ConfigurationError(
                f"{name!r} cannot be the name of a {self.kind}: use letters, digits, '.', '_' and '-'"
            )
        return self.folder / f"{name}{self.suffix}"

    def read(self, name: str) -> str:
        """The text of a stored file, or of one given by its path. Raises ConfigurationError, with the nearest name."""
        file = Path(name).expanduser() if name.endswith(self.suffix) else self.path_of(name)
        try:
            return file.read_text("utf-8")
        except FileNotFoundError:
            near = difflib.get_close_matches(name, self.names(), n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(self.names()) or 'none'}"
            raise ConfigurationError(f"no {self.kind} {name!r}; {hint}") from None
        except OSError as error:
            raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{file} is not UTF-8 text") from None

    def write(self, name: str, text: str) -> Path:
        """Stores a text, in place of one of the same name. Raises ConfigurationError."""
        file = self.path_of(name)
        try:
            write_private(file, text)
        except OSError as error:
            raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None
        return file

    def remove(self, name: str) -> None:
        """Removes a stored file. Raises ConfigurationError if there is none."""
        self.read(name)
        self.path_of(name).unlink()


def list_names(stored: NamedFiles, text_of: Callable[[str], str], *, if_none: str) -> None:
    """Prints the names, each with the beginning of a text; a hint if there are none."""
    names = stored.names()
    width = max(map(len, names), default=0)
    for name in names:
        write(sys.stdout, f"{name:<{width}}  {one_line(text_of(name), 100)}\n")
    if not names:
        click.echo(if_none, err=True)
