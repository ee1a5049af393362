"""The server in patient.py: starts it, scripts a model that calls it, and changes its tasks."""

import json
import sys
from pathlib import Path
from typing import Any

from sidestream import MCPServer
from sidestream.testing import ResponsesScript
from sidestream.tools.approvals import PendingApproval
from support.mcp_servers.peers import HERE
from support.waiting import eventually


def patient(folder: Path, **settings: Any) -> MCPServer:
    args = ["-I", str(HERE / "patient.py"), str(folder)]
    return MCPServer("patient", command=sys.executable, args=args, approval="run", **settings)


def calling(name: str, arguments: Any) -> list[Any]:
    return [
        ResponsesScript(id="r1").function_call(name, arguments, "call_1").reply(),
        ResponsesScript(id="r2").text("Done.").reply(),
    ]


def by_field(approvals: tuple[PendingApproval, ...]) -> tuple[PendingApproval, PendingApproval]:
    """The question with a form, and the one with a page."""
    seat, pay = sorted(approvals, key=lambda entry: "url" in (entry.form or {}))
    return seat, pay


class Oven:
    """The files of the server's tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    @property
    def tasks(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text("utf-8")) for file in sorted(self.folder.glob("*.json"))]

    async def started(self) -> None:
        await eventually(lambda: bool(self.tasks))

    def empty(self) -> None:
        """Removes all tasks."""
        for file in self.folder.glob("*.json"):
            file.unlink()

    def change(self, **fields: Any) -> None:
        """Changes the only task."""
        (task,) = self.tasks
        file = self.folder / f"{task['taskId']}.json"
        file.with_suffix(".tmp").write_text(json.dumps(task | fields), "utf-8")
        file.with_suffix(".tmp").rename(file)


def baker(oven: Oven, **settings: Any) -> MCPServer:
    return patient(oven.folder, **settings)
