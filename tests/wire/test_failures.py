"""Which typed error an exception, a status or a body becomes, and whether it is retryable."""

import json
import math
import ssl
from email.utils import formatdate

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from hypothesis import given, strategies as st
from yarl import URL

from sidestream.errors import AuthenticationError, ConnectError, ProtocolError, ProviderError, RateLimitedError
from sidestream.limits import Limits
from sidestream.stream.errors import part_of_error, public
from sidestream.text.urls import origin_of
from sidestream.transport.calls import HttpCall
from sidestream.wire import failures
from sidestream.wire.failures import connect_error, retry_after_s, status_error
from sidestream.wire.retry import is_retryable

CALL = HttpCall(url="https://host.example/v1?key=abc", key_variable="SOME_KEY")
NOW_S = 1_800_000_000.0


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529, 599])
def test_retryable_statuses_are_retried(status: int):
    assert is_retryable(status, {})
    assert not is_retryable(status, {"x-should-retry": "false"})


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_other_statuses_are_not_retried(status: int):
    assert not is_retryable(status, {})
    assert is_retryable(status, {"x-should-retry": "True"})
    assert not is_retryable(status, {"x-should-retry": "perhaps"})


@pytest.mark.parametrize(
    ("text", "statuses", "advice"),
    [
        ("model_not_found: no such model", {400, 404}, "Check the model's name"),
        ("the file name is too long", {400, 413, 422}, "Send less"),
    ],
)
def test_advice_depends_on_status_and_text(text: str, statuses: set[int], advice: str):
    call, body = HttpCall(url=CALL.url, body=b"{}"), json.dumps({"error": {"message": text}}).encode()
    told = {
        status for status in (400, 402, 404, 413, 422, 423) if advice in status_error(call, status, {}, body).message
    }
    assert told == statuses


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "3600"}, 3600.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after-ms": "-1"}, 0.0),
        ({"retry-after": "inf"}, math.inf),
        ({"retry-after": "1e999"}, math.inf),
        ({"retry-after": "-inf"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "later"}, None),
        ({"retry-after": "1_0"}, None),
        ({"retry-after": "0x10"}, None),
        ({"retry-after": "1 0"}, None),
        ({"retry-after": "\u0661\u0660"}, None),
        ({"retry-after-ms": "1_0", "retry-after": "7"}, 7.0),
        ({"retry-after": "Infinity"}, math.inf),
        ({"retry-after": formatdate(NOW_S + 30, usegmt=True).removesuffix(" GMT")}, 30.0),
        ({"retry-after": ""}, None),
        ({"retry-after": formatdate(NOW_S + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW_S - 30, usegmt=True)}, 0.0),
        ({"retry-after": formatdate(NOW_S + 30, usegmt=True), "date": formatdate(NOW_S + 20, usegmt=True)}, 10.0),
        ({"retry-after": formatdate(NOW_S + 30, usegmt=True), "date": "today"}, 30.0),
        ({"retry-after": "Fri, 99 Foo 2026 00:00:00 GMT"}, None),
    ],
)
def test_retry_after_header_is_parsed(headers: dict[str, str], wait_s: float | None):
    assert retry_after_s(headers, NOW_S) == wait_s


@given(
    st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "date"]), st.text(max_size=40)), st.floats(0, 4e9)
)
def test_retry_after_is_never_negative_for_any_header(headers: dict[str, str], now_s: float):
    wait_s = retry_after_s(headers, now_s)
    assert wait_s is None or wait_s >= 0


@pytest.mark.parametrize(
    ("body", "said", "code"),
    [
        (
            b'{"error": {"message": "Bad model", "type": "invalid", "code": "model_not_found"}}',
            "Bad model",
            "model_not_found",
        ),
        (
            b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}',
            "Overloaded",
            "overloaded_error",
        ),
        (
            b'{"error": {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED"}}',
            "Quota",
            "RESOURCE_EXHAUSTED",
        ),
        (b'[{"error": {"code": 400, "message": "In a list", "status": "INVALID"}}]', "In a list", "INVALID"),
        (b'{"error": "plain text"}', "plain text", None),
        (b'{"error": "plain text", "code": "odd"}', "plain text", "odd"),
        (b'{"message": "at the top"}', "at the top", None),
        (b'{"detail": "Not Found"}', "Not Found", None),
        (b'{"error": {"code": null, "message": null}}', '{"error": {"code": null, "message": null}}', None),
        (b'{"error": null}', '{"error": null}', None),
        (b"[]", "[]", None),
        (b"7", "7", None),
        (b"<html>\x1b[31mBad\r\nGateway</html>", "<html> [31mBad Gateway</html>", None),
        (b"\xff\xfe", "\ufffd\ufffd", None),
        (b"[" * 100_000, "[" * 499 + "…", None),
    ],
)
def test_message_and_code_are_found_in_any_body(body: bytes, said: str, code: str | None):
    error = status_error(CALL, 418, {}, body)
    assert error.message == f"https://host.example answered 418: {said}"
    assert error.code == code
    assert error.status == 418


