"""Web search: engines behind one port, their failures, and the tool as a model sees it."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from requirements import requirement
from sidestream import Agent, Location, WebSearch
from sidestream.errors import ConfigurationError, MissingKeyError, SearchError
from sidestream.limits import Limits
from sidestream.portable.index import Index
from sidestream.portable.index.sqlite import SqliteIndex
from sidestream.portable.search import Query, SearchEngine, engine_named
from sidestream.testing import ScriptedModel, tool_call
from sidestream.wire.http import HttpTransport
from support.web_pages import serve

RESULTS = [
    {"url": "https://a.example/1", "title": "One", "content": "First <b>hit</b>", "score": 0.9},
    {"url": "https://b.other/2", "title": "Two", "content": "Second", "publishedDate": "2026-01-02"},
    {"url": "https://a.example/1", "title": "Again", "content": ""},
    {"title": "no address"},
]


def engine(name: str, folder: Path | None = None) -> SearchEngine:
    def open_index() -> Index:
        assert folder is not None
        return Index(SqliteIndex(folder / "index.db"), None, "none")

    found = engine_named(name, HttpTransport, Limits(max_retries=0), open_index)
    assert found is not None
    return found


@requirement("R125")
async def test_searxng_receives_query_parameters():
    async with serve({"/search": web.json_response({"results": RESULTS})}) as site:
        query = Query(text="rivers", freshness="day", language="en", country="GB", blocked_domains=["b.other"])
        hits = await engine(f"searxng:{site.url('')}").search(query)
        (request,) = site.requests
    assert [(hit.url, hit.title, hit.score) for hit in hits] == [("https://a.example/1", "One", 0.9)]
    assert dict(request.query) == {
        "q": "rivers -site:b.other", "format": "json", "language": "en-GB", "time_range": "day",
    }  # fmt: skip


async def test_searxng_week_is_sent_and_old_hits_are_dropped():
    today = datetime.now(UTC)
    dates = [None, today.isoformat(), (today - timedelta(days=20)).date().isoformat(), "last spring"]
    results = [{"url": f"https://a.example/{n}", "publishedDate": date} for n, date in enumerate(dates)]
    async with serve({"/search": web.json_response({"results": results})}) as site:
        hits = await engine(f"searxng:{site.url('')}").search(Query(text="x", freshness="week"))
        assert [request.query["time_range"] for request in site.requests] == ["week"]
    assert [hit.url[-1] for hit in hits] == ["0", "1", "3"]


async def test_older_searxng_without_week_is_asked_for_month():
    async def answer(request: web.Request) -> web.Response:
        if request.query["time_range"] == "week":
            return web.json_response({"error": "Invalid value"}, status=400)
        return web.json_response({"results": RESULTS})

    async with serve({"/search": answer}) as site:
        hits = await engine(f"searxng:{site.url('')}").search(Query(text="x", freshness="week"))
    assert [hit.title for hit in hits] == ["One"]


@requirement("R125")
async def test_searxng_html_answer_is_explained():
    html = web.Response(text="<html>results</html>", content_type="text/html")
    async with serve({"/search": html}) as site:
        with pytest.raises(SearchError) as raised:
            await engine(f"searxng:{site.url('')}").search(Query(text="x"))
    assert "search.formats" in str(raised.value)


async def test_failing_searxng_engines_are_named():
    answer = web.json_response({"results": [], "unresponsive_engines": [["google", "too many requests"]]})
    async with serve({"/search": answer}) as site:
        with pytest.raises(SearchError) as raised:
            await engine(f"searxng:{site.url('')}").search(Query(text="x"))
    assert "google: too many requests" in str(raised.value)


@requirement("R125")
@pytest.mark.parametrize("name", ["brave", "exa", "tavily"])
async def test_keyed_engines_receive_key_and_parameters(name: str, monkeypatch: pytest.MonkeyPatch):
    entry = {
        "url": "https://a.example/",
        "title": "A",
        "description": "text",
        "content": "text",
        "highlights": ["text"],
    }
    body = {"web": {"results": [entry]}} if name == "brave" else {"results": [entry]}
    bodies: list[object] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(json.loads(await request.read() or b"{}"))
        return web.json_response(body)

    async with serve({"/search": answer, "/res/v1/web/search": answer}) as site:
        monkeypatch.setenv(f"{name.upper()}_BASE_URL", site.url(""))
        monkeypatch.delenv(f"{name.upper()}_API_KEY", raising=False)
        with pytest.raises(MissingKeyError):
            await engine(name).search(Query(text="x"))
        monkeypatch.setenv(f"{name.upper()}_API_KEY", "key-0123456789")
        query = Query(text="x", count=3, freshness="week", allowed_domains=["a.example"], country="DE")
        (hit,) = await engine(name).search(query)
        (request,) = site.requests
    assert (hit.url, hit.title, hit.snippet) == ("https://a.example/", "A", "text")
    sent = {**request.query, **bodies[0]}  # type: ignore[dict-item]
    match name:
        case "brave":
            assert request.headers["X-Subscription-Token"] == "key-0123456789"
            assert sent == {"q": "x site:a.example", "count": "3", "freshness": "pw", "country": "DE"}
        case "exa":
            assert request.headers["x-api-key"] == "key-0123456789"
            assert (sent["numResults"], sent["includeDomains"], sent["userLocation"]) == (3, ["a.example"], "DE")
            assert "startPublishedDate" in sent
        case _:
            assert request.headers["Authorization"] == "Bearer key-0123456789"
            assert (sent["max_results"], sent["include_domains"], sent["time_range"]) == (3, ["a.example"], "week")


@requirement("R125")
@pytest.mark.parametrize(
    ("status", "code"), [(429, "too_many_requests"), (500, "unavailable"), (403, "unavailable"), (0, "unavailable")]
)
async def test_unavailable_or_rate_limited_engine_is_error_result(status: int, code: str):
    async with serve({"/search": web.Response(status=status or 200, text="no")}) as site:
        url = site.url("")
        if status:
            result = await _searched(f"searxng:{url}")
    if not status:  # the server is gone
        result = await _searched(f"searxng:{url}")
    (entry,) = result.tool_results
    assert entry.is_error
    assert entry.result["error"]["code"] == code
    assert result.output == "Done"


async def _searched(engine: str):
    model = ScriptedModel([tool_call("web_search", query="rivers"), "Done"])
    async with Agent(
        model, server_side_tools=[WebSearch(execution="here", engine=engine)], limits=Limits(max_retries=0)
    ) as agent:
        return await agent.send("Search")


@requirement("R125")
async def test_search_returns_hosted_result_and_sources():
    async with serve({"/search": web.json_response({"results": RESULTS})}) as site:
        model = ScriptedModel([tool_call("web_search", query="rivers"), 'There is one [cite:1 "First <b>hit"].'])
        tool = WebSearch(engine=f"searxng:{site.url('')}", count=1, location=Location(country="DE"), language="de")
        async with Agent(model, server_side_tools=[tool]) as agent:
            result = await agent.send("Search")
    (entry,) = result.tool_results
    assert entry.result["status"] == "completed"
    assert entry.result["sources"] == [
        {
            "cite": 1,
            "type": "url",
            "url": "https://a.example/1",
            "title": "One",
            "snippet": "First <b>hit</b>",
            "score": 0.9,
        }
    ]
    assert [(source.kind, source.url, source.title, source.evidence.state) for source in result.sources] == [
        ("url", "https://a.example/1", "One", "quoted")
    ]


@requirement("R125")
def test_missing_engine_error_lists_choices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SIDESTREAM_SEARCH", raising=False)
    agent = Agent(ScriptedModel(["x"]), server_side_tools=[WebSearch(execution="here")])
    with pytest.raises(ConfigurationError) as raised:
        agent.send_sync("Search")
    for choice in ("searxng:URL", "brave", "exa", "tavily", "mcp:SERVER/TOOL", "SIDESTREAM_SEARCH"):
        assert choice in str(raised.value)


@requirement("R125")
async def test_folder_is_searched_like_web(tmp_path: Path):
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "oder.md").write_text("url: https://rivers.example/oder\n\n# Oder\n\nThe Oder flows north.\n")
    (folder / "plain.md").write_text("# Plain\n\nA plain flows nowhere.\n")
    found = engine(f"corpus:{folder}", tmp_path)
    hits = await found.search(Query(text="Oder flows"))
    assert (hits[0].url, hits[0].title) == ("https://rivers.example/oder", "Oder")
    assert hits[1].url == (folder / "plain.md").as_uri()
    assert [hit.url for hit in await found.search(Query(text="flows", allowed_domains=["rivers.example"]))] == [
        "https://rivers.example/oder"
    ]
    await found.aclose()


_SERVER = """
from mcp.server import MCPServer
server = MCPServer("finder")

