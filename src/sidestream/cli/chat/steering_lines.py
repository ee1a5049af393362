"""Lines that are entered while the model answers: each steers the run."""

from typing import Any, Protocol

from sidestream.cli.chat.approvals import PrintLine
from sidestream.cli.display.screen import one_line
from sidestream.errors import SteerError, StoreError
from sidestream.run.run import Run
from sidestream.text.redaction import redact


class Interjections(Protocol):
    """Where such lines come from."""

    async def interjection(self) -> str | None:
        """Reads the next line; None if there will be none."""
        ...

    def put_back(self, text: str) -> None:
        """Makes a line the next message: the run did not take it."""
        ...


async def steer_by_lines(run: Run[Any], lines: Interjections, print_line: PrintLine) -> None:
    """Sends each line to the run until it is over. A line that comes too late is the next message."""
    while (line := await lines.interjection()) is not None:
        text = line.strip()
        if not text:
            continue
        if text.startswith("/") and text[1:].partition(" ")[0].isalpha():
            print_line(f"{one_line(text)}: commands are for the prompt; Ctrl-C stops the answer", "yellow")
            continue
        try:
            await run.steer(text)
            print_line(f"steer: {one_line(text)} (pending)", "dim")
        except SteerError:
            lines.put_back(text)
            print_line(f"next message: {one_line(text)}", "dim")
            return
        except StoreError as error:
            print_line(f"error: {redact(one_line(str(error), 1000))}", "red")
            return
