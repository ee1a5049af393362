"""The live view of a run on a terminal: streamed Markdown, inline images, and status lines at the bottom."""

import atexit
import base64
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import ceil
from threading import Event, Lock, RLock, Thread
from typing import Any, Literal, TextIO

from markdown_it import MarkdownIt
from msgspec import Struct
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from sidestream.cli.display import formatting
from sidestream.cli.display.screen import Screen, one_line, strip_controls, write
from sidestream.results.tool_runs import ToolRun

Protocol = Literal["kitty", "iterm"]

_KITTY_CHUNK = 4096
"""Base64 characters per escape sequence; the protocol's maximum."""
_PREVIEW_ROWS = 8
_FILE_ROWS = 16
_KITTY_PROGRAMS = ("kitty", "ghostty")
_ITERM_PROGRAMS = ("iterm.app", "wezterm", "vscode", "mintty", "rio")


def picture_protocol(variables: Mapping[str, str] | None = None) -> Protocol | None:
    """Return the terminal's image protocol, or None if it has none or runs inside a multiplexer."""
    given = os.environ if variables is None else variables
    if given.get("TMUX") or given.get("STY"):  # tmux and screen drop these sequences unless configured otherwise.
        return None
    program = given.get("TERM_PROGRAM", "").lower()
    if given.get("KITTY_WINDOW_ID") or "kitty" in given.get("TERM", "") or program in _KITTY_PROGRAMS:
        return "kitty"
    if program in _ITERM_PROGRAMS or given.get("LC_TERMINAL", "").lower() == "iterm2":
        return "iterm"
    return None


def drawn(data: bytes, mime_type: str, protocol: Protocol, *, is_preview: bool) -> str | None:
    """Return the escape sequences that draw an image at the cursor, or None if the protocol cannot draw the type."""
    rows = _PREVIEW_ROWS if is_preview else _FILE_ROWS
    if protocol == "kitty":
        return "".join(_kitty(data, rows)) + "\n" if mime_type == "image/png" else None
    if not mime_type.startswith("image/") or mime_type == "image/svg+xml":
        return None
    content = base64.b64encode(data).decode()
    return f"\x1b]1337;File=inline=1;size={len(data)};height={rows};preserveAspectRatio=1:{content}\x07\n"


def _kitty(data: bytes, rows: int) -> Iterator[str]:
    content = base64.b64encode(data).decode()
    for at in range(0, len(content), _KITTY_CHUNK):
        first = f"f=100,a=T,r={rows},q=2," if at == 0 else ""
        is_last = at + _KITTY_CHUNK >= len(content)
        yield f"\x1b_G{first}m={0 if is_last else 1};{content[at : at + _KITTY_CHUNK]}\x1b\\"


KEPT_BLOCKS = 2
"""Markdown blocks that are kept back. A block may still join the previous one, so two must wait."""
MAX_PENDING = 8_000
"""Characters that are kept back. A longer paragraph or table is released as plain text."""
CODE_THEME = "ansi_dark"


@cache
def _parser() -> MarkdownIt:
    # With HTML enabled, tags would be dropped.
    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


class MarkdownStream:
    """Splits streamed Markdown into final blocks and pending text that may still change."""

    def __init__(self) -> None:
        self.pending = ""
        self._check_at = 0
        """Length at which to parse again, so that a long block is not parsed at each line."""

    def feed(self, delta: str) -> list[str]:
        """Add text and return the blocks that became final."""
        self.pending += delta
        if "\n" not in delta or len(self.pending) < self._check_at:
            return []
        if len(self.pending) > MAX_PENDING:
            cut = self.pending.rfind("\n") + 1
            released, self.pending = self.pending[:cut], self.pending[cut:]
            return [released]
        begins = _top_level_lines(self.pending)
        if len(begins) <= KEPT_BLOCKS:
            self._check_at = len(self.pending) * 3 // 2
            return []
        self._check_at = 0
        lines = self.pending.splitlines(keepends=True)
        cut = begins[-KEPT_BLOCKS]
        released, self.pending = "".join(lines[:cut]), "".join(lines[cut:])
        return [released]

    def flush(self) -> str:
        """Return the pending text and reset the stream."""
        rest, self.pending, self._check_at = self.pending, "", 0
        return rest


def _top_level_lines(text: str) -> list[int]:
    """Return the line numbers at which top-level blocks begin."""
    return [token.map[0] for token in _parser().parse(text) if token.level == 0 and token.map and token.nesting >= 0]


def rendered(text: str) -> RenderableType:
    """Render Markdown for the terminal, or very long text as plain text."""
    if len(text) > MAX_PENDING:
        return Text(text)
    markdown = Markdown("", code_theme=CODE_THEME, hyperlinks=False)
    parsed: Any = _parser().parse(text)
    markdown.parsed = parsed
    return markdown


