"""How a run is shown: as text and progress, or as one part per line."""

import sys
from pathlib import Path

from msgspec import Struct

from sidestream.cli.output_folder import OutputFolder
from sidestream.cli.render import JsonLinesView, ProgressView, View
from sidestream.cli.stdio import byte_stream, text_stream
from sidestream.cli.terminal import Screen


class ViewOptions(Struct, frozen=True, kw_only=True):
    """What the options say about it."""

    as_json: bool = False
    out: Path | None = None
    thinking: bool = False
    verbose: bool = False


def screen_and_view(look: ViewOptions, *, asks: bool = False) -> tuple[Screen, View]:
    """The view, and the screen on which lines can be said besides. `asks`: approvals are asked about after a run."""
    folder = OutputFolder(look.out) if look.out is not None else None
    out, err = text_stream(sys.stdout), text_stream(sys.stderr)
    if look.as_json:
        return Screen(err, err), JsonLinesView(byte_stream(sys.stdout), err, folder)
    screen = Screen(out, err)
    return screen, ProgressView(screen, folder, thinking=look.thinking, verbose=look.verbose, asks=asks)
