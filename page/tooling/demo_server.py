"""A server for looking at the page: each agent shows other parts of it, from recordings and scripts; no key is needed.

.venv/bin/python page/tooling/demo_server.py [PORT]
"""

import asyncio
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

from sidestream import Agent, FileSearch
from sidestream.cli.commands import demo
from sidestream.cli.commands.demo import SCENES, pause_s
from sidestream.cli.interrupts import exit_now
from sidestream.errors import RateLimitedError
from sidestream.messages.message import ThinkingPart, ToolResultPart
from sidestream.parts import File, StepFinish, StepStart, StreamPart, StreamStart, ToolCall, ToolEvent, ToolResult
from sidestream.providers.protocol import ModelRequest
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.server import create_app
from sidestream.server.uvicorn_runner import bound_socket, serve
from sidestream.testing import ScriptedModel, pixel_png, tool_call

WRAPPING = (StreamStart, StepStart, StepFinish)
RECORDINGS = Path(demo.__file__).parent
ANSWER = """\
# The eclipse of 2027

It is **longest near Luxor**: 6 min 23 s. The path crosses:

| place | duration | time |
|---|--:|---|
| Cádiz | 2 min 55 s | 10:46 |
| Luxor | 6 min 20 s | 13:04 |
| Mecca | 5 min 8 s | 13:26 |

1. Spain and Gibraltar
2. North Africa
   - Morocco, Algeria, Tunisia
   - Libya and *Egypt*
3. Arabia

> The Moon is near its perigee, so its shadow is wide.

```python
def minutes(seconds: int) -> str:
    # 383 -> "6 min 23 s"
    return f"{seconds // 60} min {seconds % 60} s"
```

See [the path](https://example.org/path), <img src=x onerror=alert(1)> and ![a map](https://example.org/map.png).
"""
MATHS = r"""
The central angle of two points is given by the **haversine** formula:

$$
\hav(\theta) = \sin^2\frac{\Delta\varphi}{2} + \cos\varphi_1\,\cos\varphi_2\,\sin^2\frac{\Delta\lambda}{2}
$$

so the distance is $d = 2R\arcsin\sqrt{\operatorname{hav}\theta}$, with $R \approx 6371$ km. In matrix form:

\[
\begin{pmatrix} x \\ y \\ z \end{pmatrix} =
R \begin{pmatrix} \cos\varphi\cos\lambda \\ \cos\varphi\sin\lambda \\ \sin\varphi \end{pmatrix},
\qquad \sum_{n=1}^{\infty} \frac{1}{n^2} = \frac{\pi^2}{6}, \qquad \int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}
\]

A map costs $5 to $10; an invalid formula stays as it is: $\frac{1}$.
""".replace(r"\hav", r"\operatorname{hav}")
TABLE = "\n".join(
    [
        "The longest total eclipses of the century:",
        "",
        "| Date | Duration | Longest near | Path | Magnitude | Saros | Gamma |",
        "|---|--:|---|---|--:|--:|--:|",
        *(
            f"| 2 August {2027 + 18 * index} | {6 - index} min {23 - index} s | Luxor, Egypt, and {index} more places "
            f"| Spain, Morocco, Algeria, Tunisia, Libya, Egypt, Saudi Arabia, Yemen, Somalia | 1.079 | 136 | 0.142 |"
            for index in range(5)
        ),
    ]
)
DOCUMENT = """\
# The eclipse of 2027

## Duration

The eclipse lasts 6 minutes and 23 seconds at most, near Luxor.

## Path

It crosses Spain, North Africa and Arabia.
"""
WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
FILES = [
    File("f1", WORD, name="annual-report-of-the-observatory-2027-final.docx", data=b"PK" * 40_000),
    File("f2", "text/csv", name="hours.csv", data=b"place,hours\n" * 100),
    File("f3", "image/png", name="dot.png", data=pixel_png(200)),
]
ARABIC = "أطول مدة للكسوف **قرب الأقصر**: 6 دقائق و 23 ثانية.\n\n- إسبانيا\n- مصر\n\n`x = 1`"


def slowly(text: str, pause_s: float = 0.03) -> list[Any]:
    """Return a reply that streams word by word, at the pace of a model."""
    items: list[Any] = []
    loop = asyncio.get_running_loop()
    for index, word in enumerate(text.split(" ")):
        gate = asyncio.Event()
        loop.call_later(pause_s * index, gate.set)
        items += [gate, f"{word} "]
    return items


def played(parts: list[StreamPart]) -> list[Any]:
    """Replay a recorded run part by part, at the pace of a live one."""
    items: list[Any] = []
    loop = asyncio.get_running_loop()
    at = 0.0
    for part in parts:
        if isinstance(part, WRAPPING):
            continue
        if pause := pause_s(part):
            gate = asyncio.Event()
            loop.call_later(at, gate.set)
            items.append(gate)
            at += pause
        items.append(part)
    return items


def departures(origin: str, destination: str, after: str) -> str:
    """Departures between two stations."""
    return f"17:41 and 18:11 from {origin} to {destination}, after {after}"