REFRESHES_PER_S = 8
MAX_ROWS = 8
"""Status lines at the bottom. The streamed answer has the rest of the screen."""
MAX_CODE_ROWS = 4
TIME_AFTER_S = 2.0
"""Seconds after which a running call shows its elapsed time."""
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class _Running(Struct):
    """A call in progress, or the model's reasoning."""

    text: str
    where: str
    began: float
    until: float | None = None
    """End of a wait, to count down to."""


class LiveScreen(Screen):
    """A live screen. Text goes to `out`, rendered as Markdown if that is the same terminal, else verbatim."""

    is_live = True

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
        console: Console | None = None,
        protocol: Protocol | None = None,
        refreshes: bool = True,
    ) -> None:
        super().__init__(out, err)
        self.console = console or Console(file=err, force_terminal=True, highlight=False, markup=False, emoji=False)
        self._clock = clock
        self._protocol: Protocol | None = protocol or picture_protocol()
        self._refreshes = refreshes
        """Whether the status lines are drawn. Either way, `region` returns them."""
        self._live: Live | None = None
        self._closed = Event()
        """Ends the thread that redraws the status lines."""
        self._printing = RLock()
        """Lock of the console. Two threads that print at once would leave status lines behind, code among them."""
        self._lock = Lock()
        """Lock of the state below, held while that changes or is drawn but never while printing."""
        self._calls: dict[str, _Running] = {}
        self._facts: dict[str, str] = {}
        self._began = 0.0
        self._code_text = ""
        self._language = "python"
        self._answer = MarkdownStream()
        self._typed = ""
        self._has_text = False
        self._final = ""
        """Text of this run that is already printed."""

    def begin(self, model: str = "") -> None:
        with self._lock:
            self._began = self._clock()
            self._calls.clear()
            self._final = ""
            self._facts = {"model": model} if model else {}
        if self._live is None and self._refreshes:
            self._live = Live(
                get_renderable=self.region,
                console=self.console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)
            self._closed = Event()
            Thread(target=self._refresh, args=(self._closed,), daemon=True).start()
            atexit.register(self.console.show_cursor)  # A second Ctrl-C exits without closing the screen.

    def _refresh(self, closed: Event) -> None:
        """Redraw the status lines until the screen is closed."""
        while not closed.wait(1 / REFRESHES_PER_S):
            with self._printing:
                if self._live is not None and not closed.is_set():
                    self._live.refresh()

    def _print(self, content: RenderableType = "", *, soft_wrap: bool = False) -> None:
        with self._printing:
            self.console.print(content, soft_wrap=soft_wrap)

    def status(self, **facts: str) -> None:
        with self._lock:
            self._facts |= facts

    def running(self, run: ToolRun) -> None:
        key = f"{run.step}/{run.id}"
        with self._lock:
            known = self._calls.get(key)
            where = "" if run.provider_executed else formatting.LOCAL
            self._calls[key] = _Running(formatting.tool_line(run), where, known.began if known else self._clock())

    def over(self, run: ToolRun) -> None:
        with self._lock:
            self._calls.pop(f"{run.step}/{run.id}", None)

    def thinking(self, is_thinking: bool) -> None:
        with self._lock:
            if is_thinking:
                self._calls.setdefault("", _Running(formatting.THINKING, "", self._clock()))
            else:
                self._calls.pop("", None)

    def waiting(self, message: str, label: str, left_s: float | None) -> None:
        with self._lock:
            if message:
                now = self._clock()
                self._calls["waiting"] = _Running(label, "", now, None if left_s is None else now + left_s)
            else:
                self._calls.pop("waiting", None)

    def typed(self, text: str) -> None:
        with self._lock:
            self._typed = one_line(text)

    def text(self, delta: str) -> None:
        if not self._is_shared:
            super().text(delta)
            return
        clean = self._text.feed(delta)
        with self._lock:
            final = self._answer.feed(clean)
        for block in final:
            self._print_text(block)

    def replace_text(self, text: str) -> bool:
        clean = strip_controls(text)
        if not self._is_shared or not clean.startswith(self._final):
            return False
        with self._lock:
            self._answer.pending = clean[len(self._final) :]
        return True

    def end_text(self) -> None:
        if not self._is_shared:
            super().end_text()
            return
        rest = self._text.flush()
        with self._lock:
            rest = self._answer.pending + rest
            self._answer = MarkdownStream()
        self._print_text(rest)
        self._has_text = False

    def _print_text(self, text: str) -> None:
        self._final += text
        if not text.strip():
            return
        if self._last == "progress" or self._has_text:
            self._print()
        self._last, self._has_text = "text", True
        self._print(rendered(text.strip("\n")))

    def line(self, text: str, *styles: str) -> None:
        self.end_block()
        if self._is_shared:
            self.end_text()
            if self._last == "text":
                self._print()
        self._last = "progress"
        self._print(Text(text, " ".join(styles)), soft_wrap=True)

    def block(self, delta: str, *styles: str) -> None:
        """Collect a longer text and print it once it is complete."""
        self.end_code()
        with self._lock:
            self._code_text += self._block.feed(delta)
            self._language = ""

    def end_block(self) -> None:
        with self._lock:
            text, self._code_text = self._code_text + self._block.flush(), ""
        if text.strip("\n"):
            self._last = "progress"
            style = "" if self._language else "dim"
            content = self._highlighted(text.strip("\n")) if self._language else Text(text.strip("\n"), style)
            self._print(_Margin(content))

    def code(self, call: str, delta: str, title: str, language: str) -> None:
        if self._code_call != call:
            self.end_text()
            self.end_code()
            self._code_call = call
        with self._lock:
            self._code_text += self._block.feed(delta)
            self._language = language

    def end_code(self) -> None:
        if self._code_call is not None:
            self._code_call = None
            self.end_block()

    def image(self, data: bytes, mime_type: str, *, is_preview: bool) -> None:
        sequences = drawn(data, mime_type, self._protocol, is_preview=is_preview) if self._protocol else None
        if sequences is None:
            return
        if self._is_shared:
            self.end_text()
        with self._printing:
            # The console would count the sequences as text.
            if self._live is not None:
                self._live.stop()
            write(self._err, sequences)
            if self._live is not None:
                self._live.start(refresh=True)

    def close(self) -> None:
        self.end_text()
        self.end_code()
        self.end_block()
        self._closed.set()
        with self._printing:
            live, self._live = self._live, None
            if live is not None:
                live.stop()
        if live is not None:
            atexit.unregister(self.console.show_cursor)

    def styled(self, text: str, *styles: str) -> str:
        return text

    @property
    def shows_text(self) -> bool:
        return self._is_shared or super().shows_text

    def _highlighted(self, code: str) -> RenderableType:
        return Syntax(code, self._language, theme=CODE_THEME, background_color="default", word_wrap=True)

    def region(self) -> RenderableType:
        """Return the bottom lines, with the pending answer, the running calls and the run's status."""
        with self._lock:
            now = self._clock()
            rows: list[RenderableType] = [_row(call, now) for call in list(self._calls.values())[-3:]]
            tail = self._code_text.rstrip("\n").split("\n")[-MAX_CODE_ROWS:] if self._code_text else []
            language, typed, answer = self._language, self._typed, self._answer.pending
            status = self._status(now)
        if tail:
            code = "\n".join(strip_controls(line) for line in tail)
            content = (
                Syntax(code, language, theme=CODE_THEME, background_color="default") if language else Text(code, "dim")
            )
            rows.append(_Margin(content))
        if typed:
            rows.append(Text(f"> {typed}", "bold", no_wrap=True, overflow="ellipsis"))
        rows.append(status)
        if not answer.strip():
            return Group(*rows[-MAX_ROWS:])
        above = [Text("")] if self._last == "progress" or self._has_text else []
        return Group(*above, _Tail(rendered(answer), MAX_ROWS + 2), Text(""), *rows[-MAX_ROWS:])

    def _status(self, now: float) -> Text:
        facts = [self._facts[name] for name in ("model", "step") if self._facts.get(name)]
        facts.append(formatting.duration(float(int(now - self._began))))
        facts += [self._facts["cost"]] if self._facts.get("cost") else []
        return Text("  ".join([*facts, "^C stop"]), "dim", no_wrap=True, overflow="ellipsis")


