"""What goes wrong at a server or on the way to it: the same typed error, in one line, whoever the provider is."""

import asyncio
import logging
import math
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver

from conformance.suite.subjects import AT_ONCE, KEY, Subject
from conformance.suite.wires import Text
from requirements import requirement
from sidestream import Agent
from sidestream.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectError,
    ContextOverflowError,
    MissingKeyError,
    ProviderError,
    RateLimitedError,
    RunError,
    StreamTimeoutError,
)
from sidestream.limits import Limits
from sidestream.testing import FakeProvider, Reply, dropped, html_page
from sidestream.wire.http import HttpTransport, close_session

HELLO = Text("Hello there.")
REMOTE = {
    "openai-responses": "https://api.openai.com",
    "openai": "https://api.openai.com",
    "openrouter": "https://openrouter.ai",
    "xai": "https://api.x.ai",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
}


def is_one_line(error: Exception) -> bool:
    text = str(error)
    return bool(text) and "\n" not in text and KEY not in text


async def refused(subject: Subject, *answers: Any, kind: type[RunError] = ProviderError, **settings: Any) -> Any:
    """The error of a send, and how often it was tried."""
    async with subject.open(*answers, **settings) as talk:
        with pytest.raises(kind) as caught:
            await talk.agent.send("hi")
        assert talk.fake is not None
        if kind is StreamTimeoutError:  # It may strike before the server has read the request.
            await talk.fake.wait_for_requests(1)
        tries = len(talk.fake.requests)
    assert type(caught.value) is kind
    assert is_one_line(caught.value)
    return caught.value, tries


# The key and the model


@requirement("F20")
@pytest.mark.parametrize("status", [401, 403])
async def test_refused_key_error_names_variable_without_retry(wired: Subject, status: int) -> None:
    reply = wired.wire.refusal(status, "authentication_error", "invalid key")
    error, tries = await refused(wired, reply, kind=AuthenticationError)
    assert (error.status, tries) == (status, 1)
    assert wired.provider.key_variables[0] in str(error)


