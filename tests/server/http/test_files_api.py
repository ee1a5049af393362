"""Files of conversations: only the owner gets them, and a browser runs none of them."""

import re
import time
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from requirements import requirement
from server.serving import JOB, agent_of, ended, serving
from sidestream.messages.message import ChatMessage, DataPart, TextPart
from sidestream.server import create_app, file_links
from sidestream.server.security import owner_name
from sidestream.testing import FakeProvider, ResponsesScript, sse

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
SVG = b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"
HTML = b"<!doctype html><script>alert(1)</script>"
PDF = b"%PDF-1.7 ..."


def answer() -> list[object]:
    return [sse(ResponsesScript().text("Seen.").events())]


def b64(data: bytes) -> str:
    return b64encode(data).decode()


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


SHOP = "https://shop.example"
ANNA, BEN = "token-of-anna-0123456789", "token-of-ben-0123456789"
IMAGE = {"type": "file", "mediaType": "image/png", "filename": "a.png", "url": f"data:image/png;base64,{b64(PNG)}"}


async def posted(client: httpx2.AsyncClient, origin: str | None = SHOP, **body: Any) -> None:
    """Sends a message with an image."""
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Look."}, IMAGE]}
    headers = {} if origin is None else {"Origin": origin}
    response = await client.post("/api/chat", json={"id": "c1", "messages": [message], **body}, headers=headers)
    assert response.status_code == 200, response.text


async def image_url(client: httpx2.AsyncClient, origin: str | None = SHOP) -> str:
    """The URL of the image as the chat's messages have it."""
    headers = {} if origin is None else {"Origin": origin}
    chat = (await client.get("/api/chat/c1", headers=headers)).json()
    return next(part["url"] for part in chat["messages"][0]["parts"] if part["type"] == "file")


def other_client(app: Any) -> httpx2.AsyncClient:
    """A browser's image, which sends neither token nor origin."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1")


@requirement("R214")
async def test_page_of_other_origin_shows_files_without_token(tmp_path: Path):
    async with (
        FakeProvider(answer() * 2) as fake,
        serving({"main": agent_of(fake)}, tmp_path, tokens=[ANNA, BEN], origins=[SHOP]) as (server, client),
    ):
        await posted(client)
        own, url = await image_url(client, None), await image_url(client)
        assert own == f"/api/blobs/{digest_of(PNG)}?name=a.png"
        assert url.startswith(f"http://127.0.0.1/api/blobs/{digest_of(PNG)}?")
        assert url == await image_url(client)
        image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image", "Authorization": ""}
        shown = await client.get(url, headers=image)
        assert (shown.status_code, shown.content) == (200, PNG)
        assert shown.headers["cross-origin-resource-policy"] == "cross-origin"
        again = await client.get(url, headers={**image, "If-None-Match": shown.headers["etag"]})
        assert (again.status_code, again.headers["cross-origin-resource-policy"]) == (304, "cross-origin")
        assert (await client.get(own)).headers["cross-origin-resource-policy"] == "same-origin"
        # An edited message may hold the signed URL.
        parts = [{"type": "text", "text": "And now?"}, {**IMAGE, "url": url}]
        edited = {"id": "c1", "messages": [{"id": "m1", "role": "user", "parts": parts}], "messageId": "m1"}
        assert (await client.post("/api/chat", json=edited, headers={"Origin": SHOP})).status_code == 200
        assert b64(PNG) in str(fake.requests[-1].json)
        await server.runs.delete(f"{owner_name(ANNA)}/c1")
        await server.runs.delete(f"{owner_name(ANNA)}/c1~2")
        assert (await client.get(url, headers=image)).status_code == 404


@requirement("R214")
async def test_signature_covers_file_tenant_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with (
        FakeProvider(answer()) as fake,
        serving({"main": agent_of(fake)}, tmp_path, tokens=[ANNA, BEN], origins=[SHOP]) as (_, client),
    ):
        await posted(client)
        url = await image_url(client)
        client.headers.pop("Authorization")
        expires = int(parse_qs(urlsplit(url).query)["expires"][0])
        wrong = [
            url.replace(digest_of(PNG), "0" * 64),
            url.replace(owner_name(ANNA), owner_name(BEN)),
            url.replace(str(expires), str(expires + 1)),
            url.replace("signature=", "signature=x"),
            url.replace("/api/blobs/", "/api/chat/"),
            url.partition("?")[0],
        ]
        assert [(await client.get(one)).status_code for one in wrong] == [401] * len(wrong)
        assert (await client.delete(url)).status_code == 401
        now_s = time.time()
        assert 3600 < expires - now_s <= 86_400
        monkeypatch.setattr(file_links, "time", Clock(expires + 1.0))
        assert (await client.get(url)).status_code == 401


class Clock:
    """A module `time` that stands still."""

    def __init__(self, now_s: float) -> None:
        self._now_s = now_s

    def time(self) -> float:
        return self._now_s


@requirement("R214")
async def test_servers_with_same_tokens_accept_each_others_urls(tmp_path: Path):
    settings: dict[str, Any] = {"tokens": [ANNA], "origins": [SHOP]}
    async with FakeProvider(answer()) as fake, serving({"main": agent_of(fake)}, tmp_path, **settings) as (_, client):
        await posted(client)
        url = await image_url(client)
        for tokens, status in (([BEN, ANNA], 401), ([ANNA], 200)):
            app = create_app({"main": agent_of(fake)}, store=tmp_path / "talks.db", **{**settings, "tokens": tokens})
            async with app.router.lifespan_context(app), other_client(app) as other:
                assert (await other.get(url)).status_code == status


@requirement("R214")
async def test_streams_for_other_origins_have_signed_urls(tmp_path: Path):
    script = ResponsesScript().image(PNG)
    async with (
        FakeProvider([sse(script.events())] * 2) as fake,
        serving({"main": agent_of(fake)}, tmp_path, origins=[SHOP]) as (_, client),
    ):
        message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Draw."}]}
        for body, path in (
            ({"id": "c1", "messages": [message]}, "/api/chat"),
            (
                {"threadId": "c2", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "Draw."}]},
                "/api/agui",
            ),
        ):
            full = {"tools": [], "context": [], "state": {}, "forwardedProps": {}, **body} if "agui" in path else body
            stream = (await client.post(path, json=full, headers={"Origin": SHOP})).text
            (url,) = set(re.findall(r'"(http://127\.0\.0\.1/api/blobs/[^"]+)"', stream))
            assert (await client.get(url)).content == PNG
