"""Secrets stay out of what is shown, by their shape, their value and their header's name."""

import json
import logging
import sys
import uuid
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given, strategies as st

from sidestream import Agent, MCPServer, RemoteMCP
from sidestream.errors import ProviderError, ToolServerError
from sidestream.logs import redact_logger
from sidestream.testing import FakeProvider, error_reply
from sidestream.text import redaction
from sidestream.text.redaction import (
    MAX_SECRETS,
    Secret,
    hidden,
    hidden_variables,
    redact,
    redact_headers,
    redact_url,
    register_secret,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def-123", "Authorization: [redacted]"),
        ("authorization=abcdef", "authorization=[redacted]"),
        ('{"Authorization": "Basic dXNlcjpwYXNz"}', '{"Authorization": "[redacted]"}'),
        ("sent Bearer abcDEF123 to", "sent Bearer [redacted] to"),
        ("bearer abcdefghijklmnopqrst", "bearer [redacted]"),
        ("Incorrect API key provided: sk-abc***wxyz.", "Incorrect API key provided: [redacted]"),
        ("sk-ant-api03-AbC_d-9 is bad", "[redacted] is bad"),
        ("AIzaSyA1234567890abcdefghij!", "[redacted]!"),
        ("https://host/v1?key=abc&alt=sse", "https://host/v1?key=[redacted]&alt=sse"),
        (
            "api_key=abc, apiKey: 'def', x-api-key: ghi",
            "api_key=[redacted], apiKey: '[redacted]', x-api-key: [redacted]",
        ),
        ("x-goog-api-key: ghi", "x-goog-api-key: [redacted]"),
        ("access_token=abc", "access_token=[redacted]"),
        ("Cookie: a=b; c=d\nnext", "Cookie: [redacted]\nnext"),
        ("Set-Cookie: session=abc; Path=/", "Set-Cookie: [redacted]"),
        ("http://user:p@ss@proxy:8080/x", "http://[redacted]@proxy:8080/x"),
        ("postgres://user:pass@db/name", "postgres://[redacted]@db/name"),
    ],
)
def test_secret_looking_text_is_replaced(text: str, shown: str):
    assert redact(text) == shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "The Bearer token is missing",
        "the model gpt-5.6 does not exist",
        "a task-force, a risk-based monkey=5 turkey",
        "https://host/path?alt=sse#a@b",
        "write to someone@example.com",
        "sk-1",
    ],
)
def test_other_text_is_unchanged(text: str):
    assert redact(text) == text


def test_registered_value_is_replaced_everywhere():
    secret = f"plain+value/{uuid.uuid4()}"
    register_secret(f" {secret}\n")
    assert redact(f"a{secret}b {quote(secret, safe='')}") == "a[redacted]b [redacted]"


def test_secret_inside_other_leaves_no_rest():
    secret = f"word{uuid.uuid4().hex}"
    register_secret(secret)
    register_secret(f"{secret}tail")
    assert redact(f"<{secret}tail>") == "<[redacted]>"


def test_overlapping_secrets_leave_no_rest():
    middle = uuid.uuid4().hex
    register_secret(f"start{middle}")
    register_secret(f"{middle}end")
    assert redact(f"<start{middle}end>") == "<[redacted]>"
    assert redact(f"<start{middle}{middle}end>") == "<[redacted][redacted]>"


def test_secret_inside_other_is_also_replaced_alone():
    inner = uuid.uuid4().hex
    register_secret(f"long{inner}tail")
    register_secret(inner)
    assert redact(f"{inner} long{inner}tail {inner}") == "[redacted] [redacted] [redacted]"


@pytest.mark.parametrize("escape", [lambda text: json.dumps(text)[1:-1], lambda text: repr(text)[1:-1], quote])
def test_secret_is_found_in_escaped_forms(escape: Callable[[str], str]):
    secret = f"a\"b\\c'd/é {uuid.uuid4().hex}"
    register_secret(secret)
    assert redact(f"<{escape(secret)}>") == "<[redacted]>"


def test_values_below_eight_characters_are_not_secrets():
    register_secret("message")
    register_secret(" seven77 ")
    assert redact("the message seven77") == "the message seven77"
    register_secret("eight888")
    assert redact("the eight888") == "the [redacted]"


def test_secret_equals_its_value_but_hides_its_repr():
    secret = Secret("abcdefgh" * 20)
    assert secret == "abcdefgh" * 20
    assert f"Bearer {secret}" == "Bearer " + "abcdefgh" * 20
    assert [repr(secret), f"{secret!r}", repr({"key": secret}), repr(secret[:80])] == [
        "'[redacted]'",
        "'[redacted]'",
        "{'key': '[redacted]'}",
        "'[redacted]'",
    ]


