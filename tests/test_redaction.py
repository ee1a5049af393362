"""Secrets stay out of what is shown, by their shape, their value and their header's name."""

import uuid
from urllib.parse import quote

import pytest
from hypothesis import given, strategies as st

from sidestream import redaction
from sidestream.redaction import MAX_SECRETS, redact, redact_headers, register_secret


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
def test_what_looks_like_a_secret_is_replaced(text: str, shown: str):
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
def test_other_text_is_left_alone(text: str):
    assert redact(text) == text


def test_a_registered_value_is_replaced_wherever_it_occurs():
    secret = f"plain+value/{uuid.uuid4()}"
    register_secret(f" {secret}\n")
    assert redact(f"a{secret}b {quote(secret, safe='')}") == "a[redacted]b [redacted]"


def test_a_secret_inside_another_leaves_no_rest():
    secret = f"word{uuid.uuid4().hex}"
    register_secret(secret)
    register_secret(f"{secret}tail")
    assert redact(f"<{secret}tail>") == "<[redacted]>"


def test_short_values_are_no_secrets():
    register_secret("message")
    assert redact("the message") == "the message"


def test_memory_of_secrets_is_bounded_and_keeps_those_in_use():
    in_use = f"in-use-{uuid.uuid4()}"
    for _ in range(3 * MAX_SECRETS):
        register_secret(in_use)
        register_secret(f"rotating-{uuid.uuid4()}")
    assert len(redaction._secrets) == MAX_SECRETS
    assert redact(in_use) == "[redacted]"


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
def test_long_text_is_redacted_in_proportion(piece: str):
    """A pattern that backtracks would never end here."""
    redact(piece * (200_000 // len(piece)))
