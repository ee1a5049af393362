"""Base URLs from environment variables, and credentials that depend on the request."""

import hashlib
import hmac
import logging
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import quote

import pytest

from sidestream import Agent, ConfigurationError, MissingKeyError
from sidestream.limits import Limits
from sidestream.providers import FileBody, HttpCall, aws_sigv4
from sidestream.providers.shared.endpoints import url_from_variables
from sidestream.testing import FakeProvider, MessagesScript, Received, Reply, error_reply
from sidestream.wire.http import HttpTransport, close_session
from sidestream.wire.retry import RetryPolicy

_MANTLE = "https://bedrock-mantle.{AWS_REGION|AWS_DEFAULT_REGION}.api.aws/v1"
_QUICK = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)
_SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@pytest.fixture(autouse=True)
def _no_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", _SECRET)


@pytest.fixture
async def fake() -> AsyncGenerator[FakeProvider]:
    async with FakeProvider() as server:
        yield server
        await close_session()


def test_url_is_filled_from_first_set_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", " eu-west-1 ")
    assert url_from_variables(_MANTLE, who="Mantle") == "https://bedrock-mantle.eu-west-1.api.aws/v1"
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert url_from_variables(_MANTLE, who="Mantle") == "https://bedrock-mantle.us-east-1.api.aws/v1"


def test_url_without_places_is_unchanged() -> None:
    assert url_from_variables("https://api.x.ai/v1", who="xAI") == "https://api.x.ai/v1"


def test_url_has_default_of_unset_variable() -> None:
    assert url_from_variables("https://x/{AWS_REGION|=global}", who="X") == "https://x/global"


def test_missing_variable_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"Mantle .*AWS_REGION or AWS_DEFAULT_REGION"):
        url_from_variables(_MANTLE, who="Mantle")


@pytest.mark.parametrize("value", ["evil.example/", "a@b", "a b", "ä", "a#", "x?y"])
def test_value_that_changes_url_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AWS_REGION", value)
    with pytest.raises(ConfigurationError, match="AWS_REGION"):
        url_from_variables(_MANTLE, who="Mantle")


def _answer() -> Reply:
    return MessagesScript().text("Hello.").reply()


async def test_auth_with_parameter_gets_request_as_sent(fake: FakeProvider) -> None:
    seen: list[HttpCall] = []
    threads: set[int] = set()

    def sign(request: HttpCall) -> dict[str, str]:
        seen.append(request)
        threads.add(threading.get_ident())
        return {"X-Signature": f"signature-{len(seen)}"}

    fake.add(error_reply(503, "busy", "busy"), _answer())
    agent = Agent("anthropic:claude", base_url=fake.base_url, auth=sign, transport=HttpTransport(retry=_QUICK))
    assert (await agent.send("Hello")).output == "Hello."
    for sent, got in zip(seen, fake.requests, strict=True):
        assert (sent.method, sent.url, sent.body) == ("POST", f"{fake.base_url}/messages", got.body)
        assert {name.lower(): value for name, value in sent.headers.items()}.items() <= got.headers.items()
        assert "idempotency-key" in {name.lower() for name in sent.headers}
    assert [request.headers["x-signature"] for request in fake.requests] == ["signature-1", "signature-2"]
    assert threading.get_ident() not in threads


async def test_auth_without_required_parameter_is_called_bare(fake: FakeProvider) -> None:
    def auth(scope: str = "all") -> dict[str, str]:
        return {"Authorization": f"Bearer {scope}-token"}

    fake.add(_answer())
    await Agent("anthropic:claude", base_url=fake.base_url, auth=auth).send("Hello")
    assert fake.requests[0].headers["authorization"] == "Bearer all-token"


def _signature(request: Received, service: str, region: str, secret: str) -> str:
    """Return the SigV4 signature of a request, by an own reading of AWS's specification."""
    date = request.headers["x-amz-date"]
    names = request.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0]
    canonical = [request.method, quote(request.path, safe="/~-._"), ""]
    canonical += [f"{name}:{' '.join(request.headers[name].split())}" for name in names.split(";")]
    canonical += ["", names, hashlib.sha256(request.body).hexdigest()]
    scope = f"{date[:8]}/{region}/{service}/aws4_request"
    hashed = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashed}".encode(), "sha256").hex()


def test_own_signature_matches_published_example() -> None:
    request = Received(
        "GET",
        "/",
        {},
        {
            "host": "example.amazonaws.com",
            "x-amz-date": "20150830T123600Z",
            "authorization": "AWS4-HMAC-SHA256 SignedHeaders=host;x-amz-date, Signature=",
        },
        b"",
    )
    expected = "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
    assert _signature(request, "service", "us-east-1", _SECRET) == expected


def _is_signed(request: Received, service: str, region: str) -> bool:
    given = request.headers["authorization"]
    return given.rpartition("Signature=")[2] == _signature(request, service, region, _SECRET)


async def test_sigv4_signs_each_try(
    fake: FakeProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session-token-0123456789")
    caplog.set_level(logging.DEBUG)
    fake.add(error_reply(500, "busy", "busy"), _answer())
    agent = Agent(
        "anthropic:claude",
        base_url=fake.base_url,
        auth=aws_sigv4("bedrock"),
        transport=HttpTransport(retry=_QUICK),
    )
    assert (await agent.send("Grüße")).output == "Hello."
    assert [_is_signed(request, "bedrock", "eu-west-1") for request in fake.requests] == [True, True]
    assert fake.requests[0].headers["x-amz-security-token"] == "session-token-0123456789"
    own = [record.getMessage() for record in caplog.records if record.name.startswith("sidestream")]
    assert not any("session-token" in line or "AKIDEXAMPLE" in line or _SECRET in line for line in own)


@pytest.mark.parametrize("is_path", [True, False])
async def test_sigv4_signs_uploads(fake: FakeProvider, tmp_path: Path, is_path: bool) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(data := b"0123456789" * 300_000)
    fake.add(Reply(body=b"{}", content_type="application/json"))
    call = HttpCall(
        url=f"{fake.base_url}/files",
        file=FileBody(source=path if is_path else data, start=10, end=2_500_000, head=b"head", tail=b"tail"),
        sign=aws_sigv4("aws-external-anthropic", "us-east-1"),
    )
    await HttpTransport().open(call, Limits())
    assert fake.requests[0].body == b"head" + data[10:2_500_000] + b"tail"
    assert _is_signed(fake.requests[0], "aws-external-anthropic", "us-east-1")


def test_sigv4_without_region_names_variable() -> None:
    with pytest.raises(ConfigurationError, match="AWS_REGION"):
        aws_sigv4("bedrock")


async def test_sigv4_without_credentials_raises(fake: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    agent = Agent("anthropic:claude", base_url=fake.base_url, auth=aws_sigv4("bedrock", "us-east-1"))
    with pytest.raises(MissingKeyError, match="AWS_ACCESS_KEY_ID"):
        await agent.send("Hello")
    assert fake.requests == []


async def test_signature_is_not_sent_to_another_origin(fake: FakeProvider) -> None:
    async with FakeProvider() as other:
        other.add_file("/file", b"data")
        fake.on("GET", "*", Reply(status=302, headers={"location": f"http://127.0.0.1:{other.port}/file"}))
        call = HttpCall(
            method="GET", url=f"{fake.base_url}/files/1/content", sign=lambda request: {"X-Signature": request.url}
        )
        transport = HttpTransport(address_policy=lambda address: None)
        assert await transport.download(call, Limits()) == b"data"
        assert fake.requests[0].headers["x-signature"] == call.url
        assert "x-signature" not in other.requests[0].headers
