"""Files at the provider: uploaded, used, downloaded, listed and deleted, on all three."""

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream import (
    Agent,
    ChatMessage,
    CodeInterpreter,
    ConfigurationError,
    ConnectError,
    DataPart,
    File,
    FileSearch,
    LimitError,
    Limits,
    LinkPart,
    ProviderError,
    RunError,
    UnsupportedError,
)
from sidestream.parts import StreamStart
from sidestream.providers import StoredFile
from sidestream.providers.google.files import CHUNK_BYTES
from sidestream.replay.capture import RecordingTransport
from sidestream.testing import (
    FakeProvider,
    GeminiScript,
    MessagesScript,
    Reply,
    ResponsesScript,
    dropped,
    error_reply,
    json_reply,
    pixel_png,
)
from sidestream.wire.http import HttpTransport
from sidestream.wire.retry import RetryPolicy
from support.file_servers import AnthropicFileServer, FileServer, GoogleFileServer, OpenAIFileServer

SERVERS: dict[str, Any] = {
    "openai-responses": OpenAIFileServer,
    "openai": OpenAIFileServer,
    "anthropic": AnthropicFileServer,
    "google": GoogleFileServer,
}
EVERY = pytest.mark.parametrize("provider", SERVERS)
FAST = Limits(poll_interval_s=0.001, max_poll_interval_s=0.001)
PDF = b"%PDF-1.7\nhello\r\n--sidestream\r\n"


def agent_at(fake: FakeProvider, provider: str = "openai-responses", **settings: Any) -> Agent[str]:
    models = {"google": "google:gemini-3-flash", "anthropic": "anthropic:claude-sonnet-5-5", "openai": "openai:gpt-5.6"}
    transport = HttpTransport(retry=RetryPolicy(wait_initial_s=0.001, wait_max_s=0.001))
    settings = {"limits": FAST, "transport": transport, "api_key": "sk-test-key-0123456789", **settings}
    return Agent(models.get(provider, provider), base_url=fake.base_url, **settings)


def served(fake: FakeProvider, provider: str, **settings: Any) -> FileServer:
    return SERVERS[provider](fake, **settings)


@EVERY
async def test_file_is_uploaded_from_disk_with_name_and_type(provider: str, tmp_path: Path):
    path = tmp_path / "Q3 report.pdf"
    path.write_bytes(PDF)
    async with FakeProvider() as fake:
        server = served(fake, provider)
        file = await agent_at(fake, provider).upload(path)
        assert (file.name, file.mime_type, file.size_bytes) == ("Q3 report.pdf", "application/pdf", len(PDF))
        assert file.provider == provider
        assert list(server.contents.values()) == [PDF]
        assert all("transfer-encoding" not in request.headers for request in fake.requests)
        assert fake.unexpected == []


@EVERY
@pytest.mark.parametrize(
    ("source", "name", "kind"),
    [
        (b"a,b\n", "file.txt", "text/plain"),
        (pixel_png(), "file.png", "image/png"),
        (DataPart(PDF, "application/pdf", "a.pdf"), "a.pdf", "application/pdf"),
        (File("f1", "text/csv", "t.csv", b"a,b\n"), "t.csv", "text/csv"),
    ],
)
async def test_bytes_and_parts_can_be_uploaded(provider: str, source: Any, name: str, kind: str):
    async with FakeProvider() as fake:
        server = served(fake, provider)
        file = await agent_at(fake, provider).upload(source)
        assert (file.name, file.mime_type) == (name, kind)
        assert list(server.contents.values()) == [getattr(source, "data", None) or getattr(source, "bytes", source)]


@pytest.mark.parametrize("provider", ["openai-responses", "anthropic"])
async def test_file_name_cannot_escape_form(provider: str):
    async with FakeProvider() as fake:
        server = served(fake, provider)
        await agent_at(fake, provider).upload(
            b"x", name='a"\r\nContent-Type: text/html\r\n\r\nå.txt', mime_type="text/plain"
        )
        (form,) = server.forms
        assert form["file"] == ("a___Content-Type: text/html____å.txt", "text/plain", b"x")


