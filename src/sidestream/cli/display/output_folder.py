"""A folder for generated files, with safe and unique names."""

from pathlib import Path

from sidestream.errors import ConfigurationError
from sidestream.files.saving import safe_name, save_in
from sidestream.parts import File


class OutputFolder:
    """A folder for generated files. Raises ConfigurationError if the folder cannot be created."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._names: set[str] = set()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot save files to {self.path}: {error.strerror}") from error

    def save(self, file: File) -> Path | None:
        """Write the file under an unused name and return its path, or None if the file has a URL but no content.

        Raises OSError if the file cannot be written, and leaves no partial file behind.
        """
        if file.data is None:
            return None
        # Names that differ only in case are the same file on some systems.
        path = save_in(self.path, file.data, safe_name(file.name or file.id, file.mime_type), self._names)
        self._names.add(path.name.casefold())
        return path
