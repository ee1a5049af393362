"""Talks to the command while it runs: through pipes, or through a terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cli.command import COMMAND
from support.children import started

PATIENCE_S = 30.0
Talks = Callable[..., "AbstractContextManager[Talk]"]
PROMPT = r"\x1b\[\?2004h"
"""What a terminal gets when a line can be typed."""


class Talk:
    """A running command. What it has written so far is in `shown`, both streams together."""

    def __init__(self, process: subprocess.Popen[bytes], inputs: int, outputs: list[int]) -> None:
        self.process = process
        self.shown = ""
        self._inputs = inputs
        self._outputs = outputs
        self._at = 0

    def send(self, text: str) -> None:
        os.write(self._inputs, text.encode())

    def expect(self, pattern: str) -> re.Match[str]:
        """Waits until this is shown, after what was expected before."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.shown[self._at :])) is None:
            assert self._read(deadline_s), f"{pattern!r} was not shown, but:\n{self.shown}"
        self._at += found.end()
        return found

    def end(self) -> int:
        """Closes its input and waits for its end; gives the exit code."""
        if self._inputs not in self._outputs:
            os.close(self._inputs)
        deadline_s = time.monotonic() + PATIENCE_S
        while self._read(deadline_s):
            pass
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """As a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def _read(self, deadline_s: float) -> bool:
        """Takes what is there; False at the end."""
        if not self._outputs:
            return False
        ready = select.select(self._outputs, [], [], max(0.0, deadline_s - time.monotonic()))[0]
        assert ready, f"nothing more was shown in {PATIENCE_S} s:\n{self.shown}"
        for output in ready:
            try:
                data = os.read(output, 65536)
            except OSError:  # The other end of a terminal is closed.
                data = b""
            self.shown += data.decode("utf-8", "replace")
            if not data:
                self._outputs.remove(output)
        return True


@contextmanager
def piped(*args: str, env: dict[str, str], cwd: Path) -> Generator[Talk]:
    """The command with pipes on all three streams."""
    pipe = subprocess.PIPE
    with started(*COMMAND, *args, env=env, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        inputs = os.dup(process.stdin.fileno())
        process.stdin.close()
        yield Talk(process, inputs, [process.stdout.fileno(), process.stderr.fileno()])


@contextmanager
def on_terminal(*args: str, env: dict[str, str], cwd: Path) -> Generator[Talk]:
    """The command on a terminal of its own, so that Ctrl-C typed there reaches it."""
    ours, theirs = pty.openpty()
    env = {**env, "PROMPT_TOOLKIT_NO_CPR": "1"}  # This terminal does not say where its cursor is.
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with started(*COMMAND, *args, env=env, cwd=cwd, terminal=True, **streams) as process:
        os.close(theirs)
        try:
            yield Talk(process, ours, [ours])
        finally:
            os.close(ours)
