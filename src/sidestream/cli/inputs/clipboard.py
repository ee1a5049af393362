"""The content of the system's clipboard, through the program that the system has for it."""

import shutil
import subprocess
import sys

import click

NAME = "clipboard"
TIMEOUT_S = 10.0
IMAGE = "image/png"

_PROGRAMS: tuple[tuple[str, list[str], list[str], list[str]], ...] = (
    ("wl-paste", ["--list-types"], ["--type", IMAGE], ["--no-newline"]),
    (
        "xclip",
        ["-selection", NAME, "-t", "TARGETS", "-o"],
        ["-selection", NAME, "-t", IMAGE, "-o"],
        ["-selection", NAME, "-o"],
    ),
    ("pbpaste", [], [], []),
)
"""Program, and its arguments to list the types, to read an image, and to read text."""


def read_clipboard() -> bytes:
    """What is on the clipboard: an image if there is one, else text. Raises UsageError."""
    if sys.platform == "win32":
        return _run(["powershell", "-NoProfile", "-Command", "Get-Clipboard -Raw"])
    for program, types, image, text in _PROGRAMS:
        if shutil.which(program):
            has_image = bool(types) and IMAGE.encode() in _run([program, *types], is_checked=False)
            return _run([program, *(image if has_image else text)])
    programs = ", ".join(program for program, *_ in _PROGRAMS)
    raise click.UsageError(f"there is no clipboard here: install one of {programs}")


def _run(command: list[str], *, is_checked: bool = True) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise click.UsageError(f"{command[0]} could not read the clipboard") from None
    if is_checked and done.returncode != 0:
        raise click.UsageError(f"{command[0]} could not read the clipboard; is it empty?")
    return done.stdout