async def test_uploaded_file_can_be_used_in_prompt():
    async with FakeProvider([ResponsesScript().text("Done.").reply()]) as fake:
        served(fake, "openai-responses")
        agent = agent_at(fake)
        pdf, image = await agent.upload(PDF), await agent.upload(pixel_png())
        await agent.send(["Compare.", pdf, image])
        sent = fake.requests[-1].json["input"][0]["content"]
        assert sent[1:] == [
            {"type": "input_file", "file_id": pdf.id},
            {"type": "input_image", "file_id": image.id, "detail": "auto"},
        ]


@EVERY
async def test_file_is_found_by_id(provider: str):
    async with FakeProvider() as fake:
        served(fake, provider)
        agent = agent_at(fake, provider)
        image = await agent.upload(pixel_png(), name="a.png")
        found = await agent.describe_file(image.id)
        assert (found.part, found.size_bytes) == (image.part, image.size_bytes)
        with pytest.raises(ProviderError) as raised:
            await agent.describe_file("unknown")
        assert raised.value.status == 404


async def test_uploaded_file_can_be_used_in_chat_completions_prompt():
    async with FakeProvider() as fake:
        served(fake, "openai")
        agent = agent_at(fake, "openai")
        file = await agent.upload(PDF)
        with pytest.raises(RunError):
            await agent.send(["Summarise.", file])
        assert fake.requests[-1].json["messages"][0]["content"][1] == {"type": "file", "file": {"file_id": file.id}}


async def test_uploaded_file_is_usable_in_anthropic_prompt_and_sandbox():
    async with FakeProvider([MessagesScript().text("Done.").reply()]) as fake:
        served(fake, "anthropic")
        agent = agent_at(fake, "anthropic")
        file = await agent.upload(PDF, name="a.pdf")
        await agent.send(["Summarise.", file], server_side_tools=[CodeInterpreter(file_ids=[file.id])])
        (message,) = fake.requests[-1].json["messages"]
        assert message["content"][1:] == [
            {"type": "document", "source": {"type": "file", "file_id": file.id}, "title": "a.pdf"},
            {"type": "container_upload", "file_id": file.id},
        ]


@pytest.mark.parametrize("model", ["google:gemini-3-flash", "google:interactions/gemini-3-flash"])
async def test_uploaded_file_can_be_used_in_google_prompt(model: str):
    async with FakeProvider([GeminiScript().text("Done.").reply()]) as fake:
        served(fake, "google")
        agent = Agent(model, base_url=fake.base_url, api_key="sk-test-key-0123456789", limits=FAST)
        page = await agent.upload(b"<html></html>", name="page.html", mime_type="text/html")
        run = agent.stream(["Summarise.", page], errors="parts")
        assert [part async for part in run]
        assert b"https://generativelanguage.googleapis.com/v1/files/f-1" in fake.requests[-1].body
        assert b'"text/html"' in fake.requests[-1].body


async def test_file_of_another_provider_is_named_with_warning():
    history = [ChatMessage.user(LinkPart("anthropic-file:file_1", "application/pdf", "a.pdf")), ChatMessage.model("ok")]
    async with FakeProvider([ResponsesScript().text("Done.").reply()]) as fake:
        parts = [part async for part in agent_at(fake).stream("And now?", history=history)]
        (warning,) = next(part.warnings for part in parts if isinstance(part, StreamStart))
        assert "a.pdf" in warning
        assert "anthropic-file" not in fake.requests[0].body.decode()
        assert "a.pdf, application/pdf" in fake.requests[0].body.decode()


