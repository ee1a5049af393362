"""The live view: what runs is drawn at the bottom, what is done stands above, and a terminal ends up clean."""

import asyncio
import io
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from cli.command import Run
from cli.driving import Talks
from cli.vt import Terminal
from requirements import requirement
from sidestream import cli
from sidestream.cli.chat.line_reader import TypedLines
from sidestream.cli.display import live_screen
from sidestream.cli.display.live_screen import LiveScreen, MarkdownStream, drawn, picture_protocol
from sidestream.cli.display.progress import Detail, ProgressView
from sidestream.cli.display.screen import Screen
from sidestream.evidence import Evidence
from sidestream.parts import (
    Finish,
    Source,
    StepStart,
    StreamPart,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolResult,
    Usage,
)
from sidestream.replay.provider import replay
from sidestream.testing import (
    FakeProvider,
    Recording,
    ReplayTransport,
    ResponsesScript,
    pixel_png,
    responses_text,
    sse,
)
from sidestream.tools.approvals import Question
from sidestream.transport.waits import RequestWait
from sidestream.turn.rounds import granted

DEMO = Path(cli.__file__).parent / "commands" / "demo"
MARKDOWN = """# Title

Some *text* with `code`, **bold** and <b>tags</b>.

- one
- two

1. first

2. second

```python
print("hello")

x = 1
```

| a | b |
|---|---|
| 1 | 2 |

> quoted

The [link](https://a.example/x) ends it.
"""


def test_status_lines_never_stay_while_two_threads_draw(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_screen, "REFRESHES_PER_S", 2000)
    place = io.StringIO()
    console = Console(file=place, force_terminal=True, width=80, height=30, highlight=False, markup=False)
    screen = LiveScreen(place, place, console=console)
    screen.begin("model")
    for number in range(200):
        screen.code(f"call-{number}", f"code {number:03}\n", "Writing code…", "python")
        screen.end_code()
        screen.line(f"Ran {number:03}", "cyan")
    screen.close()
    wanted = [line for number in range(200) for line in (f"  │ code {number:03}", f"Ran {number:03}")]
    assert [line for line in Terminal(80, 30).feed(place.getvalue()).text.split("\n") if line] == wanted


def watch(
    recording: str, until: Callable[[list[StreamPart]], bool] | None = None, *, width: int = 80
) -> tuple[str, LiveScreen]:
    """What a terminal shows of a recorded run, at its end or at a moment in it."""
    place = io.StringIO()
    console = Console(file=place, force_terminal=True, width=width, height=30, highlight=False, markup=False)
    ticks = itertools.count()
    screen = LiveScreen(place, place, clock=lambda: next(ticks) * 0.1, console=console, refreshes=False)
    view = ProgressView(screen, detail=Detail(hints=False), clock=lambda: next(ticks) * 0.1)

    async def play() -> None:
        loaded = Recording.load(DEMO / recording)
        seen: list[StreamPart] = []
        for run in replay(loaded, ReplayTransport(loaded)):
            async with run:
                async for part in run:
                    view.feed(part)
                    seen.append(part)
                    if until is not None and until(seen):
                        console.print(screen.region())
                        return

    asyncio.run(play())
    return Terminal(width, 200).feed(place.getvalue()).text, screen


@requirement("R230")
def test_sources_show_what_their_evidence_is():
    place = io.StringIO()
    view = ProgressView(Screen(place, place), detail=Detail(hints=False))
    found = Source("s1", "url", url="https://a.test/", title="A", start=0, end=4, text_id="t")
    wrong = Evidence("contradicted", "the claim says “5 km”, the source “5 m”")
    sources = [
        replace(found, evidence=Evidence("supported", "one sentence of the source says this")),
        replace(found, id="s2", url="https://b.test/", title="B", evidence=wrong),
        replace(found, id="s3", url="https://c.test/", title="C"),
    ]
    for part in (StreamStart(()), StepStart(0), TextStart("t"), TextDelta("t", "True."), *sources, TextEnd("t")):
        view.feed(part)
    view.feed(Finish("stop", Usage()))
    shown = [line.strip() for line in place.getvalue().partition("sources:")[2].splitlines() if line.strip()]
    assert shown == [
        "[1] A  https://a.test/",
        "supported: one sentence of the source says this",
        "[2] B  https://b.test/",
        "contradicted: the claim says “5 km”, the source “5 m”",
        "[3] C  https://c.test/",
    ]