def test_caller_headers_are_secret_except_known_names():
    value = uuid.uuid4().hex
    headers = hidden(
        {
            "X-Team-Pass": value,
            "User-Agent": "my-app/1.0",
            "anthropic-beta": "files-api-2025",
            "Cookie": f"a=1; b={value}x",
        }
    )
    assert [name for name, shown in headers.items() if isinstance(shown, Secret)] == ["X-Team-Pass", "Cookie"]
    assert redact(f"{value} {value}x my-app/1.0 files-api-2025") == "[redacted] [redacted] my-app/1.0 files-api-2025"
    assert redact_headers(headers)["X-Team-Pass"] == "[redacted]"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/v1?key=abc&x=y#z", "https://host/v1?[redacted]"),
        ("https://host/v1#abc", "https://host/v1#[redacted]"),
        ("https://user:p@ss@host/v1", "https://[redacted]@host/v1"),
        ("https://host:8080/v1", "https://host:8080/v1"),
        ("no url", "no url"),
    ],
)
def test_redact_url_hides_secret_components(url: str, shown: str):
    assert redact_url(url) == shown


def test_filter_redacts_messages_and_tracebacks_of_any_logger(caplog: pytest.LogCaptureFixture):
    secret = uuid.uuid4().hex
    register_secret(secret)
    redact_logger("someone.else")
    try:
        raise ValueError(secret)
    except ValueError:
        logging.getLogger("someone.else").exception("at %s", f"http://h/?q={secret}")
    (record,) = caplog.records
    assert secret not in caplog.text + repr(vars(record))
    assert record.exc_info is None
    assert "at http://h/?q=[redacted]" in caplog.text
    assert "ValueError: [redacted]" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("TEAM_PASS", "a1b2c3d4e5f6", True),
        ("API_TOKEN", "correct horse battery", True),
        ("DATABASE_URL", "postgres://user:pa55word@db/name", True),
        ("MODE", "production", False),
        ("ROOT", "/home/me/project1", False),
        ("ENDPOINT", "https://api.example.com/v1", False),
        ("PORTS", "8080:8081:8082", False),
    ],
)
def test_variables_are_secret_unless_plainly_public(name: str, value: str, is_secret: bool):
    assert repr(hidden_variables({name: value})) == repr({name: Secret()})
    assert (redact(f"<{value}>") == f"<{value}>") != is_secret


def test_memory_of_secrets_is_bounded_and_keeps_those_in_use():
    in_use = f"in-use-{uuid.uuid4()}"
    for _ in range(3 * MAX_SECRETS):
        register_secret(in_use)
        register_secret(f"rotating-{uuid.uuid4()}")
    assert len(redaction._secrets) == MAX_SECRETS
    assert redact(in_use) == "[redacted]"


@pytest.mark.parametrize("provider", ["openai-responses", "anthropic", "google", "google:interactions"])
async def test_server_side_tool_secrets_are_redacted_whenever_sent(provider: str):
    token = f"token-{uuid.uuid4()}"
    server = RemoteMCP(label="docs", url="https://mcp.example", authorization=token, require_approval="never")
    _forget_all()
    async with FakeProvider([error_reply(400, "invalid", f"the server refused {token}")]) as fake:
        agent = Agent(provider, api_key="key-0123456789", base_url=fake.base_url, server_side_tools=[server])
        with pytest.raises(ProviderError) as caught:
            await agent.send("hi")
        assert token in str(fake.requests[0].json)
    assert token not in str(caught.value)
    assert "refused [redacted]" in str(caught.value)


async def test_mcp_server_secrets_are_redacted_whenever_used():
    token = f"token-{uuid.uuid4()}"
    says = "import os, sys; sys.exit('my token is ' + os.environ['TOKEN'])"
    async with MCPServer("broken", command=sys.executable, args=["-c", says], env={"TOKEN": token}) as server:
        _forget_all()
        with pytest.raises(ToolServerError) as caught:
            await server.list()
    assert "token is [redacted]" in str(caught.value)


def _forget_all() -> None:
    for _ in range(MAX_SECRETS):
        register_secret(f"rotating-{uuid.uuid4()}")


def test_headers_are_redacted_by_name_and_by_value():
    headers = {
        "Authorization": "Bearer x",
        "x-api-key": "x",
        "X-Goog-Api-Key": "x",
        "api-key": "x",
        "Cookie": "x",
        "Set-Cookie": "x",
        "Proxy-Authorization": "x",
        "Ocp-Apim-Subscription-Key": "x",
        "X-Auth-Token": "x",
        "OpenAI-Organization": "org-1",
        "Idempotency-Key": "abc",
        "x-ratelimit-remaining-tokens": "9",
        "Location": "https://host/?key=abc",
    }
    shown = redact_headers(headers)
    assert {name for name, value in shown.items() if value == "[redacted]"} == set(list(headers)[:9])
    assert shown["OpenAI-Organization"] == "org-1"
    assert shown["Idempotency-Key"] == "abc"
    assert shown["x-ratelimit-remaining-tokens"] == "9"
    assert shown["Location"] == "https://host/?key=[redacted]"


@given(st.text(max_size=300))
def test_any_text_can_be_redacted(text: str):
    redact(text)


@pytest.mark.parametrize(
    "piece", ["a", "://", "://a", "bearer ", "cookie", "key=", "api_key: ", "sk-", "authorization ", "@", " "]
)
def test_long_text_is_redacted_in_linear_time(piece: str):
    """A pattern that backtracks would never end here."""
    redact(piece * (200_000 // len(piece)))