async def test_upload_returns_when_vector_store_is_ready():
    async with FakeProvider([ResponsesScript().text("Found.").reply()]) as fake:
        server = OpenAIFileServer(fake, polls=3)
        agent = agent_at(fake)
        store = await agent.create_store("handbook", expires_in_s=3 * 86_400 - 5)
        assert fake.requests[0].json["expires_after"] == {"anchor": "last_active_at", "days": 3}
        file = await agent.upload(b"# Rules", name="rules.md", store=store)
        assert (file.store, server.indexed, server.polls) == (store, {store: [file.id]}, 0)
        assert server.forms[0]["purpose"] == "assistants"
        assert {r.headers.get("openai-beta") for r in fake.requests if "vector" in r.path} == {"assistants=v2"}
        await agent.send("Which rules?", server_side_tools=[FileSearch(stores=[store])])
        assert fake.requests[-1].json["tools"][0]["vector_store_ids"] == [store]
        assert await agent.delete_file(file)
        assert (server.indexed, server.files) == ({store: []}, {})
        assert await agent.delete_store(store)
        assert not await agent.delete_store(store)


async def test_upload_returns_when_file_search_store_is_ready():
    async with FakeProvider() as fake:
        server = GoogleFileServer(fake, polls=2)
        agent = agent_at(fake, "google")
        store = await agent.create_store("handbook")
        file = await agent.upload(b"# Rules", name="notes.md", store=store)
        assert (file.id, file.store) == ("fileSearchStores/s-1/documents/d-1", "fileSearchStores/s-1")
        assert server.about == {"displayName": "notes.md", "mimeType": "text/markdown", "type": "text/markdown"}
        assert server.polls == 0
        with pytest.raises(ConfigurationError):
            _ = file.part
        (listed,) = await agent.list_files(store="s-1")
        assert (listed.id, listed.store, listed.name) == (file.id, file.store, "notes.md")
        assert await agent.delete_file(file)
        assert (fake.requests[-1].path, fake.requests[-1].query) == (f"/v1/{file.id}", {"force": "true"})
        await agent.delete_store(store)
        assert (fake.requests[-1].path, fake.requests[-1].query) == ("/v1/fileSearchStores/s-1", {"force": "true"})


async def test_file_rejected_by_store_is_named_in_error():
    async with FakeProvider() as fake:
        served(fake, "openai-responses")
        fake.on("POST", "/v1/vector_stores/vs_9/files", error_reply(404, "not_found", "no such store"))
        with pytest.raises(ProviderError) as raised:
            await agent_at(fake).upload(b"x", store="vs_9")
    assert raised.value.status == 404
    assert "agent.delete_file('file-1')" in raised.value.__notes__[0]


async def test_upload_waits_for_google_processing():
    async with FakeProvider() as fake:
        server = GoogleFileServer(fake, polls=3)
        file = await agent_at(fake, "google").upload(b"\x00\x00\x00\x18ftypmp42", name="a.mp4")
        assert (server.polls, file.mime_type, file.id) == (0, "video/mp4", "files/f-1")
        assert file.expires_at == 1793577600.5


@pytest.mark.parametrize(
    ("provider", "outcome", "where"),
    [
        ("openai-responses", "failed", {"store": "vs_1"}),
        ("openai-responses", "cancelled", {"store": "vs_1"}),
        ("google", "FAILED", {}),
        ("google", "FAILED", {"store": "s-1"}),
    ],
)
async def test_unprocessable_file_raises_error_with_its_name(provider: str, outcome: str, where: dict[str, Any]):
    async with FakeProvider() as fake:
        server = served(fake, provider, polls=1, outcome=outcome)
        if isinstance(server, OpenAIFileServer):
            server.indexed["vs_1"] = []
        with pytest.raises(ProviderError) as raised:
            await agent_at(fake, provider).upload(b"x", name="a.bin", **where)
    assert "delete_file(" in raised.value.message


