"""A small terminal: what a person sees after these bytes."""

import re

_SEQUENCE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|\x1b[=>78]|\x1b[()].|\r|\n|\x07|([^\x1b\r\n\x07]+)")


class Terminal:
    """Keeps lines and a cursor; understands what the command line and its line editor send."""

    def __init__(self, width: int, height: int) -> None:
        self._width = width
        self._height = height
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0

    @property
    def text(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self._lines)

    def feed(self, data: str) -> "Terminal":
        for found in _SEQUENCE.finditer(data):
            if found[3] is not None:
                self._write(found[3])
            elif found[0] == "\r":
                self._column = 0
            elif found[0] == "\n":
                self._row, self._column = self._row + 1, 0  # as a terminal with a carriage return
                self._grow()
            elif found[2]:
                self._control(found[1], found[2])
        return self

    def _control(self, arguments: str, name: str) -> None:
        number = int(arguments.split(";")[0]) if arguments[:1].isdigit() else None
        match name:
            case "A":
                self._row = max(0, self._row - (number or 1))
            case "B":
                self._row += number or 1
            case "C":
                self._column += number or 1
            case "D":
                self._column = max(0, self._column - (number or 1))
            case "G":
                self._column = (number or 1) - 1
            case "K":
                line = self._lines[self._row]
                self._lines[self._row] = [] if number == 2 else line[: self._column]
            case "J":
                self._lines[self._row] = self._lines[self._row][: self._column]
                del self._lines[self._row + 1 :]
            case _:
                pass
        self._grow()

    def _write(self, text: str) -> None:
        for char in text:
            if self._column >= self._width:
                self._row, self._column = self._row + 1, 0
                self._grow()
            line = self._lines[self._row]
            line += [" "] * (self._column + 1 - len(line))
            line[self._column] = char
            self._column += 1

    def _grow(self) -> None:
        while len(self._lines) <= self._row:
            self._lines.append([])