def book_seat(train: str, seats: int, note: str) -> str:
    """Books seats on a train."""
    return f"booked {seats} on {train}"


def asks(request: ModelRequest) -> Any:
    """Build an agent that calls a tool that needs approval, then answers."""
    if request.messages[-1].role == "user":
        return [
            ThinkingPart("The person wants a seat.\n\nI look for the train first."),
            tool_call("departures", origin="Uppsala C", destination="Stockholm C", after="17:30"),
            tool_call("book_seat", train="SJ 40 \u202eevil", seats=2, note="window, if there is one"),
        ]
    return "The **17:41** was considered; see the decisions above."


def price(item: str) -> str:
    """Look up the price of an item."""
    return "1000 euros"


def sells(request: ModelRequest) -> Any:
    """Build an agent that looks up a price and repeats it."""
    last = request.messages[-1]
    results = [part.result for part in last.parts if isinstance(part, ToolResultPart)]
    return f"A lamp costs {results[-1]}. Do you want one?" if results else tool_call("price", item="lamp")


def quoting(folder: Path) -> Agent[Any]:
    """Build an agent that searches local files and cites them, once rightly and once not."""

    def answer(request: ModelRequest) -> Any:
        if request.messages[-1].role == "user":
            return tool_call("file_search", queries=["how long is the eclipse"])
        return 'It lasts 6 min 23 s at most [cite:1 "6 minutes and 23 seconds"], in Oslo [cite:2 "best seen in Oslo"].'

    return Agent(ScriptedModel(answer), server_side_tools=[FileSearch(stores=[str(folder)])])


def delegating(searched: list[StreamPart]) -> Agent[Any]:
    """Asks another agent, which searches and calls a function."""

    def research(request: ModelRequest) -> Any:
        if request.messages[-1].role != "user":
            return "6 min 23 s, near Luxor."
        found = [part for part in searched if isinstance(part, ToolCall | ToolEvent | ToolResult)]
        return [*played(found), tool_call("departures", origin="Cairo", destination="Luxor", after="17:30")]

    def answer(request: ModelRequest) -> Any:
        if request.messages[-1].role == "user":
            return tool_call("researcher", task="How long is the eclipse of 2027, and how do I get there?")
        return "It lasts **6 min 23 s** near Luxor; trains leave at 17:41 and 18:11."

    researcher = Agent(ScriptedModel(research), tools=[departures]).as_tool("researcher", "Looks things up.")
    return Agent(ScriptedModel(answer), tools=[researcher])


async def recorded(path: Path) -> list[StreamPart]:
    """Return the parts of a recorded run."""
    recording = Recording.load(path)
    found: list[StreamPart] = []
    for run in replay(recording, ReplayTransport(recording)):
        async with run:
            found += [part async for part in run]
    return found


def agents() -> dict[str, Agent[Any]]:
    """By name."""
    made: dict[str, Agent[Any]] = {}
    for scene in SCENES:
        parts = asyncio.run(recorded(RECORDINGS / scene.recording))
        made[scene.recording.removesuffix(".json")] = Agent(ScriptedModel(lambda _, parts=parts: played(parts)))
    made["text"] = Agent(ScriptedModel(lambda _: [ThinkingPart("First the path, then the table."), ANSWER]))
    made["slow"] = Agent(ScriptedModel(lambda _: slowly(f"{ANSWER}\n\n{ANSWER}\n\n{ANSWER}")))
    made["arabic"] = Agent(ScriptedModel(lambda _: ARABIC))
    made["approval"] = Agent(ScriptedModel(asks), tools=[departures, book_seat], approval="ask")
    made["price"] = Agent(ScriptedModel(sells), tools=[price])
    made["maths"] = Agent(ScriptedModel(lambda _: MATHS))
    made["table"] = Agent(ScriptedModel(lambda _: TABLE))
    made["files"] = Agent(ScriptedModel(lambda _: ["Here is the report.", *FILES]))
    made["agent"] = delegating(asyncio.run(recorded(RECORDINGS / "web_search.json")))
    made["error"] = Agent(ScriptedModel(lambda _: ["It begins well, ", RateLimitedError("slow down", status=429)]))
    made["long"] = Agent(ScriptedModel(lambda _: "\n\n".join(f"Paragraph {n} of many words." for n in range(400))))
    return made


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8787
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SIDESTREAM_INDEX"] = f"{folder}/index.db"
        documents = Path(folder) / "documents"
        documents.mkdir()
        (documents / "eclipse.md").write_text(DOCUMENT)
        (documents / "scan.pdf").write_bytes(b"%PDF-1.4 broken")
        listening = bound_socket("127.0.0.1", port)
        token = secrets.token_urlsafe(24)
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/#token={token}", flush=True)
        app = create_app(
            agents() | {"quotes": quoting(documents)},
            allows_functions=["price"],
            store=f"{folder}/talks.db",
            owner_token=token,
            mcp_file=f"{folder}/mcp.json",
            index_folders=[str(documents)],
            allows_tools=True,
            allows_settings=True,
        )
        serve(app, listening, exit_now=exit_now)