def test_empty_body_leaves_status_in_message():
    assert status_error(CALL, 502, {}, b"").message == "https://host.example answered 502"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, AuthenticationError), (403, AuthenticationError), (429, RateLimitedError), (500, ProviderError)],
)
def test_status_selects_error_class(status: int, kind: type[ProviderError]):
    error = status_error(CALL, status, {"retry-after": "7"}, b"{}")
    assert type(error) is kind
    assert error.retry_after == 7
    assert error.retryable == (status in (429, 500))


def test_refused_key_error_names_variable_not_key():
    error = status_error(CALL, 401, {}, b'{"error": {"message": "Incorrect API key provided: sk-abcdef123456"}}')
    assert "SOME_KEY" in error.message
    assert "sk-abc" not in error.message


def test_message_quotes_500_characters_and_no_partial_secret():
    body = b"x " * 245 + b"sk-abcdefghijklmnop " + b"y" * 1000
    error = status_error(CALL, 500, {}, body)
    assert "sk-" not in error.message
    assert len(error.message) <= 500 + len("https://host.example answered 500: ")


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://user:pass@Host.example/v1?key=abc", "https://host.example"),
        ("http://127.0.0.1:8080/x", "http://127.0.0.1:8080"),
        ("http://[::1]:80/x", "http://[::1]:80"),
        ("http://host:port/", "an invalid URL"),
        ("http://[::1/", "an invalid URL"),
        ("/path", "an invalid URL"),
        ("", "an invalid URL"),
    ],
)
def test_only_origin_of_url_is_shown(url: str, origin: str):
    assert origin_of(url) == origin


KEY = ConnectionKey("host.example", 443, True, True, URL("http://user:pass@proxy"), None, None)
OS_ERROR = OSError(111, "Connection refused")


@pytest.mark.parametrize(
    ("exc", "code", "retryable"),
    [
        (aiohttp.ClientConnectorDNSError(KEY, OS_ERROR), "dns", True),
        (aiohttp.ClientProxyConnectionError(KEY, OS_ERROR), "proxy", True),
        (
            aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError("self-signed")),
            "certificate",
            False,
        ),
        (aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError("wrong version")), "tls", True),
        (aiohttp.ClientConnectorError(KEY, OS_ERROR), "connect", True),
        (aiohttp.ConnectionTimeoutError("to https://host.example/v1?key=abc"), "connect-timeout", True),
        (aiohttp.InvalidUrlClientError("https://user:pass@host"), "invalid-url", False),
        (aiohttp.NonHttpUrlClientError("ftp://user:pass@host"), "invalid-url", False),
        (aiohttp.ServerDisconnectedError(), "reset", True),
        (aiohttp.ClientPayloadError("cut"), "reset", True),
        (ConnectionResetError(), "reset", True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_connect_errors_have_codes_and_show_no_secret(exc: BaseException, code: str, retryable: bool):
    error = connect_error(exc, CALL.url)
    assert isinstance(error, ConnectError)
    assert error.code == code
    assert error.retryable == retryable
    assert "https://host.example" in error.message
    assert "pass" not in error.message + repr(error.__cause__)
    assert "key=" not in error.message + repr(error.__cause__)
    assert not isinstance(error.__cause__, aiohttp.ClientError)


def test_non_http_answer_is_protocol_error():
    info = aiohttp.RequestInfo(URL(CALL.url), "POST", {"Authorization": "Bearer abc"}, URL(CALL.url))  # type: ignore[arg-type]
    error = connect_error(aiohttp.ClientResponseError(info, (), status=400, message="Bearer abc"), CALL.url)
    assert isinstance(error, ProtocolError)
    assert "abc" not in error.message


def test_retry_delay_in_body_is_used_without_header() -> None:
    body = b'{"error": {"code": 429, "message": "slow", "details": [{"@type": "x"}, {"retryDelay": "34.5s"}]}}'
    call = HttpCall(url="https://api.example/v1")
    assert status_error(call, 429, {}, body).retry_after == 34.5
    assert status_error(call, 429, {"retry-after": "2"}, body).retry_after == 2
    assert status_error(call, 429, {}, b'{"error": {"details": [{"retryDelay": 5}]}}').retry_after is None


@pytest.mark.parametrize(
    "error",
    [
        *(status_error(CALL, status, {}, b"") for status in (400, 401, 429, 500)),
        *(status_error(CALL, status, {}, b'{"error": {"message": "no"}}') for status in (400, 401, 429, 500)),
        failures.error_in_body(CALL, 200, b'{"error": {"message": "no"}}'),
        connect_error(OSError(), CALL.url),
        connect_error(aiohttp.InvalidURL(CALL.url), CALL.url),
        failures.first_byte_timeout(CALL, Limits()),
        failures.idle_timeout(CALL, Limits()),
        failures.truncated(CALL),
    ],
)
def test_public_error_has_neither_url_nor_status(error: ProviderError):
    message = public(part_of_error(error)).message
    assert "host.example" in error.message
    assert "host.example" not in message
    assert not any(str(status) in message for status in (200, 400, 401, 429, 500))