@pytest.mark.parametrize(("provider", "where"), [("openai-responses", {"store": "vs_1"}), ("google", {})])
async def test_waiting_for_processing_is_bounded(provider: str, where: dict[str, Any]):
    async with FakeProvider() as fake:
        server = served(fake, provider, polls=10**9)
        if isinstance(server, OpenAIFileServer):
            server.indexed["vs_1"] = []
        with pytest.raises(LimitError) as raised:
            await agent_at(fake, provider, limits=replace(FAST, max_processing_s=0.01)).upload(b"x", **where)
    assert raised.value.code == "max_processing_s"


async def test_file_round_trips_through_container():
    async with FakeProvider() as fake:
        server = served(fake, "openai-responses")
        agent = agent_at(fake)
        file = await agent.upload(b"a,b\n", name="t.csv", container_id="cntr_1")
        assert (file.container_id, file.name) == ("cntr_1", "t.csv")
        with pytest.raises(ConfigurationError):
            _ = file.part
        for got in (
            await agent.download("cntr_1", file.id),
            await agent.download(file.id, container_id="cntr_1"),
            await agent.download(file_id=file.id, container_id="cntr_1"),
            await agent.download(file),
        ):
            assert got == File(file.id, "text/csv", "t.csv", b"a,b\n")
        assert await agent.delete_file(file)
        assert server.files == {}


@pytest.mark.parametrize("provider", ["openai-responses", "openai", "anthropic"])
async def test_download_has_bytes_name_and_type(provider: str):
    async with FakeProvider() as fake:
        served(fake, provider)
        agent = agent_at(fake, provider)
        file = await agent.upload(pixel_png(), name="plot.png")
        assert await agent.download(file.id) == File(file.id, "image/png", "plot.png", pixel_png())
        with pytest.raises(ProviderError) as raised:
            await agent.download("file_unknown")
        assert raised.value.status == 404


async def test_google_download_needs_no_description():
    async with FakeProvider() as fake:
        served(fake, "google")
        assert await agent_at(fake, "google").download("files/g-1") == File(
            "files/g-1", "text/plain", None, b"generated"
        )


async def test_provider_file_name_has_no_folders():
    async with FakeProvider() as fake:
        fake.add_file("/v1/files/f1/content", b"x")
        fake.on("GET", "/v1/files/f1", json_reply({"id": "f1", "filename": "../../etc/passwd"}))
        assert (await agent_at(fake).download("f1")).name == "passwd"


@EVERY
async def test_download_takes_file_or_container_with_file(provider: str):
    stored = StoredFile(id="f", provider=provider)
    async with FakeProvider() as fake:
        download: Any = agent_at(fake, provider).download
        for place, named in (((), {}), (("a", "b", "c"), {}), (("a", "b"), {"container_id": "c"}), ((stored, "b"), {})):
            with pytest.raises(ConfigurationError):
                await download(*place, **named)
        assert fake.requests == []


@EVERY
async def test_files_are_listed_over_all_pages_and_deleted(provider: str):
    async with FakeProvider() as fake:
        server = served(fake, provider)
        agent = agent_at(fake, provider)
        assert await agent.list_files() == []
        files = [await agent.upload(b"x" * size, name=f"{size}.txt") for size in (1, 2, 3, 4, 5)]
        listed = await agent.list_files()
        assert [(file.id, file.name, file.size_bytes) for file in listed] == [
            (file.id, file.name, file.size_bytes) for file in files
        ]
        assert await agent.delete_file(files[0])
        assert await agent.delete_file(files[1].id)
        assert len(server.files) == 3
        assert not await agent.delete_file(files[0])


@pytest.mark.parametrize(
    ("provider", "field", "at"),
    [("openai-responses", "expires_after[seconds]", 4600.0), ("anthropic", "expires_in_seconds", 1793577600.0)],
)
async def test_upload_can_expire(provider: str, field: str, at: float):
    async with FakeProvider() as fake:
        server = served(fake, provider)
        agent = agent_at(fake, provider)
        assert (await agent.upload(b"x", expires_in_s=3600)).expires_at == at
        assert server.forms[0][field] == "3600"
        assert (await agent.upload(b"x")).expires_at is None
        for seconds in (3599, 10**9):
            with pytest.raises(ConfigurationError):
                await agent.upload(b"x", expires_in_s=seconds)
        assert len(fake.requests) == 2


