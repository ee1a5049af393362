"""Whoever runs `sidestream serve` owns it: other users of the machine meet a token, other tokens may not administer."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from starlette.requests import HTTPConnection

from cli.command import COMMAND, KEY
from requirements import requirement
from server.serving import serving
from sidestream.errors import ConfigurationError
from sidestream.limits import MAX_GUESSING_ADDRESSES, MAX_TOKEN_GUESSES, MAX_TOTAL_TOKEN_GUESSES, MIN_TOKEN_CHARS
from sidestream.server import create_app
from sidestream.server.errors import RequestError
from sidestream.server.runs.quotas import TokenGuesses
from support.children import started
from support.serving import printed_address
from support.stores import BOUND_S

OWNER, ANNA, BEN = "token-of-owner-0123456789", "token-of-anna-0123456789", "token-of-ben-0123456789"
NOBODY = 65534
TOUCH = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()"
ATTACK = """
import json, os, sys, urllib.error, urllib.request
url, folder = sys.argv[1:]
outcome = {"uid": os.getuid()}
for method, path, body in (
    ("GET", "api/conversations", None),
    ("PUT", "api/mcp/evil", {"command": "/bin/sh", "args": ["-c", "id"]}),
    ("POST", "api/mcp/evil/test", {}),
    ("POST", "api/indexes", {"path": "/etc"}),
):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            outcome[method + path] = response.status
    except urllib.error.HTTPError as error:
        outcome[method + path] = error.code
found = []
for place, folders, files in os.walk(folder, onerror=lambda error: found.append(type(error).__name__)):
    for name in files:
        try:
            found.append(open(os.path.join(place, name)).read())
        except OSError as error:
            found.append(type(error).__name__)