def _row(call: _Running, now: float) -> RenderableType:
    """Return one line with a spinner, the call's label, elapsed time and location."""
    elapsed = now - call.began
    if call.until is not None:
        time_text = formatting.duration(float(max(ceil(call.until - now), 0)))
    else:
        time_text = formatting.duration(float(int(elapsed))) if elapsed >= TIME_AFTER_S else ""
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(width=1)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(
        Text(SPINNER[int(elapsed * REFRESHES_PER_S) % len(SPINNER)], "cyan"),
        Text(call.text, "cyan"),
        Text(time_text, "dim"),
        Text(call.where, "dim"),
    )
    return table


class _Margin:
    """Content with a margin that sets it apart from progress lines."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        inner = options.update(width=max(options.max_width - 4, 8), height=None)
        for line in console.render_lines(self._content, inner, pad=False):
            yield Segment("  │ ", console.get_style("dim"))
            yield from line
            yield Segment.line()


class _Tail:
    """The last lines of content that may be taller than the screen."""

    def __init__(self, content: RenderableType, reserved: int) -> None:
        self._content = content
        self._reserved = reserved

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = max(console.size.height - self._reserved, 3)
        for line in console.render_lines(self._content, options.update(height=None), pad=False)[-height:]:
            yield from line
            yield Segment.line()