@pytest.mark.parametrize(
    ("provider", "where"),
    [
        ("anthropic", {"container_id": "c"}),
        ("anthropic", {"store": "s"}),
        ("google", {"container_id": "c"}),
        ("google", {"expires_in_s": 3600}),
        ("openai-responses", {"container_id": "c", "expires_in_s": 3600}),
        ("openai-responses", {"container_id": "c", "store": "vs_1"}),
    ],
)
async def test_unsupported_file_feature_is_rejected_before_sending(provider: str, where: dict[str, Any]):
    async with FakeProvider() as fake:
        with pytest.raises(UnsupportedError):
            await agent_at(fake, provider).upload(b"x", **where)
        assert fake.requests == []


async def test_provider_without_files_raises_unsupported_error(tmp_path: Path):
    recording = tmp_path / "r.json"
    recording.write_text('{"exchanges": []}', "utf-8")
    with pytest.raises(UnsupportedError, match="DataPart"):
        await Agent(f"replay:{recording}").upload(b"x")


async def test_invalid_upload_is_rejected_before_sending(tmp_path: Path):
    (tmp_path / "empty.txt").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    bad: list[tuple[Any, dict[str, Any]]] = [
        (tmp_path / "missing.txt", {}),
        (str(tmp_path), {}),
        (tmp_path / "empty.txt", {}),
        (tmp_path / "pipe", {}),
        (b"", {}),
        (7, {}),
        (b"x", {"mime_type": "text/plain\r\nX: y"}),
        (File("f", "image/png", url="https://a.example/b.png"), {}),
    ]
    async with FakeProvider() as fake:
        agent = agent_at(fake)
        for source, settings in bad:
            with pytest.raises(ConfigurationError):
                await agent.upload(source, **settings)
        with pytest.raises(LimitError) as raised:
            await agent_at(fake, limits=Limits(max_upload_bytes=3)).upload(b"1234")
        assert raised.value.code == "max_upload_bytes"
        assert fake.requests == []


@EVERY
async def test_progress_counts_content_and_ends_with_total(provider: str, tmp_path: Path):
    path = tmp_path / "big.bin"
    path.write_bytes(bytes(3_000_001))
    seen: list[tuple[int, int]] = []
    async with FakeProvider() as fake:
        server = served(fake, provider)
        await agent_at(fake, provider).upload(path, progress=lambda sent, total: seen.append((sent, total)))
        assert [len(content) for content in server.contents.values()] == [3_000_001]
    counts = [sent for sent, _ in seen]
    assert counts == sorted(counts)
    assert len(set(counts)) > 5
    assert (counts[-1], {total for _, total in seen}) == (3_000_001, {3_000_001})


async def test_progress_function_error_is_raised():
    def stop(sent: int, total: int) -> None:
        raise ZeroDivisionError

    async with FakeProvider() as fake:
        served(fake, "openai-responses")
        with pytest.raises(ZeroDivisionError):
            await agent_at(fake).upload(b"x", progress=stop)


@pytest.mark.parametrize("provider", ["openai-responses", "anthropic"])
@requirement("F23")
async def test_broken_upload_is_not_retried_and_reports_its_progress(provider: str, tmp_path: Path):
    path = tmp_path / "a.bin"
    path.write_bytes(os.urandom(2_000_000))
    async with FakeProvider() as fake:
        server: Any = served(fake, provider)
        fake.on("POST", "/v1/files", Reply(cut_upload_after_bytes=700_000), server.upload)
        with pytest.raises(ConnectError) as caught:
            await agent_at(fake, provider).upload(path)
        assert len(fake.requests) == 1
    assert (caught.value.code, caught.value.retryable) == ("upload", False)
    assert "of 2000" in str(caught.value)


