"""Run views: their protocol, the one that prints JSON lines for programs, and the choice by options."""

import sys
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

from msgspec import Struct

from sidestream.cli.display import formatting
from sidestream.cli.display.output_folder import OutputFolder
from sidestream.cli.display.progress import Detail, ProgressView, live_clock
from sidestream.cli.display.screen import Screen, has_colour, write
from sidestream.cli.stdio import byte_stream, text_stream
from sidestream.parts import Custom, File, Finish, FinishReason, StreamPart
from sidestream.run.run import Run


class View(Protocol):
    """A renderer of stream parts. One view can show several runs in sequence."""

    @property
    def has_unsaved(self) -> bool:
        """Whether saving a file has failed."""
        ...

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


class KeptView:
    """A view that also keeps the parts of its runs."""

    def __init__(self, view: View) -> None:
        self.parts: list[StreamPart] = []
        self._view = view

    @property
    def has_unsaved(self) -> bool:
        return self._view.has_unsaved

    def feed(self, part: StreamPart) -> None:
        self.parts.append(part)
        self._view.feed(part)

    def heading(self, text: str) -> None:
        self._view.heading(text)

    def close(self) -> None:
        self._view.close()


class ViewOptions(Struct, frozen=True, kw_only=True):
    """Options for showing a run and saving its files."""

    as_json: bool = False
    out: Path | None = None
    thinking: bool = False
    verbose: bool = False
    usage: bool = False
    is_plain: bool = False


def screen_and_view(
    options: ViewOptions, *, prompts_for_approval: bool = False, answer: TextIO | None = None
) -> tuple[Screen, View]:
    """Create the view, and the screen for the command's own lines.

    With `prompts_for_approval`, the command prompts for pending approvals after a run, so the view omits them. With
    `answer`, the text goes there instead of standard output.
    """
    folder = OutputFolder(options.out) if options.out is not None else None
    out, err = answer or text_stream(sys.stdout), text_stream(sys.stderr)
    if options.as_json:
        return Screen(err, err), JsonLinesView(byte_stream(sys.stdout), err, folder)
    detail = Detail(
        thinking=options.thinking,
        verbose=options.verbose,
        usage=options.usage,
        prompts_for_approval=prompts_for_approval,
    )
    if options.is_plain or not has_colour(err):
        screen = Screen(out, err)
        return screen, ProgressView(screen, folder, detail)
    from sidestream.cli.display.live_screen import LiveScreen  # rich takes a while to import

    screen = LiveScreen(out, err)
    return screen, ProgressView(screen, folder, detail, live_clock)


async def show_run(run: Run[Any], view: View) -> FinishReason | None:
    """Show a run to its end and return its finish reason."""
    reason: FinishReason | None = None
    try:
        async for part in run:
            view.feed(part)
            if isinstance(part, Finish):
                reason = part.reason
    finally:
        view.close()
    return reason