@requirement("R171")
def test_run_ends_with_tools_answer_and_numbered_sources():
    shown, _ = watch("web_search.json")
    wanted = [
        "Thought",
        "Searched “total solar eclipse 2 August 2027 maximum duration totality” · 3 pages",
        "Opened en.wikipedia.org",
        "lasts longest near Luxor in Egypt",
        "sources:",
        "  [1] NASA: Total Solar Eclipse of 2027 August 02",
        "  [2] Solar eclipse of August 2, 2027 - Wikipedia",
    ]
    lines = iter(shown.splitlines())
    assert [want for want in wanted if not any(want in line for line in lines)] == []
    text = " ".join(shown.partition("sources:")[0].split())
    assert text.index("[2]") < text.index("The shadow first")  # where it belongs, though its source came last


@requirement("R171")
def test_code_is_shown_while_written_and_after_it_ran():
    def half(parts: list[StreamPart]) -> bool:
        return sum(isinstance(part, ToolInputDelta) for part in parts) > 60

    shown, _ = watch("code_run.json", half)
    assert "Writing code…" in shown
    assert "  │ cities = {" in shown
    assert "^C stop" in shown
    assert "Ran Python" not in shown
    done, _ = watch("code_run.json")
    assert "^C stop" not in done
    assert re.search(r'  │ plt.savefig\("/mnt/data/day_length.png"\)\nRan Python · [\d.]+ s\n  │ Quito', done)


@requirement("R171")
@pytest.mark.parametrize("width", [24, 60, 200])
def test_lines_fit_terminal_width_without_breaking_words(width: int):
    shown, _ = watch("mcp.json", width=width)
    answer = " ".join(shown.split())
    for word in ("Take the 17:39 from platform 4;", "Stockholm", "departures"):
        assert word in answer


@requirement("R171")
@pytest.mark.parametrize("size", [1, 3, 7, 50, 1000])
def test_markdown_is_released_by_block_regardless_of_chunking(size: int):
    stream = MarkdownStream()
    released: list[str] = []
    for at in range(0, len(MARKDOWN), size):
        released += stream.feed(MARKDOWN[at : at + size])
    released.append(stream.flush())
    assert "".join(released) == MARKDOWN
    # A fence, a table and a list are never cut in two.
    for block in ('```python\nprint("hello")\n\nx = 1\n```', "| a | b |\n|---|---|\n| 1 | 2 |", "- one\n- two"):
        assert any(block in piece for piece in released)


def test_unclosed_block_does_not_hold_text_back_indefinitely():
    stream = MarkdownStream()
    released = [piece for _ in range(2000) for piece in stream.feed("- a line of a list\n")]
    assert released
    assert len(stream.pending) <= 8_000


def test_tags_are_shown_as_text_and_links_show_their_target():
    place = io.StringIO()
    console = Console(file=place, force_terminal=True, width=80, highlight=False)
    screen = LiveScreen(place, place, console=console, refreshes=False)
    screen.text("<script>x</script> and [safe.example](https://evil.example/a)\x1b]8;;http://e\x07\u202e")
    screen.close()
    assert "\x1b]8" not in place.getvalue()
    shown = Terminal(80, 20).feed(place.getvalue()).text
    assert "<script>x</script>" in shown
    assert "https://evil.example/a" in shown
    assert "\u202e" not in shown


@requirement("R171")
def test_live_region_is_drawn_and_leaves_no_trace(talks: Talks):
    gate = asyncio.Event()
    events = ResponsesScript().web_search("news").text(["**Hel**", "lo."]).events()
    fake = FakeProvider([sse([*events[:-5], gate, *events[-5:]])])
    with fake.in_thread(), talks("Hi", base_url=fake.base_url, terminal=True) as talk:
        talk.expect(r"\^C stop")
        fake.release(gate)
        assert talk.end() == 0
    assert "\x1b[36mSearched “news”" in talk.shown
    screen = Terminal(80, 40).feed(talk.shown)
    assert screen.text.rstrip().endswith("Searched “news”\n\nHello.")
    assert talk.shown.rindex("\x1b[?25h") > talk.shown.rindex("\x1b[?25l")  # the cursor is back


@requirement("R171")
def test_piped_text_is_verbatim_while_stderr_lists_sources(sidestream: Run):
    citation = {"type": "url_citation", "url": "https://a.example/x", "title": "A", "start_index": 0, "end_index": 9}
    script = ResponsesScript().text("It rains.", annotations=[citation])
    with FakeProvider([script.reply()]).in_thread() as fake:
        done = sidestream("Hi", base_url=fake.base_url)
    assert done.stdout == "It rains.\n"
    assert "  [1] A  https://a.example/x" in done.stderr


@requirement("R171")
def test_plain_output_is_deterministic(sidestream: Run):
    runs = [sidestream("replay", "--plain", str(DEMO / "code_run.json")) for _ in range(2)]
    assert runs[0].stderr == runs[1].stderr
    assert "Ran Python\n" in runs[0].stderr


