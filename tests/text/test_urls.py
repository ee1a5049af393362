"""URLs in text, and lists of domains in every spelling of a host and a path."""

import pytest

from requirements import requirement
from sidestream.text.urls import host_of, is_allowed, is_blocked, plain_url, urls_in, urls_of


def test_urls_in_strips_trailing_punctuation():
    text = "See https://a.org/x(1), <https://b.org>, https://c.org/?q=1. And HTTPS://D.org/y!"
    assert urls_in(text) == ["https://a.org/x(1)", "https://b.org", "https://c.org/?q=1", "HTTPS://D.org/y"]


def test_urls_of_reads_names_of_fields():
    assert list(urls_of({"https://a.org": ["x https://b.org", {"n": 1, "u": "https://c.org"}]})) == [
        "https://a.org",
        "https://b.org",
        "https://c.org",
    ]


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("HTTPS://A.org", "https://a.org/"),
        ("https://a.org?q=A#part", "https://a.org/?q=A"),
        ("https://a.org/Path#x", "https://a.org/Path"),
        ("https://bücher.de/x", "https://xn--bcher-kva.de/x"),
        (" https://\uff41.org/ ", "https://a.org/"),
        ("https://a.org:80/x?y=/#z", "https://a.org:80/x?y=/"),
        ("https://a.org/X?y=Z", "https://a.org/X?y=Z"),
        ("https://a.org/x\u00a0", "https://a.org/x"),
        ("https://a.org/x\n", "https://a.org/x"),
    ],
)
def test_plain_url_keeps_only_requested_part(url: str, plain: str):
    assert plain_url(url) == plain


SPELLINGS = [
    "https://blocked.com/x",
    "https://BLOCKED.com",
    "https://blocked.com./x",
    "https://blocked\u3002com/x",
    "https://blocked\uff0ecom/x",
    "https://\uff42\uff4c\uff4f\uff43\uff4b\uff45\uff44.com/x",
    "https://sub.blocked.com:8443/",
    "https://blocked%2ecom/x",
    "https://user@blocked.com/",
    "https:///x",
    "https://[broken/",
]


@pytest.mark.parametrize("entry", ["blocked.com", "*.blocked.com", "https://BLOCKED.com./", ".blocked\u3002com"])
@pytest.mark.parametrize("url", SPELLINGS)
def test_blocked_domain_is_found_in_every_spelling(url: str, entry: str):
    assert is_blocked(url, [entry])
    assert not is_allowed(url, ["other.com"])


@pytest.mark.parametrize(
    "url", ["https://notblocked.com/", "https://blocked.com.evil.org/", "https://x.org/blocked.com"]
)
def test_other_domains_are_not_blocked(url: str):
    assert not is_blocked(url, ["blocked.com"])
    assert not is_blocked(url, [])


@pytest.mark.parametrize(("entry", "host"), [("bücher.de", "xn--bcher-kva.de"), ("xn--bcher-kva.de", "bücher.de")])
def test_unicode_domain_equals_ascii_domain(entry: str, host: str):
    assert is_allowed(f"https://{host}/x", [entry])
    assert is_blocked(f"https://{host}/x", [entry])


OUTSIDE = [
    "/docs/../admin",
    "/docs/..",
    "/docs/%2e%2e/admin",
    "/docs/%252e%252e/admin",
    "/docs/..%2fadmin",
    "/docs%2f..%2fadmin",
    "/docs\\..\\admin",
    "/docs%5c..%5cadmin",
    "/docs/..;/admin",
    "/docs/;x/../../admin",
    "/docsecret",
    "/docs.old/x",
    "/",
    "",
]


@requirement("R124")
@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("entry", ["a.org/docs", "a.org/docs/", "https://a.org//docs"])
def test_path_outside_is_not_allowed(path: str, entry: str):
    assert not is_allowed(f"https://a.org{path}", [entry])


@pytest.mark.parametrize(
    "path", ["/docs", "/docs/", "/docs/x?y=/../admin", "/docs/a/../b", "//docs/x", "/docs/%C3%B6", "/docs/ö", "/docs#x"]
)
def test_path_inside_is_allowed(path: str):
    assert is_allowed(f"https://a.org{path}", ["a.org/docs"])


@requirement("R124")
@pytest.mark.parametrize(
    "path",
    [
        "/admin",
        "/admin/x",
        "//admin",
        "/docs/../admin",
        "/docs/%2e%2e/admin",
        "/%61dmin",
        "/Admin",
        "/admin;x",
        "/./admin",
    ],
)
def test_blocked_path_is_found_in_every_spelling(path: str):
    assert is_blocked(f"https://a.org{path}", ["a.org/admin"])
    assert not is_blocked("https://a.org/administrators", ["a.org/admin"])


def test_entry_in_unicode_matches_quoted_path():
    assert is_allowed("https://a.org/gr%C3%B6%C3%9Fe/x", ["a.org/größe"])
    assert is_allowed("https://a.org/größe/x", ["a.org/gr%C3%B6%C3%9Fe"])


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://[::1]:80/", "::1"),
        ("http://127\u30020\u30020\u30021/", "127.0.0.1"),
        ("nothing", None),
        ("http://a\\@b.com/", None),
    ],
)
def test_host_of_returns_connected_host(url: str, host: str | None):
    assert host_of(url) == host
