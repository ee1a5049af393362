"""Sessions of several turns: files, searches and approvals, with tools that run here, on every provider."""

from pathlib import Path
from typing import Any

from conformance.suite.subjects import Subject
from conformance.suite.wires import Call, Text
from requirements import requirement
from sidestream import Chat, CodeInterpreter, DataPart, Tool, WebFetch, WebSearch
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, Reply
from support.sandboxes import needs

SALES = b"region,units\n" + b"North,12\nSouth,30\n" * 20_000
PNG = "import base64\nopen('plot.png', 'wb').write(base64.b64decode('iVBORw0KGgo=') + bytes(30_000))"


def code(text: str) -> Call:
    return Call("code_interpreter", {"code": text})


def logs_of(result: Any) -> str:
    return "".join(output["logs"] for output in result.tool_results[-1].result["outputs"])


@requirement("R192", "R193")
async def test_files_are_uploaded_analysed_plotted_and_exported(wired: Subject, tmp_path: Path) -> None:
    needs("bubblewrap")
    load = "import csv\nrows = list(csv.DictReader(open('sales.csv')))\nprint(len(rows))"
    total = "units = {}\nfor row in rows:\n    units[row['region']] = units.get(row['region'], 0) + int(row['units'])\nprint(units)"
    export = "import json\njson.dump(units, open('units.json', 'w'))"
    answers = [
        *(code(load), Text("40,000 rows.")),
        *(code(total), Text("South sold most.")),
        *(code(PNG), Text("See [the plot](sandbox:/mnt/data/plot.png).")),
        Text("It shows two bars."),
        *(code(export), Text("Exported.")),
        Text("You are welcome."),
    ]
    tools = [CodeInterpreter(execution="here", sandbox="bubblewrap")]
    prompts: list[Any] = [
        ["Load it.", DataPart(SALES, "text/csv", "sales.csv", to="container")],
        "Units per region?",
        "Plot them.",
        "What does it show?",
        "Export as JSON.",
        "Thanks.",
    ]
    async with wired.open(*answers, server_side_tools=tools) as talk, talk.agent as agent:
        # Each turn opens the conversation again.
        results = [await Chat(agent, store=tmp_path / "talk.db", id="talk").send(prompt) for prompt in prompts]
        bodies = [len(call.body or b"") for call in talk.transport.calls]
    for result in results:
        grammar.check(result.parts)
    assert [logs_of(results[turn]) for turn in (0, 1)] == ["40000\n", "{'North': 240000, 'South': 600000}\n"]
    assert [file.name for result in results for file in result.files] == ["plot.png", "units.json"]
    assert results[4].files[0].data == b'{"North": 240000, "South": 600000}'
    assert [source.title for result in results for source in result.sources] == ["plot.png"]
    assert len({result.container_id for result in results if result.container_id}) == 1
    assert max(bodies) < 20_000


@requirement("R192", "R129")
async def test_search_fetch_cite_and_follow_up(wired: Subject, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "oslo.md").write_text("# Oslo\n\nOslo is the capital of Norway. It was founded in 1040.")
    page = Reply(body="<h1>Bergen</h1><p>Bergen has seven mountains around it.</p>", content_type="text/html")
    async with FakeProvider() as site:
        site.on("GET", "/bergen", page)
        url = f"http://127.0.0.1:{site.port}/bergen"
        answers = [
            *(Call("web_search", {"query": "capital of Norway"}), Text("Oslo is the capital of Norway [cite:1].")),
            *(Call("web_fetch", {"url": url}), Text("Bergen has seven mountains around it [cite:2].")),
            Text("It was founded in 1040 [cite:1]."),
        ]
        tools = [
            WebSearch(execution="here", engine=f"corpus:{tmp_path / 'pages'}"),
            WebFetch(execution="here", allow_hosts=[f"127.0.0.1:{site.port}"]),
        ]
        async with wired.open(*answers, server_side_tools=tools) as talk, talk.agent as agent:
            prompts = ["What is the capital of Norway?", f"And what about {url}?", "When was Oslo founded?"]
            results = [await Chat(agent, store=tmp_path / "talk.db", id="talk").send(prompt) for prompt in prompts]
    assert [result.output for result in results] == [
        "Oslo is the capital of Norway.",
        "Bergen has seven mountains around it.",
        "It was founded in 1040.",
    ]
    cited = [source for result in results for source in result.sources if source.text_id is not None]
    assert [(source.evidence.state, source.cited_text) for source in cited] == [
        ("quoted", "Oslo is the capital of Norway."),
        ("quoted", "Bergen has seven mountains around it."),
        ("quoted", "It was founded in 1040."),
    ]
    assert cited[1].url == url


@requirement("R192")
async def test_approval_is_resumed_elsewhere_and_followed_up(wired: Subject, tmp_path: Path) -> None:
    deleted: list[str] = []

    def delete(name: str) -> str:
        """Deletes a file."""
        deleted.append(name)
        return f"{name} deleted"

    answers = [
        *(Call("delete", {"name": "a.txt"}), Text("a.txt is gone.")),
        *(Call("delete", {"name": "b.txt"}), Text("Then b.txt stays.")),
        Text("Only a.txt."),
    ]
    tools = [Tool.from_function(delete, approval="ask")]
    store = tmp_path / "talk.db"
    async with wired.open(*answers, tools=tools) as talk, talk.agent as agent:

        async def decided(prompt: str, *, approves: bool) -> Any:
            asked = await Chat(agent, store=store, id="talk").send(prompt)
            assert asked.finish_reason == "approval"
            again = Chat(agent, store=store, id="talk")
            await again.load()
            decisions = [entry.approve() if approves else entry.deny("no") for entry in again.approvals]
            return await again.resume(decisions)

        first = await decided("Delete a.txt.", approves=True)
        second = await decided("And b.txt.", approves=False)
        last = await Chat(agent, store=store, id="talk").send("What did you delete?")
        pairs = wired.wire.pairs(talk.bodies[-1]) if "interactions" not in wired.id else []
    assert [result.output for result in (first, second, last)] == ["a.txt is gone.", "Then b.txt stays.", "Only a.txt."]
    assert deleted == ["a.txt"]
    assert all(pair.name == "delete" for pair in pairs)