@pytest.mark.parametrize(
    ("variables", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"TERM_PROGRAM": "iTerm.app", "TMUX": "/tmp/x"}, None),
        ({"TERM": "xterm-256color"}, None),
    ],
)
def test_terminal_image_protocol_is_detected(variables: dict[str, str], protocol: str | None):
    assert picture_protocol(variables) == protocol


@requirement("R171")
def test_previews_are_drawn_when_terminal_supports_images():
    place = io.StringIO()
    screen = LiveScreen(
        place, place, console=Console(file=place, force_terminal=True), protocol="kitty", refreshes=False
    )
    screen.image(pixel_png(), "image/png", is_preview=True)
    screen.image(b"<svg/>", "image/svg+xml", is_preview=False)
    sequences = place.getvalue()
    assert sequences.startswith("\x1b_Gf=100,a=T,r=8,q=2,m=0;")
    assert sequences.count("\x1b_G") == 1
    big = drawn(bytes(10_000), "image/png", "kitty", is_preview=False)
    assert big is not None
    assert all(len(chunk) < 4200 for chunk in big.split("\x1b\\"))
    assert (drawn(pixel_png(), "image/jpeg", "iterm", is_preview=True) or "").startswith("\x1b]1337;File=inline=1;")
    plain = Screen(place, place)
    plain.image(pixel_png(), "image/png", is_preview=True)
    assert place.getvalue() == sequences


def test_text_typed_during_answer_is_edited_and_kept():
    typed = TypedLines()
    typed.feed("Be brieff\x7f.\x1b[A\x1bOP")
    assert (typed.draft, typed.next_line()) == ("Be brief.", None)
    typed.feed("\rsecond\nthird\x15fourth")
    assert [typed.next_line(), typed.next_line(), typed.next_line()] == ["Be brief.", "second", None]
    assert (typed.take_draft(), typed.draft) == ("fourth", "")


@requirement("R171")
def test_chat_shows_text_typed_during_answer(talks: Talks):
    gate = asyncio.Event()
    events = responses_text(["Hel", "lo."], id="resp_1")
    fake = FakeProvider([sse([*events[:-5], gate, *events[-5:]]), sse(responses_text("Bye."))])
    with fake.in_thread(), talks("chat", "-n", "a", base_url=fake.base_url, terminal=True) as talk:
        talk.expect("Hel")
        talk.send("half a line")
        talk.expect("> half a line")
        fake.release(gate)
        talk.expect("half a line")  # the next prompt continues it
        talk.send(" more\r")
        talk.expect("Bye.")
        talk.expect(r"\x1b\[\?2004h")
        talk.send("exit\r")
        assert talk.end() == 0
    assert [item["content"] for item in fake.requests[1].json["input"]][-1] == "half a line more"


def test_call_line_says_tool_is_allowed_in_conversation():
    place = io.StringIO()
    view = ProgressView(Screen(place, place), detail=Detail(hints=False))
    view.feed(StreamStart(()))
    for id, grant in (("c1", None), ("c2", "approval_1")):
        view.feed(ToolCall(id, "book", "book", False, {}))
        if grant is not None:
            view.feed(granted(Question(call_id=id, tool="book", input={}, grant=grant), id))
        view.feed(ToolResult(id, "book", "book", "booked", False, False))
    view.close()
    lines = [line for line in place.getvalue().splitlines() if line.startswith("book ") or line == "book"]
    assert lines == ["book", "book · allowed in this conversation"]


@requirement("R213")
def test_wait_counts_down_and_ends():
    place, now = io.StringIO(), [100.0]
    console = Console(file=place, force_terminal=True, width=80, height=30, highlight=False, markup=False)
    screen = LiveScreen(place, place, clock=lambda: now[0], console=console, refreshes=False)
    view = ProgressView(screen, detail=Detail(hints=False))
    wait = RequestWait(reason="retry", since=1000.0, until=1042.0, message="The provider answered 429.")
    view.feed(wait.part())

    def shown() -> str:
        return "\n".join(str(line) for line in console.render_lines(screen.region(), pad=False))

    assert "Waiting to try again" in shown()
    assert "42 s" in shown()
    now[0] += 30.5
    assert "12 s" in shown()
    now[0] += 60
    assert "0 s" in shown()
    view.feed(wait.part(is_over=True))
    assert "Waiting to try again" not in shown()


def test_wait_is_one_line_without_terminal():
    out, err = io.StringIO(), io.StringIO()
    view = ProgressView(Screen(out, err), detail=Detail(hints=False))
    wait = RequestWait(reason="retry", since=1000.0, until=1042.0, message="The provider answered 429.")
    for part in (wait.part(), wait.part(is_over=True)):
        view.feed(part)
    assert err.getvalue() == "note: The provider answered 429.\n"
