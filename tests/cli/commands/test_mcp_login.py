"""`sidestream mcp`: the sign-in of a user, in a browser on the same machine."""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest

from cli.command import COMMAND, KEY
from page.browsing import CHROMIUM, need_browser
from requirements import requirement
from sidestream.mcp import MCPServer, TokenFiles
from sidestream.testing import FakeProvider, responses_text, sse
from support import warm
from support.mcp_servers.signed_in import Browser, SignInServer, expired

PATIENCE_S = 60.0
Sidestream = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
async def remote(tmp_path: Path) -> AsyncGenerator[SignInServer]:
    """A server that wants a sign-in, in the mcp.json of the working folder."""
    async with SignInServer().running() as server:
        configured = {"docs": {"url": server.url}, "hosted": {"url": f"{server.url}/", "execution": "provider"}}
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": configured}))
        yield server


@pytest.fixture
def files(tmp_path: Path) -> TokenFiles:
    return TokenFiles(tmp_path / ".config" / "sidestream" / "mcp")


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path):
    @asynccontextmanager
    async def started(*args: str, **env: str) -> AsyncGenerator[Process]:
        process = await warm.start(
            *COMMAND, *args, env=environment | env, cwd=tmp_path, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    return started


@pytest.fixture
def sidestream(environment: dict[str, str], tmp_path: Path) -> Sidestream:
    async def run(*args: str, **env: str) -> tuple[int, str, str]:
        options = {"env": environment | env, "cwd": tmp_path, "stdin": DEVNULL, "stdout": PIPE, "stderr": PIPE}
        done = await asyncio.to_thread(warm.run, [*COMMAND, *args], timeout=PATIENCE_S, encoding="utf-8", **options)
        assert "Traceback" not in done.stdout + done.stderr
        assert "-canary-" not in done.stdout + done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


async def address_in(process: Process) -> str:
    assert process.stderr is not None
    async for line in process.stderr:
        if line.startswith(b"http"):
            return line.decode().strip()
    raise AssertionError("no address was printed")


@requirement("R80")
async def test_real_browser_is_opened_and_signs_user_in(start, remote: SignInServer, files: TokenFiles):
    need_browser()
    profile = files.path(remote.url).parents[2] / "profile"
    flags = f"--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir={profile} --dump-dom"
    async with start("mcp", "login", "docs", BROWSER=f"{CHROMIUM} {flags} %s") as process:
        _, err = await process.communicate()
    assert process.returncode == 0, err
    assert files.path(remote.url).exists()
    assert len(remote.valid) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of the configuration is that of Linux")
@requirement("R80")
async def test_login_status_use_and_logout_work(start, sidestream: Sidestream, remote: SignInServer, files: TokenFiles):
    assert (await sidestream("mcp", "status", "docs"))[:2] == (1, "docs  not signed in\n")
    async with start("mcp", "login", "docs", "--no-browser", "--scope", "more") as process:
        address = await address_in(process)
        async with httpx2.AsyncClient(follow_redirects=True) as browser:
            page = await browser.get(address)
        _, err = await process.communicate()
    assert process.returncode == 0, err
    assert page.status_code == 200
    query = parse_qs(urlsplit(address).query)
    assert query["redirect_uri"][0].startswith("http://127.0.0.1:")
    assert "more" in query["scope"][0].split()
    assert "-canary-" not in page.text + err.decode()
    assert files.path(remote.url).stat().st_mode & 0o777 == 0o600
    code, out, _ = await sidestream("mcp", "status", "docs")
    assert code == 0
    assert remote.origin in out
    code, _, err = await sidestream("mcp", "logout", "docs")
    assert (code, "revoked" in err) == (0, True)
    assert [form["token_type_hint"] for form in remote.revoked] == ["refresh_token", "access_token"]
    assert remote.valid == remote.refresh_tokens == set()
    assert not files.path(remote.url).exists()
    assert (await sidestream("mcp", "logout", "docs"))[0] == 2


@requirement("R80")
@pytest.mark.parametrize("answer", ["state", "denied"])
async def test_denied_or_forged_redirect_is_reported_in_one_line(start, remote: SignInServer, answer: str):
    async with start("mcp", "login", "docs", "--no-browser") as process:
        query = parse_qs(urlsplit(await address_in(process)).query)
        given = {"error": "access_denied"} if answer == "denied" else {"code": "a", "state": "forged"}
        async with httpx2.AsyncClient() as browser:
            await browser.get(f"{query['redirect_uri'][0]}?{urlencode(given)}")
        _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode().count("\n") == 1
    assert ("access_denied" if answer == "denied" else "state") in err.decode()
    assert "/token" not in remote.counts


@requirement("R80")
async def test_unanswered_login_times_out_with_clear_line(sidestream: Sidestream, remote: SignInServer):
    code, _, err = await sidestream("mcp", "login", "docs", "--no-browser", "--timeout", "0.2")
    assert code == 1
    assert "timed out" in err.splitlines()[-1]


@requirement("R80")
async def test_unknown_label_names_known_ones(sidestream: Sidestream, remote: SignInServer):
    code, _, err = await sidestream("mcp", "login", "nowhere")
    assert code == 2
    assert "docs" in err


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of the configuration is that of Linux")
@requirement("R81")
async def test_provider_gets_refreshed_stored_token(sidestream: Sidestream, remote: SignInServer, files: TokenFiles):
    async with MCPServer("docs", url=remote.url, auth=Browser().auth(tokens=files)) as server:
        await server.list()
    saved = await files.load(remote.url)
    assert saved is not None
    await files.save(remote.url, expired(saved))
    async with FakeProvider([sse(responses_text("Hi."))]) as fake:
        code, out, err = await sidestream("--mcp", "mcp.json", "hello", OPENAI_BASE_URL=fake.base_url)
    assert code == 0, err
    assert "Hi." in out
    now = await files.load(remote.url)
    assert now is not None
    tools = {tool["server_label"]: tool for tool in fake.requests[0].json["tools"] if tool["type"] == "mcp"}
    assert tools["hosted"]["authorization"] == now.access_token
    assert now.access_token != saved.access_token
    assert remote.counts["refresh_token"] == 1
    assert KEY not in out


KEYRING = """
import json, os
from pathlib import Path
from keyring.backend import KeyringBackend

class FileKeyring(KeyringBackend):
    priority = 1
    file = Path(os.environ["KEYRING_FILE"])

    def entries(self):
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def get_password(self, service, username):
        return self.entries().get(f"{service} {username}")

    def set_password(self, service, username, password):
        self.file.write_text(json.dumps(self.entries() | {f"{service} {username}": password}))

    def delete_password(self, service, username):
        entries = self.entries()
        del entries[f"{service} {username}"]
        self.file.write_text(json.dumps(entries))
"""


@requirement("R80")
async def test_system_keyring_is_used_when_configured(
    start, sidestream: Sidestream, remote: SignInServer, files: TokenFiles, tmp_path: Path
):
    (tmp_path / "file_keyring.py").write_text(KEYRING)
    keyring = tmp_path / "keyring.json"
    env = {
        "SIDESTREAM_MCP_TOKENS": "keyring",
        "PYTHON_KEYRING_BACKEND": "file_keyring.FileKeyring",
        "PYTHONPATH": str(tmp_path),
        "KEYRING_FILE": str(keyring),
    }
    async with start("mcp", "login", "docs", "--no-browser", **env) as process:
        async with httpx2.AsyncClient(follow_redirects=True) as browser:
            await browser.get(await address_in(process))
        _, err = await process.communicate()
    assert process.returncode == 0, err
    assert list(json.loads(keyring.read_text())) == [f"sidestream-mcp {remote.url}"]
    assert "access-canary" in keyring.read_text()
    assert not files.path(remote.url).exists()
    assert (await sidestream("mcp", "status", "docs", **env))[0] == 0
    assert (await sidestream("mcp", "status", "docs"))[0] == 1
    assert (await sidestream("mcp", "logout", "docs", **env))[0] == 0
    assert json.loads(keyring.read_text()) == {}
    code, _, err = await sidestream("mcp", "status", "docs", SIDESTREAM_MCP_TOKENS="drawer")
    assert (code, "files or keyring" in err) == (2, True)