@server.tool()
def find(query: str, max_results: int = 5) -> list[dict]:
    return [{"link": f"https://found.example/{n}", "name": query, "summary": "text"} for n in range(max_results)]

@server.tool()
def prose(question: str) -> str:
    return f"About {question}: see [the page](https://prose.example/a) and https://prose.example/b."

@server.tool()
def broken(query: str) -> str:
    raise ValueError("out of order")

server.run()
"""


@requirement("R125")
async def test_mcp_tool_can_be_search_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "server.py").write_text(_SERVER)
    config = {"mcpServers": {"finder": {"command": sys.executable, "args": [str(tmp_path / "server.py")]}}}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    find, prose, broken = (engine(f"mcp:finder/{tool}") for tool in ("find", "prose", "broken"))
    missing = engine("mcp:finder/nothing")
    try:
        hits = await find.search(Query(text="rivers", count=2))
        assert [(hit.url, hit.title, hit.snippet) for hit in hits] == [
            ("https://found.example/0", "rivers", "text"),
            ("https://found.example/1", "rivers", "text"),
        ]
        hits = await prose.search(Query(text="rivers"))
        assert [(hit.url, hit.title) for hit in hits] == [
            ("https://prose.example/a", "the page"),
            ("https://prose.example/b", ""),
        ]
        with pytest.raises(SearchError):
            await broken.search(Query(text="x"))
        with pytest.raises(ConfigurationError):
            await missing.search(Query(text="x"))
    finally:
        for each in (find, prose, broken, missing):
            await each.aclose()


@pytest.mark.parametrize("name", ["searxng:", "searxng:nowhere", "mcp:x", "corpus:/no/such/folder"])
def test_incomplete_engine_name_is_refused(name: str):
    with pytest.raises(ConfigurationError):
        engine(name)