def test_missing_key_error_names_variable_and_url(wired: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in wired.provider.key_variables:
        monkeypatch.delenv(variable, raising=False)
    agent = Agent(wired.model)
    with pytest.raises(MissingKeyError) as missing:
        agent.check()
    assert is_one_line(missing.value)
    assert all(variable in str(missing.value) for variable in wired.provider.key_variables)
    assert "https://" in str(missing.value)


async def test_wrong_key_raises_authentication_error(subject: Subject) -> None:
    if subject.setting == "embedded":
        return  # It has no key.
    settings = {"api_key": KEY} if subject.setting == "live" else {}
    async with subject.open(subject.wire.wrong_key(), **settings) as talk:
        with pytest.raises(AuthenticationError) as caught:
            await talk.agent.send("hi")
    assert all(variable in str(caught.value) for variable in subject.provider.key_variables[:1])


@requirement("F20")
async def test_unknown_model_error_is_one_line_with_its_name(subject: Subject) -> None:
    missing = "no-such-model-9"
    if subject.setting == "embedded":
        with pytest.raises(ConfigurationError) as unknown:
            Agent(f"local:{missing}")
        assert missing in str(unknown.value)
        return
    other = subject._replace(model=f"{subject.row.provider}:{subject.row.prefix}{missing}")
    async with other.open(subject.wire.no_model(missing)) as talk:
        with pytest.raises(ProviderError) as caught:
            await talk.agent.send("hi")
        tries = len(talk.transport.calls)
    assert (caught.value.status in (400, 404), tries) == (True, 1)
    assert missing in str(caught.value)
    assert "sidestream models" in str(caught.value)
    assert is_one_line(caught.value)


@requirement("F20")
async def test_context_overflow_error_is_one_line_with_advice(subject: Subject) -> None:
    if subject.setting == "live":
        pytest.skip("a model that reads so much would be paid for reading it")
    async with subject.open(subject.wire.overflow()) as talk:
        with pytest.raises(ContextOverflowError) as caught:
            await talk.agent.send("word " * 9000)
        assert len(talk.transport.calls) == 1
    assert (caught.value.status, caught.value.retryable) == (400, False)
    assert "a shorter prompt, history or tool result" in str(caught.value)
    assert is_one_line(caught.value)


@requirement("F20")
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_other_refusal_keeps_server_message_without_retry(wired: Subject, status: int) -> None:
    error, tries = await refused(wired, wired.wire.refusal(status, "invalid_request_error", "temperature must be 1"))
    assert (error.status, tries, error.retryable) == (status, 1, False)
    assert str(error).endswith("temperature must be 1")


# Waiting and trying again


@requirement("F19")
@pytest.mark.parametrize("header", [{"retry-after-ms": "3"}, {"retry-after": "0.003"}, None], ids=["ms", "s", "own"])
async def test_rate_limit_is_retried_after_requested_wait(
    wired: Subject, header: dict[str, str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sidestream.wire")
    limited = wired.wire.limited(0.003)
    if header is not None:
        limited = wired.wire.refusal(429, "rate_limit_error", "slow down", header)
    async with wired.open(limited, HELLO) as talk:
        result = await talk.agent.send("hi")
        assert talk.fake is not None
        keys = {request.headers["idempotency-key"] for request in talk.fake.requests}
        assert len(talk.fake.requests) == 2
    assert result.output == HELLO.text
    assert len(keys) == 1
    assert "retrying in 0.003 s after 429" in caplog.text


@requirement("F19")
@pytest.mark.parametrize("asked", ["3600", "inf"])
async def test_too_long_retry_after_fails_at_once(wired: Subject, asked: str) -> None:
    limited = wired.wire.refusal(429, "rate_limit_error", "slow down", {"retry-after": asked})
    error, tries = await refused(wired, limited, HELLO, kind=RateLimitedError)
    assert (error.status, error.retry_after, tries) == (429, float(asked), 1)
    assert not math.isnan(error.retry_after)


@requirement("F19")
async def test_persistent_rate_limit_raises_after_three_tries(wired: Subject) -> None:
    limited = wired.wire.refusal(429, "rate_limit_error", "slow down", {"retry-after": "0"})
    error, tries = await refused(wired, *[limited] * 3, kind=RateLimitedError)
    assert (error.retryable, tries) == (True, 3)


@requirement("F20")
@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
async def test_transient_failures_are_retried_within_one_stream(wired: Subject, status: int) -> None:
    overloaded = wired.wire.refusal(status, "overloaded_error", "try later")
    async with wired.open(overloaded, dropped(), HELLO) as talk:
        chunks = [chunk async for chunk in talk.agent.send_stream("hi")]
        assert talk.fake is not None
        assert len(talk.fake.requests) == 3
        assert len({request.body for request in talk.fake.requests}) == 1
    assert "".join(chunk.output for chunk in chunks) == HELLO.text


@requirement("F20")
async def test_persistent_outage_raises_after_three_tries(wired: Subject) -> None:
    error, tries = await refused(wired, *[wired.wire.refusal(503, "overloaded_error", "try later")] * 3)
    assert (error.status, error.retryable, tries) == (503, True, 3)
    assert "try later" in str(error)


@requirement("F20")
async def test_model_list_request_is_retried(wired: Subject) -> None:
    overloaded = wired.wire.refusal(503, "overloaded_error", "try later")
    async with wired.open(overloaded, wired.wire.models("one-model", "two-model")) as talk:
        assert [model.name for model in await talk.agent.list_models()] == ["one-model", "two-model"]


# What is no answer


@requirement("F16")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_html_page_raises_provider_error(wired: Subject, stream: bool) -> None:
    async with wired.open(html_page("Sign in")) as talk:
        with pytest.raises(ProviderError) as caught:
            await talk.agent.send("hi", stream=stream)
        assert talk.fake is not None
        assert len(talk.fake.requests) == 1
    assert (caught.value.status, caught.value.code) == (200, "content-type")
    assert "base URL" in str(caught.value)
    assert is_one_line(caught.value)
    assert caught.value.result is None or caught.value.result.output == ""


@requirement("F16")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_json_error_with_status_200_raises(wired: Subject, stream: bool) -> None:
    bad = wired.wire.refusal(200, "server_error", "the backend is gone")
    async with wired.open(bad) as talk:
        with pytest.raises(ProviderError) as caught:
            await talk.agent.send("hi", stream=stream)
    assert "the backend is gone" in str(caught.value)
    assert is_one_line(caught.value)


@requirement("F16")
@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'"ok"', b"{}", b"<xml/>"], ids=repr)
async def test_invalid_non_streaming_body_raises(wired: Subject, body: bytes) -> None:
    async with wired.open(Reply(body=body, content_type="application/json")) as talk:
        with pytest.raises(RunError) as caught:
            await talk.agent.send("hi", stream=False)
    assert is_one_line(caught.value)


@requirement("F16")
async def test_html_model_list_raises(wired: Subject) -> None:
    async with wired.open(html_page("Sign in")) as talk:
        with pytest.raises(RunError) as caught:
            await talk.agent.list_models()
    assert is_one_line(caught.value)


# On the way there


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


@requirement("F21")
async def test_unreachable_server_error_is_one_line_with_advice(wired: Subject) -> None:
    base_url = f"http://127.0.0.1:{closed_port()}{wired.wire.base_path}"
    async with wired.open(base_url=base_url) as talk:
        with pytest.raises(ConnectError) as caught:
            await talk.agent.send("hi")
        with pytest.raises(ConnectError):
            await talk.agent.list_models()
    assert (caught.value.code, caught.value.retryable) == ("connect", True)
    assert "check the base URL" in str(caught.value)
    assert is_one_line(caught.value)


@requirement("F21")
async def test_unresolved_host_raises_connect_error(wired: Subject) -> None:
    class Nowhere(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> Any:
            raise OSError("Name or service not known")

        async def close(self) -> None: ...

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=Nowhere())) as session:
        agent = Agent(wired.model, api_key=KEY, transport=HttpTransport(session, retry=AT_ONCE))
        with pytest.raises(ConnectError) as caught:
            await agent.send("hi")
    assert caught.value.code == "dns"
    assert REMOTE[wired.row.provider] in str(caught.value)
    assert is_one_line(caught.value)


