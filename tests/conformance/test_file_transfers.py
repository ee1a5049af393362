"""Files travel as the vendors' own clients send them: both talk to the same fake, which keeps what it receives."""

import io
from typing import Any

import pytest

from sidestream import Agent, Limits
from sidestream.testing import FakeProvider, Received
from support.file_servers import AnthropicFileServer, GoogleFileServer, OpenAIFileServer

KEY = "sk-test-key-0123456789"
DATA = b"a,b\n1,2\n"
# Google's client derives from aiohttp's session.
GOOGLE = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")
FAST = Limits(poll_interval_s=0.001, max_poll_interval_s=0.001)


def calls(fake: FakeProvider) -> list[tuple[str, str]]:
    """What was called, with the bodies that are JSON, and then forgotten."""
    found = [(request.method, request.path) for request in fake.requests]
    fake.requests.clear()
    return found


def bodies(requests: list[Received]) -> list[Any]:
    return [request.json for request in requests]


async def test_openai_uploads_match_vendor_client():
    openai = pytest.importorskip("openai")
    async with FakeProvider() as fake, openai.AsyncOpenAI(base_url=fake.base_url, api_key=KEY) as client:
        server = OpenAIFileServer(fake)
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY, limits=FAST)
        expiry = {"anchor": "created_at", "seconds": 3600}
        theirs = await client.files.create(file=("t.csv", DATA, "text/csv"), purpose="user_data", expires_after=expiry)
        ours = await agent.upload(DATA, name="t.csv", mime_type="text/csv", expires_in_s=3600)
        assert server.forms[0] == server.forms[1]
        assert (ours.size_bytes, ours.name, ours.expires_at) == (theirs.bytes, theirs.filename, theirs.expires_at)
        calls(fake)

        await client.containers.files.create("cntr_1", file=("t.csv", DATA, "text/csv"))
        file = await agent.upload(DATA, name="t.csv", mime_type="text/csv", container_id="cntr_1")
        assert server.forms[2] == server.forms[3]
        assert len(set(calls(fake))) == 1

        got = await client.containers.files.content.retrieve(file.id, container_id="cntr_1")
        assert got.content == (await agent.download("cntr_1", file.id)).data == DATA
        assert calls(fake)[:2] == 2 * [("GET", f"/v1/containers/cntr_1/files/{file.id}/content")]

        assert [f.id for f in await agent.list_files()] == [f.id async for f in client.files.list()]
        await client.files.delete(theirs.id)
        await agent.delete_file(ours)
        assert [path for method, path in calls(fake) if method == "DELETE"] == [
            f"/v1/files/{theirs.id}",
            f"/v1/files/{ours.id}",
        ]


async def test_vector_store_uploads_match_openai_client():
    openai = pytest.importorskip("openai")
    async with FakeProvider() as fake, openai.AsyncOpenAI(base_url=fake.base_url, api_key=KEY) as client:
        server = OpenAIFileServer(fake)
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY, limits=FAST)
        expiry = {"anchor": "last_active_at", "days": 2}
        theirs = await client.vector_stores.create(name="s", expires_after=expiry)
        ours = await agent.create_store("s", expires_in_s=2 * 86_400)
        first, second = fake.requests
        assert (first.json, first.path) == (second.json, second.path)
        fake.requests.clear()

        upload = ("t.csv", DATA, "text/csv")
        await client.vector_stores.files.upload_and_poll(vector_store_id=theirs.id, file=upload)
        made = [(r.method, r.path, r.json, r.headers.get("openai-beta")) for r in fake.requests if "vector" in r.path]
        fake.requests.clear()
        await agent.upload(DATA, name="t.csv", mime_type="text/csv", store=ours)
        mine = [(r.method, r.path, r.json, r.headers.get("openai-beta")) for r in fake.requests if "vector" in r.path]
        assert server.forms[0] == server.forms[1]
        assert mine[0] == (made[0][0], f"/v1/vector_stores/{ours}/files", {"file_id": "file-2"}, made[0][3])
        assert list(server.indexed.values()) == [["file-1"], ["file-2"]]


