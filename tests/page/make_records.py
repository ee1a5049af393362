"""Makes the logs that the page's own tests read: `PYTHONPATH=tests .venv/bin/python tests/page/make_records.py`.

Each is what the server logs, as `GET /api/runs/{run}/records` returns it: of recordings, and of a run with an approval.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from sidestream import Agent, tool
from sidestream.durable.log.jobs import Job
from sidestream.messages.message import ChatMessage
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.server.console.runs_api import record_json
from sidestream.server.server import Server
from sidestream.server.settings import ServerSettings
from sidestream.store import open_store
from sidestream.store.log.segments import SegmentFold
from sidestream.store.records import Body, MessageAdded, Row, RunStarted, kind_of, pack
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.places import ROOT

FOLDER = Path(__file__).parent / "records"
RECORDINGS = ("code_run", "image", "mcp", "web_search")
BEGAN = 1_794_000_000.0
PARTS_PER_INCREMENT = 8
WAITED_S = 840.0


async def of_recording(path: Path) -> list[Row]:
    """The rows of the first run in a recording. Its stream is cut where the server's clock would have cut it."""
    recording = Recording.load(path)
    run = next(replay(recording, ReplayTransport(recording)))
    segments = SegmentFold(previews=True, inputs=True)
    bodies: list[Body] = [MessageAdded(ChatMessage.user(recording.exercises)), RunStarted(f"replay:{path.stem}")]
    async with run:
        parts = [part async for part in run]
    for start in range(0, len(parts), PARTS_PER_INCREMENT):
        bodies += segments.feed(parts[start : start + PARTS_PER_INCREMENT])
        bodies += segments.increments()
    bodies += segments.end()
    return [_row(number, body) for number, body in enumerate(bodies, 1)]


def _row(number: int, body: Body) -> Row:
    data, blobs = pack(body)
    return Row(seq=number, time=0.0, run="run-1", kind=kind_of(body), body=data, blobs=tuple(blobs))


async def with_approvals() -> list[Row]:
    """The rows of a run in which one call was allowed and one denied, after a while."""

    @tool(approval="ask")
    def delete(name: str) -> str:
        """Deletes a file."""
        return f"{name} is gone"

    calls = ResponsesScript().reasoning("Both files are old.")
    for number, name in enumerate(("a.txt", "b.txt"), 1):
        calls = calls.function_call("delete", json.dumps({"name": name}), call_id=f"call_{number}")
    replies = [sse(calls.events()), sse(ResponsesScript().text("One is gone, one stays.").events())]
    with tempfile.TemporaryDirectory() as folder:
        async with FakeProvider(replies) as fake:
            agent: Agent[Any] = Agent(
                "openai-responses", base_url=fake.base_url, api_key="key-0123456789", tools=[delete]
            )
            server = Server(ServerSettings(agents={"main": agent}, default="main"), open_store(Path(folder) / "log.db"))
            job = Job(agent="main")
            await server.runs.start(agent, "/talk", "Delete both.", job)
            async for _ in server.runs.follow("/talk"):
                pass
            state = (await server.store.conversation("/talk").state()).run_state
            assert state is not None
            first, second = state.approvals
            await server.runs.resume(agent, "/talk", [first.approve(), second.deny("Keep it.")], job)
            async for _ in server.runs.follow("/talk"):
                pass
            rows = await server.store.read("/talk")
            await server.aclose()
            await agent.aclose()
    return rows


def as_records(rows: list[Row]) -> list[dict[str, Any]]:
    """The rows as the page gets them, with times that do not depend on this machine."""
    waited, records = 0.0, list[dict[str, Any]]()
    for number, row in enumerate(rows):
        if row.kind == "approval-decided" and not waited:
            waited = WAITED_S
        records.append({**record_json(row), "time": BEGAN + 0.4 * number + waited})
    return records


async def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    logs = {name: await of_recording(ROOT / "src/sidestream/cli/commands/demo" / f"{name}.json") for name in RECORDINGS}
    logs["approvals"] = await with_approvals()
    for name, rows in logs.items():
        lines = ",\n".join(json.dumps(record) for record in as_records(rows))
        (FOLDER / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    asyncio.run(main())
