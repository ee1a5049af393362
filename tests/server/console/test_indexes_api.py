"""The file index of a server: what may be indexed, by whom, and what a request may search."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from requirements import requirement
from server.serving import serving
from sidestream import Agent
from sidestream.server.server import Server
from sidestream.testing import ChatScript, FakeProvider, ScriptedModel, tool_call
from support.portable_index import hostile_folder, write_corpus


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIDESTREAM_INDEX", str(tmp_path / "index.db"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    write_corpus(tmp_path / "docs")
    return tmp_path / "docs"


async def added(server: Server, client: httpx2.AsyncClient, folder: Path) -> None:
    """Adds a folder, and waits until it is read."""
    response = await client.post("/api/indexes", json={"path": str(folder)})
    assert response.status_code == 202
    await server.indexes.settled()


@requirement("R143")
async def test_folder_is_indexed_in_background_and_described(tmp_path: Path, docs: Path):
    async with serving({"main": Agent(ScriptedModel([]))}, tmp_path, index_folders=[str(docs)], allows_admin=True) as (
        server,
        client,
    ):
        assert (await client.get("/api/indexes")).json()["folders"] == []
        started = await client.post("/api/indexes", json={"path": str(docs)})
        reading = (await client.get("/api/indexes")).json()["folders"][0]
        assert (started.status_code, reading["path"]) == (202, str(docs))
        assert reading["reading"] is not None
        await server.indexes.settled()
        (folder,) = (await client.get("/api/indexes")).json()["folders"]
        assert (folder["name"], folder["files"], folder["reading"], folder["error"]) == ("docs", 3, None, None)
        assert folder["updated"] > 1e9
        found = (await client.get("/api/indexes/search", params={"q": "windowsill"})).json()["passages"]
        assert found[0]["filename"] == "cats.html"
        removed = await client.delete("/api/indexes", params={"path": str(docs)})
        assert removed.json() == {"removed": 3}
        assert (await client.get("/api/indexes")).json()["folders"] == []


@requirement("R143", "R144")
async def test_only_allowed_folders_can_be_indexed_despite_symlinks(tmp_path: Path, docs: Path):
    (docs / "out").symlink_to(tmp_path)
    async with serving({"main": Agent(ScriptedModel([]))}, tmp_path, index_folders=[str(docs)], allows_admin=True) as (
        _,
        client,
    ):
        for path in (str(tmp_path), str(docs / ".."), str(docs / "out"), "/etc", f"{docs}-other", "", "\0"):
            refused = await client.post("/api/indexes", json={"path": path})
            assert refused.status_code == 403, path
        assert (await client.post("/api/indexes", json={"path": str(docs / "nothing")})).status_code == 404
        assert (await client.post("/api/indexes", json={})).status_code == 400
        assert (await client.get("/api/indexes/search", params={"q": " "})).status_code == 400


@requirement("F56")
async def test_skipped_files_are_described(tmp_path: Path, docs: Path):
    expected = hostile_folder(docs)
    folders = [str(docs)]
    async with serving({"main": Agent(ScriptedModel([]))}, tmp_path, index_folders=folders, allows_admin=True) as (
        server,
        client,
    ):
        await added(server, client, docs)
        (folder,) = (await client.get("/api/indexes")).json()["folders"]
        assert folder["problemCount"] == len(expected)
        assert {str(docs / entry["path"]) for entry in folder["problems"]} == expected.keys()
        found = (await client.get("/api/indexes/search", params={"q": "swordfish"})).json()["passages"]
        assert not any("swordfish" in passage["text"] for passage in found)


@requirement("F56")
async def test_folder_swapped_for_link_is_not_read(tmp_path: Path, docs: Path):
    async with serving({"main": Agent(ScriptedModel([]))}, tmp_path, index_folders=[str(docs)]) as (server, client):
        server.indexes.start(str(docs / "sub"))  # The path is checked; reading begins when this test waits.
        (docs / "sub").rename(tmp_path / "moved")
        (docs / "sub").symlink_to(tmp_path / "moved")
        await server.indexes.settled()
        (folder,) = (await client.get("/api/indexes")).json()["folders"]
        assert (folder["files"], "leads out" in folder["error"]) == (0, True)


@requirement("R144")
async def test_index_is_unavailable_when_server_has_several_tokens(tmp_path: Path, docs: Path):
    settings: dict[str, Any] = {
        "index_folders": [str(docs)],
        "tokens": ["token-of-anna-0123456789", "token-of-ben-0123456789"],
    }
    async with serving({"main": Agent(ScriptedModel([]))}, tmp_path, **settings) as (_, client):
        assert (await client.get("/api/indexes")).json()["unavailable"] == "shared"
        assert (await client.post("/api/indexes", json={"path": str(docs)})).status_code == 403
        assert (await client.get("/api/indexes/search", params={"q": "x"})).status_code == 403
    async with serving({"main": Agent(ScriptedModel([]))}, tmp_path) as (_, client):
        assert (await client.get("/api/indexes")).json()["unavailable"] == "off"
        assert (await client.post("/api/indexes", json={"path": str(docs)})).status_code == 404


@requirement("R120", "R143")
async def test_chat_searches_index_by_tool_name(tmp_path: Path, docs: Path):
    model = ScriptedModel([tool_call("file_search", queries=["windowsill"]), "Found"])
    async with (
        Agent(model) as agent,
        serving({"main": agent}, tmp_path, index_folders=[str(docs)], allows_admin=True) as (server, client),
    ):
        await added(server, client, docs)
        listed = (await client.get("/api/models")).json()["models"][0]["tools"]
        assert listed["file_search"] == "here"
        message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Where?"}]}
        answered = await client.post("/api/chat", json={"id": "c1", "message": message, "tools": ["file_search"]})
        assert answered.status_code == 200, answered.text
        assert "cats.html" in answered.text


@requirement("R144")
async def test_request_cannot_name_local_path_as_vector_store(
    tmp_path: Path, docs: Path, monkeypatch: pytest.MonkeyPatch
):
    for stores in ([str(docs)], ["./docs"], ["index:"], ["index:/x.db"], ["postgresql://db/x"], ["~"]):
        async with serving({"main": Agent(ScriptedModel(["x"]))}, tmp_path) as (_, client):
            tools = [{"type": "file_search", "vector_store_ids": stores}]
            refused = await client.post("/v1/responses", json={"model": "main", "input": "x", "tools": tools})
            assert refused.status_code == 400, stores
            assert refused.json()["error"]["param"] == "tools[0].vector_store_ids"
    # A name that looks like a provider's store is none of this machine's files either.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secrets").mkdir()
    async with FakeProvider([ChatScript().text("x").reply()]) as fake:
        agent = Agent("groq:m", base_url=fake.base_url, api_key="k")
        async with serving({"main": agent}, tmp_path) as (_, client):
            tools = [{"type": "file_search", "vector_store_ids": ["secrets"]}]
            answer = await client.post("/v1/responses", json={"model": "main", "input": "x", "tools": tools})
            assert answer.json().get("output", []) == []
        assert fake.requests == []
    assert not (tmp_path / "index.db").exists()


@requirement("R143")
async def test_responses_api_may_name_index_when_open(tmp_path: Path, docs: Path):
    model = ScriptedModel([tool_call("file_search", queries=["windowsill"]), "It sleeps there [cite:1]."])
    async with (
        Agent(model) as agent,
        serving({"main": agent}, tmp_path, index_folders=[str(docs)], allows_admin=True) as (server, client),
    ):
        await added(server, client, docs)
        tools = [{"type": "file_search", "vector_store_ids": ["index:"]}]
        response = (await client.post("/v1/responses", json={"model": "main", "input": "x", "tools": tools})).json()
        assert [item["type"] for item in response["output"]] == ["file_search_call", "message"]
