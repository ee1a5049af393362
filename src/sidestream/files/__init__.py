"""Files as bytes: media types, safe names, and the platform's folders.

Imports only `text` and modules at the root.
"""

from typing import TYPE_CHECKING

from sidestream.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


class Saveable:
    """Mixin for values that hold the bytes of a file, or its URL only."""

    __slots__ = ()

    def save(self, path: "str | Path", *, overwrite: bool = False) -> "Path":
        """Save the file to this path, and return it.

        A string that ends in a slash, or an existing folder, means `save_to`. Raises FileExistsError if the file
        exists, unless `overwrite` is set, and ConfigurationError if this file has a URL only.
        """
        from sidestream.files.saving import save

        data, name, mime_type = self._saved()
        return save(data, path, name, mime_type, overwrite=overwrite)

    def save_to(self, folder: "str | Path", *, overwrite: bool = False) -> "Path":
        """Save the file into this folder under its own name, made safe, and return its path.

        The folder is created if missing. If the name is used already, the new file gets a number, or replaces the old
        one with `overwrite`. Raises ConfigurationError if this file has a URL only.
        """
        from sidestream.files.saving import save_to

        data, name, mime_type = self._saved()
        return save_to(data, folder, name, mime_type, overwrite=overwrite)

    def _contents(self) -> tuple[bytes | None, str | None, str, str | None]:
        """Return the bytes, the name, the MIME type and the URL."""
        raise NotImplementedError

    def _saved(self) -> tuple[bytes, str | None, str]:
        data, name, mime_type, url = self._contents()
        if data is None:
            raise ConfigurationError(f"file {name} has no bytes to save, only a URL; download it from {url}")
        return data, name, mime_type

    def _repr_html_(self) -> str:
        from sidestream.text.html import file_html

        data, name, mime_type, url = self._contents()
        return file_html(data, mime_type, name, url)