@requirement("F21")
async def test_plain_server_behind_https_raises_connect_error(wired: Subject) -> None:
    async with FakeProvider() as fake:
        base_url = f"https://127.0.0.1:{fake.port}{wired.wire.base_path}"
        agent = Agent(wired.model, base_url=base_url, api_key=KEY, transport=HttpTransport(retry=AT_ONCE))
        with pytest.raises(ConnectError) as caught:
            await agent.send("hi")
        await close_session()
    assert caught.value.code == "tls"
    assert is_one_line(caught.value)


@requirement("F21")
async def test_proxy_refusal_raises_without_showing_password(wired: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeProvider([Reply(status=407)] * 3) as proxy:
        monkeypatch.setenv("https_proxy", f"http://user:{KEY}@127.0.0.1:{proxy.port}")
        agent = Agent(wired.model, api_key=KEY, transport=HttpTransport(retry=AT_ONCE))
        with pytest.raises(ConnectError) as caught:
            await agent.send("hi")
        await close_session()
        assert {request.method for request in proxy.requests} == {"CONNECT"}
    assert caught.value.code == "proxy"
    assert is_one_line(caught.value)


@requirement("F21")
async def test_run_ends_at_deadline_despite_remaining_retries(wired: Subject) -> None:
    limits = Limits(max_run_s=0.3, max_retries=1_000_000)
    down = f"http://127.0.0.1:{closed_port()}{wired.wire.base_path}"
    async with asyncio.timeout(30), wired.open(base_url=down, limits=limits) as talk:
        result = await talk.agent.send("hi")
    assert (result.finish_reason, result.output) == ("limit", "")


@requirement("F21")
async def test_connect_timeout_raises_connect_error(wired: Subject) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        base_url = f"https://127.0.0.1:{port}{wired.wire.base_path}"
        limits = Limits(connect_timeout_s=0.1, max_retries=1)
        async with wired.open(base_url=base_url, limits=limits) as talk:
            with pytest.raises(ConnectError) as caught:
                await talk.agent.send("hi")
    finally:
        server.close()
        await server.wait_closed()
    assert caught.value.code == "connect-timeout"
    assert is_one_line(caught.value)


async def test_invalid_base_url_raises_before_sending(wired: Subject) -> None:
    for url in ("not a url", "ftp://host/v1", "http://"):
        with pytest.raises(ConfigurationError) as caught:
            Agent(wired.model, base_url=url, api_key=KEY)
        assert is_one_line(caught.value)


async def test_unresponsive_server_raises_first_byte_timeout(wired: Subject) -> None:
    limits = Limits(first_byte_timeout_s=0.5, max_retries=0)
    silent = Reply(gate=asyncio.Event())
    error, tries = await refused(wired, silent, kind=StreamTimeoutError, limits=limits)
    assert (error.code, tries) == ("first-byte", 1)
