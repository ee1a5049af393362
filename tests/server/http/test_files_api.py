"""Files of conversations: only the owner gets them, and a browser runs none of them."""

from hashlib import sha256
from pathlib import Path

import pytest

from requirements import requirement
from server.serving import JOB, agent_of, ended, serving
from sidestream.messages.message import ChatMessage, DataPart, TextPart
from sidestream.server.security import owner_name
from sidestream.testing import FakeProvider, ResponsesScript, sse

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
SVG = b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"
HTML = b"<!doctype html><script>alert(1)</script>"
PDF = b"%PDF-1.7 ..."


def answer() -> list[object]:
    return [sse(ResponsesScript().text("Seen.").events())]


def digest_of(data: bytes) -> str:
    return sha256(data).hexdigest()


@requirement("F38", "F45", "R143")
@pytest.mark.parametrize(
    ("data", "name", "place", "type"),
    [
        (PNG, "a.png", "inline", "image/png"),
        (PNG, "a.html", "inline", "image/png"),
        (SVG, "a.svg", "attachment", "image/svg+xml"),
        (SVG, "a.png", "attachment", "image/svg+xml"),
        (HTML, "a.html", "attachment", "text/html; charset=utf-8"),
        (HTML, "a.png", "attachment", "text/plain; charset=utf-8"),
        (PDF, "a.pdf", "attachment", "application/pdf"),
        (PDF, "a.jpg", "attachment", "application/pdf"),
    ],
)
async def test_only_images_detected_by_content_are_served_inline(
    tmp_path: Path, data: bytes, name: str, place: str, type: str
):
    async with FakeProvider(answer()) as fake, serving({"main": agent_of(fake)}, tmp_path) as (server, client):
        message = ChatMessage("user", (TextPart("Look."), DataPart(data, "image/png", "claimed.png")))
        await server.runs.start(server.agent("main"), "/talk", message, JOB)
        await ended(server, "/talk")
        response = await client.get(f"/api/blobs/{digest_of(data)}", params={"name": name})
        again = await client.get(f"/api/blobs/{digest_of(data)}", headers={"If-None-Match": response.headers["etag"]})
    assert (response.status_code, response.content) == (200, data)
    assert response.headers["content-disposition"] == f'{place}; filename="{name}"'
    assert response.headers["content-type"] == type
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in response.headers["content-security-policy"]
    assert again.status_code == 304
    assert "sandbox" in again.headers["content-security-policy"]


@requirement("F45")
async def test_hostile_file_name_is_escaped(tmp_path: Path):
    async with FakeProvider(answer()) as fake, serving({"main": agent_of(fake)}, tmp_path) as (server, client):
        message = ChatMessage("user", (TextPart("Look."), DataPart(PNG, "image/png")))
        await server.runs.start(server.agent("main"), "/talk", message, JOB)
        await ended(server, "/talk")
        for name in (
            'a"; filename="b.exe',
            "../../etc/passwd",
            "a\r\nSet-Cookie: x=1",
            "\u202egnp.exe",
            "grün.png",
            "con",
        ):
            response = await client.get(f"/api/blobs/{digest_of(PNG)}", params={"name": name})
            shown = response.headers["content-disposition"].removeprefix("inline; ")
            assert response.status_code == 200
            assert "set-cookie" not in response.headers
            assert shown.startswith(("filename=", "filename*=UTF-8''"))
            assert shown.removeprefix('filename="').removesuffix('"').count('"') == 0
            assert not set("/\\\u202e") & set(shown)


@requirement("R143")
async def test_file_belongs_to_tenant_of_referring_conversation(tmp_path: Path):
    tokens = ("token-of-anna-0123456789", "token-of-ben-0123456789")
    async with (
        FakeProvider(answer()) as fake,
        serving({"main": agent_of(fake)}, tmp_path, tokens=tokens) as (server, client),
    ):
        conversation = f"{owner_name(tokens[0])}/talk"
        message = ChatMessage("user", (TextPart("Look."), DataPart(PNG, "image/png")))
        await server.runs.start(server.agent("main"), conversation, message, JOB)
        await ended(server, conversation)
        path = f"/api/blobs/{digest_of(PNG)}"
        statuses = [
            (await client.get(path, headers={"Authorization": f"Bearer {token}"})).status_code
            for token in (*tokens, "none")
        ]
        assert statuses == [200, 404, 401]
        for wrong in ("0" * 64, "..%2F..%2Ftalks.db", digest_of(PNG).upper()):
            assert (await client.get(f"/api/blobs/{wrong}")).status_code == 404
        await server.store.delete(conversation)
        assert (await client.get(path)).status_code == 404


@requirement("R143")
async def test_file_missing_on_disk_is_not_found(tmp_path: Path):
    async with FakeProvider(answer()) as fake, serving({"main": agent_of(fake)}, tmp_path) as (server, client):
        message = ChatMessage("user", (TextPart("Look."), DataPart(PNG, "image/png")))
        await server.runs.start(server.agent("main"), "/talk", message, JOB)
        await ended(server, "/talk")
        digest = digest_of(PNG)
        (tmp_path / "talks.db.blobs" / digest[:2] / digest[2:]).write_bytes(b"altered")
        response = await client.get(f"/api/blobs/{digest}")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "file_lost")