@requirement("F23")
async def test_upload_is_not_retried_when_file_disappears_midway(tmp_path: Path):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(2_000_000))

    def remove(sent: int, total: int) -> None:
        path.unlink(missing_ok=True)

    async with FakeProvider() as fake:
        served(fake, "openai-responses")
        with pytest.raises(ConfigurationError, match=re.escape(str(path))):
            await agent_at(fake).upload(path, progress=remove)
        assert len(fake.requests) <= 1


@requirement("F23")
@pytest.mark.parametrize("provider", ["openai-responses", "anthropic"])
async def test_temporarily_refused_upload_is_resent_with_same_key(provider: str, tmp_path: Path):
    path = tmp_path / "a.bin"
    path.write_bytes(os.urandom(2_000_000))
    async with FakeProvider() as fake:
        server: Any = served(fake, provider)
        fake.on("POST", "/v1/files", error_reply(503), server.upload)
        await agent_at(fake, provider).upload(path)
        assert list(server.contents.values()) == [path.read_bytes()]
        assert len(fake.requests) == 2
        assert len({request.headers["idempotency-key"] for request in fake.requests}) == 1


async def test_broken_google_upload_continues_at_server_offset():
    data = os.urandom(CHUNK_BYTES + 500_000)
    async with FakeProvider() as fake:
        server = GoogleFileServer(fake)

        def half(request: Any) -> Reply:
            """The server has taken a part of the chunk, and its answer is lost."""
            server.received += request.body[:100_000]
            return dropped()

        fake.on("POST", "/upload-here", server.proceed, half, server.proceed)
        await agent_at(fake, "google").upload(data, name="a.bin")
        assert server.contents == {"f-1": data}
        assert server.commands == [
            ("upload", 0, CHUNK_BYTES),
            ("query", None, 0),
            ("upload, finalize", CHUNK_BYTES + 100_000, 400_000),
        ]


async def test_google_upload_is_not_resent_when_last_answer_is_lost():
    async with FakeProvider() as fake:
        server = GoogleFileServer(fake)

        def lost(request: Any) -> Reply:
            server.received += request.body
            return dropped()

        fake.on("POST", "/upload-here", lost, server.proceed)
        await agent_at(fake, "google").upload(b"12345")
        assert server.commands == [("query", None, 0), ("upload, finalize", 5, 0)]
        assert server.contents == {"f-1": b"12345"}


@pytest.mark.parametrize("answer", [dropped(), error_reply(503)])
async def test_google_upload_fails_when_it_keeps_breaking(answer: Reply):
    async with FakeProvider() as fake:
        server = GoogleFileServer(fake)

        def broken(request: Any) -> Reply:
            return server.proceed(request) if request.headers["x-goog-upload-command"] == "query" else answer

        fake.on("POST", "/upload-here", broken)
        with pytest.raises(RunError):
            await agent_at(fake, "google").upload(b"12345")
        assert [command for command, *_ in server.commands] == 3 * ["query"]


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"x-goog-upload-url": "ftp://a.example/"},
        {"x-goog-upload-url": "/relative"},
        {"x-goog-upload-url": "http://["},
    ],
)
async def test_upload_without_usable_url_raises_protocol_error(head: dict[str, str]):
    async with FakeProvider() as fake:
        GoogleFileServer(fake)
        fake.on("POST", "/upload/v1/files", json_reply({}, headers=head))
        with pytest.raises(RunError) as raised:
            await agent_at(fake, "google").upload(b"x")
        assert raised.value.kind == "protocol"


