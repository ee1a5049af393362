"""The examples of files and of conversations over providers, on fakes that keep what is sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from examples.test_examples import files, play, start
from sidestream.testing import FakeProvider, GeminiScript, MessagesScript, ResponsesScript, pixel_png
from support.file_servers import AnthropicFileServer, GoogleFileServer, OpenAIFileServer

PDF = b"%PDF-1.7 a report"
VARIABLES = {
    "openai-responses": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
    "google": "GOOGLE_GEMINI_BASE_URL",
}
SERVERS: dict[str, Any] = {
    "openai-responses": OpenAIFileServer,
    "anthropic": AnthropicFileServer,
    "google": GoogleFileServer,
}


def reply_of(provider: str, text: str, id: str = "resp_1") -> Any:
    match provider:
        case "openai-responses":
            return ResponsesScript(id=id).text(text).reply()
        case "anthropic":
            return MessagesScript().text(text).reply()
        case _:
            return GeminiScript().text(text).reply()


def test_prompt_without_files_uses_link(tmp_path: Path):
    shown = play("multimodal_input", tmp_path).stdout
    assert shown.startswith("The picture shows four translucent dice")
    assert files(tmp_path) == []


@pytest.mark.parametrize("provider", SERVERS)
def test_prompt_combines_files_link_upload_and_file_id(provider: str, tmp_path: Path):
    (tmp_path / "photo.png").write_bytes(pixel_png())
    (tmp_path / "big.pdf").write_bytes(PDF)
    with FakeProvider([reply_of(provider, "I see.")]).in_thread() as fake:
        server = SERVERS[provider](fake)
        # A file that was stored before.
        known = {"id": "kept", "name": "files/kept", "filename": "kept.pdf", "displayName": "kept.pdf"}
        kinds = {"mimeType": "application/pdf", "mime_type": "application/pdf", "uri": "https://a.example/files/kept"}
        server.files["kept"] = known | kinds
        link = "https://a.example/chart.png"
        options = ["photo.png", "--link", link, "--upload", "big.pdf", "--file-id", "kept", "-m", provider]
        done = start("multimodal_input", tmp_path, *options, env={VARIABLES[provider]: fake.base_url})
        assert done.returncode == 0, done.stderr
        assert done.stdout == "I see.\n"
        assert fake.unexpected == []
        assert list(server.contents.values()) == [PDF]
        assert list(server.files) == ["kept"]  # the upload was deleted
        (sent,) = [
            request for request in fake.requests if request.path.endswith(("/responses", "/messages", "Content"))
        ]
    body = json.dumps(sent.json)
    assert all(part in body for part in ("iVBORw0KGgo", link, "kept", next(iter(server.contents))))


def test_conversation_spans_three_providers_and_restarts(tmp_path: Path):
    shown = play("sessions_across_providers", tmp_path).stdout
    assert [line for line in shown.splitlines() if line and not line.startswith(">")] == [
        "Madeira: its levada paths are green and quiet in May.",
        "Fly from Lisbon to Funchal; it takes under two hours.",
        "Lisbon to Funchal by air, then hike the levadas of Madeira.",
        "6 messages in talks.db; run it again to continue",
    ]
    assert "talks.db" in files(tmp_path)
    assert "12 messages in talks.db" in play("sessions_across_providers", tmp_path).stdout


def test_openai_gets_only_new_messages_and_others_whole_history(tmp_path: Path):
    fakes = {
        "openai-responses": FakeProvider(
            [reply_of("openai-responses", "One.", "resp_1"), reply_of("openai-responses", "Four.", "resp_4")]
        ),
        "anthropic": FakeProvider([reply_of("anthropic", "Two.")]),
        "google": FakeProvider([reply_of("google", "Three.")]),
    }
    first, second, third = fakes.values()
    with first.in_thread(), second.in_thread(), third.in_thread():
        env = {VARIABLES[provider]: fake.base_url for provider, fake in fakes.items()}
        for prompts in (["A?", "B?", "C?"], ["D?"]):  # two processes
            done = start("sessions_across_providers", tmp_path, *prompts, env=env)
            assert done.returncode == 0, done.stderr
        assert "8 messages in talks.db" in done.stdout
        assert all(text in json.dumps(third.requests[0].json) for text in ("A?", "One.", "B?", "Two.", "C?"))
        assert "One." in json.dumps(second.requests[0].json)
        resumed = first.requests[1].json
    assert resumed["previous_response_id"] == "resp_1"
    sent = json.dumps(resumed["input"])
    assert all(text in sent for text in ("B?", "Two.", "C?", "Three.", "D?"))
    assert "A?" not in sent
    assert "One." not in sent
