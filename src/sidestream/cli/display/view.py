"""The protocol of run views, and the view for programs, which prints JSON lines."""

from typing import BinaryIO, Protocol, TextIO

from sidestream.cli.display import formatting
from sidestream.cli.display.output_folder import OutputFolder
from sidestream.cli.display.screen import write
from sidestream.parts import Custom, File, StreamPart


class View(Protocol):
    """A renderer of stream parts. One view can show several runs in sequence."""

    has_unsaved: bool
    """Whether saving a file has failed."""

    def feed(self, part: StreamPart) -> None:
        """Render the next part."""
        ...

    def heading(self, text: str) -> None:
        """Render a heading before the next run."""
        ...

    def close(self) -> None:
        """Finish open lines. Must also be called after an interrupted run."""
        ...


class JsonLinesView:
    """Prints each part unchanged as a line of JSON. Also saves files, if there is a folder."""

    def __init__(self, out: BinaryIO, err: TextIO, folder: OutputFolder | None = None) -> None:
        self.has_unsaved = False
        self._out = out
        self._err = err
        self._folder = folder

    def feed(self, part: StreamPart) -> None:
        write(self._out, part.to_json().encode() + b"\n")
        if isinstance(part, Custom) and part.kind in formatting.DATA_LOSS_KINDS:
            write(self._err, f"error: {formatting.data_loss(part)}\n")
        if self._folder is not None and isinstance(part, File):
            try:
                self._folder.save(part)
            except OSError as error:
                self.has_unsaved = True
                write(self._err, formatting.save_failure(part, error) + "\n")

    def heading(self, text: str) -> None:
        """Print nothing, because each run begins with `stream-start`."""

    def close(self) -> None:
        """Do nothing, because every line is complete."""