async def test_anthropic_uploads_match_vendor_client():
    anthropic = pytest.importorskip("anthropic")
    async with FakeProvider() as fake:
        server = AnthropicFileServer(fake)
        base = fake.base_url.removesuffix("/v1")
        agent = Agent("anthropic", base_url=base, api_key=KEY)
        async with anthropic.AsyncAnthropic(base_url=base, api_key=KEY) as client:
            theirs = await client.files.upload(file=("t.csv", DATA, "text/csv"), expires_in_seconds=3600)
            ours = await agent.upload(DATA, name="t.csv", mime_type="text/csv", expires_in_s=3600)
            assert server.forms[0] == server.forms[1]
            assert theirs.expires_at is not None
            assert (ours.expires_at, ours.mime_type) == (theirs.expires_at.timestamp(), theirs.mime_type)
            assert len(set(calls(fake))) == 1
            got = await client.files.download(ours.id)
            assert await got.read() == (await agent.download(ours)).data == DATA
            assert len(set(calls(fake))) == 1
            assert [f.id for f in await agent.list_files()] == [f.id async for f in client.files.list(limit=1000)]
            await client.files.delete(theirs.id)
            await agent.delete_file(ours)
            assert server.files == {}


@GOOGLE
async def test_google_uploads_match_vendor_client():
    genai = pytest.importorskip("google.genai")
    async with FakeProvider() as fake:
        base = fake.base_url.removesuffix("/v1")
        server = GoogleFileServer(fake, origin=base)
        agent = Agent("google", base_url=base, api_key=KEY, limits=FAST)
        client = genai.Client(api_key=KEY, http_options={"base_url": base, "api_version": "v1"})
        config = {"mime_type": "text/csv", "display_name": "t.csv"}
        try:
            theirs = await client.aio.files.upload(file=io.BytesIO(DATA), config=config)
            about, commands = server.about, server.commands.copy()
            wire = [(r.method, r.path, r.query) for r in fake.requests]
            fake.requests.clear()
            ours = await agent.upload(DATA, name="t.csv", mime_type="text/csv")
            assert {**server.about["file"], "sizeBytes": len(DATA)} == about["file"]
            assert server.about["type"] == about["type"]
            assert server.commands == 2 * commands
            assert [(r.method, r.path, r.query) for r in fake.requests] == wire
            assert list(server.contents.values()) == [DATA, DATA]
            assert (ours.size_bytes, ours.mime_type) == (theirs.size_bytes, theirs.mime_type)
            assert theirs.expiration_time is not None
            assert ours.expires_at == theirs.expiration_time.timestamp()
            await client.aio.files.delete(name=theirs.name)
            await agent.delete_file(ours)
            assert server.files == {}
        finally:
            await client.aio.aclose()


@GOOGLE
async def test_file_search_store_uploads_match_google_client():
    genai = pytest.importorskip("google.genai")
    async with FakeProvider() as fake:
        base = fake.base_url.removesuffix("/v1")
        server = GoogleFileServer(fake, origin=base)
        agent = Agent("google", base_url=base, api_key=KEY, limits=FAST)
        client = genai.Client(api_key=KEY, http_options={"base_url": base, "api_version": "v1"})
        config = {"mime_type": "text/csv", "display_name": "t.csv"}
        try:
            await client.aio.file_search_stores.create(config={"display_name": "s"})
            store = await agent.create_store("s")
            assert bodies(fake.requests) == 2 * [{"displayName": "s"}]
            fake.requests.clear()
            made = await client.aio.file_search_stores.upload_to_file_search_store(
                file_search_store_name=store, file=io.BytesIO(DATA), config=config
            )
            about, wire = server.about, [(r.method, r.path, r.query) for r in fake.requests]
            fake.requests.clear()
            file = await agent.upload(DATA, name="t.csv", mime_type="text/csv", store=store)
            assert (server.about, [(r.method, r.path, r.query) for r in fake.requests]) == (about, wire)
            assert made.response is not None
            assert file.id == made.response.document_name
        finally:
            await client.aio.aclose()