@EVERY
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"file": 7}', b"\xff"])
async def test_response_without_file_raises_protocol_error(provider: str, body: bytes):
    async with FakeProvider() as fake:
        served(fake, provider)
        head = {"x-goog-upload-status": "final"}
        for path in ("/v1/files", "/upload-here"):
            fake.on("POST", path, Reply(body=body, content_type="application/json", headers=head))
        with pytest.raises(RunError) as raised:
            await agent_at(fake, provider).upload(b"x")
        assert raised.value.kind == "protocol"


async def test_rejected_upload_keeps_status_and_hides_key():
    async with FakeProvider([error_reply(401, "invalid_api_key", "bad key sk-test-key-0123456789")]) as fake:
        with pytest.raises(RunError) as raised:
            await agent_at(fake, api_key="sk-test-key-0123456789").upload(b"x")
        assert raised.value.status == 401
        assert "sk-test-key" not in str(raised.value)


async def test_shortened_file_raises_error(tmp_path: Path):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(1_000_000))

    def shrink(request: Any) -> Reply:
        path.write_bytes(b"short")
        return error_reply(503)

    async with FakeProvider([shrink]) as fake:
        with pytest.raises(ConfigurationError, match="shorter"):
            await agent_at(fake).upload(path)


async def test_cancelled_upload_leaves_nothing_behind(tmp_path: Path):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(1_000_000))
    gate = asyncio.Event()
    async with FakeProvider([Reply(gate=gate)]) as fake:
        task = asyncio.create_task(agent_at(fake).upload(path))
        await fake.wait_for_requests(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.wait_idle()


async def test_stalled_upload_times_out():
    async with FakeProvider([Reply(gate=asyncio.Event())]) as fake:
        limits = Limits(first_byte_timeout_s=0.05, max_retries=0)
        with pytest.raises(RunError) as raised:
            await agent_at(fake, limits=limits).upload(b"x")
        assert raised.value.kind == "timeout"


async def test_progressing_upload_may_exceed_timeout():
    limits = Limits(first_byte_timeout_s=1.5, max_retries=0)
    async with FakeProvider() as fake:
        server = served(fake, "openai-responses")
        # A slow line: each piece takes its time, and all of them together take longer than the limit.
        await agent_at(fake, limits=limits).upload(bytes(2_000_000), progress=lambda sent, total: time.sleep(0.25))
        assert len(server.contents) == 1


async def test_recorded_upload_omits_file_bytes_and_key():
    async with FakeProvider() as fake:
        served(fake, "openai-responses")
        transport = RecordingTransport(HttpTransport())
        agent = agent_at(fake, transport=transport)
        await agent.upload(b"very private", name="a.txt")
        recorded = repr(transport.recording)
    assert "very private" not in recorded
    assert "sk-test-key" not in recorded


async def test_google_key_is_sent_only_to_base_url_host():
    from sidestream.providers.google.provider import PROVIDER
    from sidestream.providers.protocol import Settings
    from sidestream.providers.transfers import Request, TransferResponse, Upload

    model: Any = PROVIDER.chat_model("gemini-3-flash", Settings(api_key="sk-test-key-0123456789"))
    upload = Upload(source=b"x", name="a.txt", mime_type="text/plain", size_bytes=1, boundary="b")
    for host, has_key in (("generativelanguage.googleapis.com", True), ("storage.example", False)):
        transfer = model.upload(upload)
        start = next(transfer)
        assert isinstance(start, Request)
        assert start.call.url == "https://generativelanguage.googleapis.com/upload/v1/files"
        sent = transfer.send(TransferResponse({"x-goog-upload-url": f"https://{host}/u?upload_id=1"}, b""))
        assert isinstance(sent, Request)
        assert sent.call.url == f"https://{host}/u?upload_id=1"
        assert ("sk-test-key-0123456789" in sent.call.headers.values()) == has_key
        transfer.close()
    transfer = model.upload(upload)
    next(transfer)
    with pytest.raises(RunError):
        transfer.send(TransferResponse({"x-goog-upload-url": "http://storage.example/u"}, b""))