print(json.dumps(outcome | {"found": found}))
"""


class Serve:
    """A server as its user starts it."""

    def __init__(self, process: "subprocess.Popen[bytes]", line: bytes, path: Path) -> None:
        self.process = process
        self.url, self.headers = printed_address(line)
        self.path = path

    @property
    def errors(self) -> str:
        return (self.path / "stderr").read_text()

    @property
    def files(self) -> list[Path]:
        return sorted((self.path / "data" / "sidestream" / "servers").glob("*.json"))

    def listed(self) -> str:
        return _command(self.path, "serve", "--list").stdout

    async def status(self, method: str, path: str, body: Any = None, **headers: str) -> int:
        async with httpx2.AsyncClient(base_url=self.url, timeout=BOUND_S) as client:
            return (await client.request(method, path, json=body, headers=headers)).status_code


def _environment(path: Path) -> dict[str, str]:
    folders = {"XDG_CONFIG_HOME": str(path / "config"), "XDG_DATA_HOME": str(path / "data")}
    kept = {name: value for name, value in os.environ.items() if name != "SIDESTREAM_TOKEN"}
    return {**kept, **folders, "OPENAI_API_KEY": KEY}


def _command(path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *arguments], env=_environment(path), cwd=path, capture_output=True, text=True, timeout=BOUND_S
    )


@asynccontextmanager
async def serve(path: Path, *options: str) -> AsyncGenerator[Serve]:
    arguments = ("serve", "-m", "openai-responses", "--store", str(path / "talks.db"), *options)
    with (
        (path / "stderr").open("wb") as errors,
        started(
            *COMMAND, *arguments, *(() if "--port" in options else ("--port", "0")),
            stdout=-1, stderr=errors, env=_environment(path), cwd=path,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        assert line, (path / "stderr").read_text()
        yield Serve(process, line, path)


@requirement("F48")
async def test_serve_creates_token_readable_only_by_its_user(tmp_path: Path):
    async with asyncio.timeout(BOUND_S), serve(tmp_path) as server:
        token = server.headers["Authorization"].removeprefix("Bearer ")
        assert len(token) >= 32
        (file,) = server.files
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert json.loads(file.read_text())["token"] == token
        (line,) = server.listed().splitlines()
        assert line.startswith(f"{server.url}#token={token} ")
        body = {"command": sys.executable, "args": ["-c", TOUCH, str(tmp_path / "ran")]}
        assert await server.status("PUT", "api/mcp/x", body) == 401
        assert await server.status("PUT", "api/mcp/x", body, Authorization="Bearer wrong") == 401
        assert await server.status("GET", "api/conversations") == 401
        assert not (tmp_path / "mcp.json").exists()
        assert await server.status("PUT", "api/mcp/x", body, **server.headers) == 200
        assert await server.status("POST", "api/mcp/x/test", {}, **server.headers) == 200
        assert (tmp_path / "ran").exists()
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.process.wait, BOUND_S)
        assert server.files == []
        assert server.listed() == ""


@requirement("F48")
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can act as another user")
async def test_other_local_user_can_neither_call_nor_find_token():
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # So that only the modes of the server's own folders count.
        await _attack_as_nobody(Path(folder))


async def _attack_as_nobody(path: Path) -> None:
    async with asyncio.timeout(BOUND_S), serve(path, "--index-folder", str(path)) as server:
        done = await asyncio.to_thread(
            subprocess.run,
            ["/usr/bin/python3", "-c", ATTACK, server.url, str(path / "data")],
            user=NOBODY, group=NOBODY, extra_groups=[], env={}, cwd="/", capture_output=True, text=True,
            timeout=BOUND_S,
        )  # fmt: skip
        outcome = json.loads(done.stdout or done.stderr)
        token = server.headers["Authorization"].removeprefix("Bearer ")
    found = outcome.pop("found")
    assert outcome.pop("uid") == NOBODY
    assert set(outcome.values()) == {401}
    assert found == ["PermissionError"]  # The folder itself.
    assert token not in done.stdout
    assert not (path / "mcp.json").exists()


@requirement("F48")
async def test_web_ui_stays_signed_in_when_server_restarts(tmp_path: Path):
    async with asyncio.timeout(3 * BOUND_S):
        async with serve(tmp_path) as server, httpx2.AsyncClient(base_url=server.url, timeout=BOUND_S) as page:
            signed_in = await page.post("api/sign-in", headers=server.headers)
            cookie = signed_in.headers["set-cookie"].partition(";")[0]
            port = str(page.base_url.port)
            assert server.headers["Authorization"].removeprefix("Bearer ") not in cookie
            server.process.kill()
            await asyncio.to_thread(server.process.wait, BOUND_S)
        assert len(server.files) == 1
        async with serve(tmp_path, "--port", port) as again:
            assert again.headers != server.headers
            assert len(again.files) == 1  # That of the killed server is removed.
            assert await again.status("GET", "api/conversations", Cookie=cookie) == 200
            assert await again.status("GET", "api/conversations", **server.headers) == 401
        async with serve(tmp_path) as elsewhere:
            assert await elsewhere.status("GET", "api/conversations", Cookie=cookie) == 401


@requirement("F48")
@pytest.mark.parametrize(("options", "status"), [((), 403), (("--allow-admin",), 200)])
async def test_given_token_administers_only_if_allowed(tmp_path: Path, options: tuple[str, ...], status: int):
    async with asyncio.timeout(BOUND_S), serve(tmp_path, "--token", ANNA, *options) as server:
        assert server.headers == {"Authorization": f"Bearer {ANNA}"}
        assert await server.status("GET", "api/conversations", **server.headers) == 200
        assert await server.status("PUT", "api/mcp/x", {"command": "true"}, **server.headers) == status
        url, owner = printed_address(server.listed().split()[0])
        assert url == server.url
        assert await server.status("PUT", "api/mcp/y", {"command": "true"}, **owner) == 200
        assert ("--allow-admin lets" in server.errors) == (status == 200)


@requirement("F48")
async def test_no_token_option_warns_and_does_not_administer(tmp_path: Path):
    async with asyncio.timeout(BOUND_S), serve(tmp_path, "--no-token") as server:
        assert server.headers == {}
        assert await server.status("GET", "api/conversations") == 200
        assert await server.status("PUT", "api/mcp/x", {"command": "true"}) == 403
        assert "warning: --no-token lets every user and program on this machine" in server.errors
        assert server.listed().startswith(f"{server.url} ")


@requirement("F48")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--token", "short"), "at least 22 characters, not 5"),
        (("--token", "short", "--weak-token", "--host", "0.0.0.0"), "at least 22 characters"),
        (("--token", "short", "--weak-token", "--allow-host", "chat.example"), "at least 22 characters"),
        (("--no-token", "--token", ANNA), "cannot be combined"),
    ],
)
def test_serve_refuses_unsafe_tokens(tmp_path: Path, options: tuple[str, ...], said: str):
    done = _command(tmp_path, "serve", "-m", "openai-responses", "--port", "0", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@requirement("F48")
def test_apps_reject_short_tokens_unless_loopback_only(tmp_path: Path):
    store = tmp_path / "talks.db"
    with pytest.raises(ConfigurationError, match=str(MIN_TOKEN_CHARS)):
        create_app(store=store, tokens=["short"])
    with pytest.raises(ConfigurationError, match=str(MIN_TOKEN_CHARS)):
        create_app(store=store, tokens=["short"], allows_weak_tokens=True, hosts=["127.0.0.1", "chat.example"])
    with pytest.raises(ConfigurationError, match=str(MIN_TOKEN_CHARS)):
        create_app(store=store, owner_token="short")
    create_app(store=store, tokens=["short"], allows_weak_tokens=True)


@requirement("F48")
async def test_mounted_apps_reject_administration_unless_enabled(tmp_path: Path):
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"files": {"command": "true", "args": ["--key", "canary-0123"]}}}))
    settings: Any = {"mcp_file": str(file), "index_folders": [str(tmp_path)]}
    before = file.read_text()
    async with serving(None, tmp_path, **settings) as (_, client):
        refusals = [
            await client.put("/api/mcp/x", json={"command": "true"}),
            await client.put("/api/mcp/x", json={"url": "http://169.254.169.254/"}),
            await client.delete("/api/mcp/files"),
            await client.post("/api/mcp/files/test"),
            await client.post("/api/mcp/files/accept", json={}),
            await client.post("/api/mcp/files/login"),
            await client.post("/api/mcp/files/logout"),
            await client.post("/api/keys/openai-responses/test"),
            await client.post("/api/indexes", json={"path": str(tmp_path)}),
            await client.delete("/api/indexes", params={"path": str(tmp_path)}),
        ]
        listed = await client.get("/api/mcp")
        keys = (await client.get("/api/keys")).json()
        folders = (await client.get("/api/indexes")).json()
    assert {response.status_code for response in refusals} == {403}
    for response in refusals:
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("permission_error", "owner_only")
        assert "serve --list" in error["message"]
    assert file.read_text() == before
    assert "canary" not in listed.text
    assert (listed.json()["editable"], listed.json()["servers"][0]["entry"]) == (False, {})
    assert (keys["editable"], folders["editable"], folders["allowed"]) == (False, False, [])


@requirement("F48")
async def test_app_may_allow_administration_to_some_users(tmp_path: Path):
    async def is_admin(connection: HTTPConnection) -> bool:
        return connection.headers.get("x-user") == "root"

    file = str(tmp_path / "mcp.json")
    settings: Any = {"auth": lambda connection: connection.headers.get("x-user"), "allows_admin": is_admin}
    async with serving(None, tmp_path, mcp_file=file, owner_token=OWNER, **settings) as (_, client):

        async def status(**headers: str) -> int:
            return (await client.put("/api/mcp/x", json={"command": "true"}, headers=headers)).status_code

        assert await status(**{"x-user": "anna"}) == 403
        assert await status(**{"x-user": "root"}) == 200
        assert await status() == 401
        assert await status(authorization=f"Bearer {OWNER}", **{"x-user": "anna"}) == 200


@requirement("F48")
async def test_wrong_tokens_are_throttled_but_long_valid_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TokenGuesses.__init__, "__defaults__", (lambda: 0.0,))
    async with serving(None, tmp_path, tokens=(ANNA, "short"), allows_weak_tokens=True) as (_, client):

        async def answer(token: str) -> httpx2.Response:
            return await client.get("/api/conversations", headers={"authorization": f"Bearer {token}"})

        assert (await answer("short")).status_code == 200
        statuses = [(await answer(f"wrong-{number}")).status_code for number in range(MAX_TOKEN_GUESSES + 5)]
        assert statuses[:MAX_TOKEN_GUESSES] == [401] * MAX_TOKEN_GUESSES
        refused = await answer("wrong")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_attempts")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await answer("short")).status_code == 429  # Else it could be guessed at any rate.
        assert (await answer(ANNA)).status_code == 200
        assert (await client.get("/?token=wrong")).status_code == 429


@requirement("F48")
def test_token_guesses_are_counted_per_network():
    now_s = 0.0
    guesses = TokenGuesses(lambda: now_s)

    def is_admitted(address: str) -> bool:
        try:
            guesses.admit(address)
        except RequestError:
            return False
        return True

    for number in range(MAX_TOKEN_GUESSES):
        assert is_admitted(f"2001:db8::{number:x}")
        guesses.failed(f"2001:db8::{number:x}")
    assert not is_admitted("2001:db8::ffff")
    assert is_admitted("2001:db8:0:1::1")
    assert is_admitted("192.0.2.1")
    for _ in range(MAX_TOKEN_GUESSES):
        guesses.failed("192.0.2.1")
    assert not is_admitted("::ffff:192.0.2.1")
    assert is_admitted("::ffff:192.0.2.2")
    now_s = 1.1
    assert is_admitted("2001:db8::ffff")
    now_s = 1000.0
    for number in range(MAX_TOTAL_TOKEN_GUESSES):
        guesses.failed(f"made-up-{number}")
    assert not is_admitted("192.0.2.2")
    now_s = 1001.0
    assert is_admitted("192.0.2.2")
    for number in range(2 * MAX_GUESSING_ADDRESSES):
        guesses.failed(f"address-{number}")
    assert len(guesses._counts) == MAX_GUESSING_ADDRESSES  # pyright: ignore[reportPrivateUsage]


@requirement("F48")
async def test_requests_cannot_name_local_model_files(tmp_path: Path):
    secret = tmp_path / "secret.gguf"
    secret.write_bytes(b"canary")
    body: Any = {"messages": [{"role": "user", "content": "Hi."}]}
    async with serving("local", tmp_path, allows_admin=True) as (_, client):
        for name in (
            f"{secret}",
            f"{tmp_path}/missing.gguf",
            "~/x.gguf",
            "x.GGUF?threads=1",
            "smollm2-135m?threads=99",
        ):
            for model in (f"local:{name}", f"local?chat={quote(name)}"):
                refused = await client.post("/v1/chat/completions", json={**body, "model": model})
                assert (refused.status_code, refused.json()["error"]["param"]) == (403, "model")
                assert refused.json()["error"]["code"] == "owner_only"
