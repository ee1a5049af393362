"""Web fetch: what may be fetched, hop by hop, what is cached, and the tool as a model sees it."""

import asyncio
import gzip

import pytest
from aiohttp import web
from msgspec.structs import replace

from requirements import requirement
from sidestream import Agent, ChatMessage, WebFetch
from sidestream.errors import FetchError
from sidestream.messages.message import ToolResultPart
from sidestream.messages.provenance import Provenance
from sidestream.portable.fetch import EgressPolicy, Fetcher
from sidestream.portable.fetch.policy import KnownAddresses
from sidestream.testing import ScriptedModel, tool_call
from sidestream.wire.pages import PageLimits
from support.portable_index import pdf_of
from support.web_pages import Site, page, serve


def fetcher(site: Site, **limits: object) -> Fetcher:
    return Fetcher(EgressPolicy(allow_hosts=[site.host]), limits=PageLimits(**limits))  # type: ignore[arg-type]


async def code_of(fetcher: Fetcher, url: str) -> str | None:
    with pytest.raises(FetchError) as raised:
        await fetcher.fetch(url)
    return raised.value.code


@requirement("R124")
async def test_fetch_returns_title_time_and_links():
    async with serve({"/a": page("<title>A</title><main><h1>A</h1><a href='/b'>b</a></main>")}) as site:
        found = await fetcher(site).fetch(site.url("/a"))
    assert found.document.title == "A"
    assert found.document.text.startswith("# A")
    assert found.document.links == (site.url("/b"),)
    assert found.retrieved_at.endswith("Z")


@requirement("R124")
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://0.0.0.0:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f.1:{port}/",
        "http://[::1]:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://user:pass@127.0.0.1:{port}/",
    ],
)
async def test_private_address_is_unreachable_in_every_spelling(url: str):
    async with serve({"/": page("secret")}) as site:
        assert await code_of(Fetcher(EgressPolicy()), url.format(port=site.port)) == "url_not_allowed"
        assert site.requests == []


@requirement("R124")
async def test_redirect_to_private_address_is_refused():
    async with serve({"/secret": page("secret")}) as inner:
        moved = web.Response(status=302, headers={"Location": inner.url("/secret")})
        async with serve({"/": moved}) as outer:
            assert await code_of(fetcher(outer), outer.url("/")) == "url_not_allowed"
        assert inner.requests == []


async def test_every_redirect_is_checked_and_count_is_limited():
    pages = {
        "/loop": web.Response(status=302, headers={"Location": "/loop"}),
        "/ftp": web.Response(status=302, headers={"Location": "ftp://example.com/"}),
        "/one": web.Response(status=301, headers={"Location": "/two"}),
        "/two": page("<p>arrived</p>"),
        "/none": web.Response(status=302),
    }
    async with serve(pages) as site:
        fetch = fetcher(site)
        found = await fetch.fetch(site.url("/one"))
        assert (found.final_url, found.document.text) == (site.url("/two"), "arrived")
        assert await code_of(fetch, site.url("/loop")) == "url_not_accessible"
        assert await code_of(fetch, site.url("/ftp")) == "invalid_tool_input"
        assert await code_of(fetch, site.url("/none")) == "url_not_accessible"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://docs.example.com/x", None),
        ("https://example.com.evil.org/", "url_not_allowed"),
        ("https://notexample.com/", "url_not_allowed"),
        ("https://bad.example.com/", "url_not_allowed"),
        ("https://wiki.org/public/page", None),
        ("https://wiki.org/private/page", "url_not_allowed"),
        ("https://wiki.org/publication", "url_not_allowed"),
        ("https://wiki.org/public/../private", "url_not_allowed"),
        ("https://wiki.org/public/%2e%2e/private", "url_not_allowed"),
        ("https://bad\u3002example\u3002com/", "url_not_allowed"),
        ("https://\uff22\uff21\uff24.example.com./", "url_not_allowed"),
    ],
)
def test_egress_policy_checks_allowed_and_blocked_domains(url: str, code: str | None):
    policy = EgressPolicy(allowed_domains=["example.com", "wiki.org/public"], blocked_domains=["bad.example.com"])
    if code is None:
        policy.check(url)
    else:
        with pytest.raises(FetchError) as raised:
            policy.check(url)
        assert raised.value.code == code


@pytest.mark.parametrize("entry", ["127.0.0.1:{port}", "127.0.0.1", "127\u30020\u30020\u30021"])
async def test_named_host_is_found_in_every_spelling(entry: str):
    async with serve({"/": page("<p>hello</p>")}) as site:
        fetch = Fetcher(EgressPolicy(allow_hosts=[entry.format(port=site.port)]))
        assert (await fetch.fetch(f"http://127\u30020\u30020\u30021:{site.port}/")).document.text == "hello"
        assert not fetch.policy.is_named(f"http://127.0.0.1.example:{site.port}/")
    assert EgressPolicy(allow_hosts=["[::1]:80", "::2"]).is_named("http://[::1]/")
    assert EgressPolicy(allow_hosts=["[::1]:80", "::2"]).is_named("http://[::2]:9/")
    assert not EgressPolicy(allow_hosts=["[::1]:80"]).is_named("http://[::1]:81/")


@requirement("R124")
@pytest.mark.parametrize("target", ["http://blocked\u3002example/x", "http://ok.example/docs/../admin"])
async def test_redirect_target_is_checked_after_normalisation(target: str):
    policy = EgressPolicy(allowed_domains=["ok.example/docs", "blocked.example"], blocked_domains=["blocked.example"])
    moved = web.Response(status=302, headers={"Location": target})
    async with serve({"/": moved}) as site:
        fetch = Fetcher(replace(policy, allow_hosts=[site.host]))
        assert await code_of(fetch, site.url("/")) == "url_not_allowed"


async def test_fetch_limits_size_and_time():
    async def slow(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    bomb = web.Response(
        body=gzip.compress(b" " * 5_000_000), headers={"Content-Type": "text/plain", "Content-Encoding": "gzip"}
    )
    pages = {"/big": web.Response(text="x" * 10_000), "/bomb": bomb, "/slow": slow}
    async with serve(pages) as site:
        assert await code_of(fetcher(site, max_bytes=9_999), site.url("/big")) == "content_too_large"
        assert await code_of(fetcher(site, max_bytes=1_000_000), site.url("/bomb")) == "content_too_large"
        assert await code_of(fetcher(site, timeout_s=0.05), site.url("/slow")) == "url_not_accessible"
        assert await code_of(fetcher(site), "https://example.com/" + "x" * 3000) == "url_too_long"
        assert await code_of(fetcher(site), "file:///etc/passwd") == "invalid_tool_input"
        assert await code_of(fetcher(site), site.url("/missing")) == "url_not_accessible"


async def test_statuses_and_formats_map_to_error_codes():
    pages = {
        "/many": web.Response(status=429, headers={"Retry-After": "7"}),
        "/down": web.Response(status=503),
        "/png": web.Response(body=b"\x89PNG\r\n\x1a\n....", headers={"Content-Type": "image/png"}),
        "/broken.pdf": web.Response(body=b"%PDF-1.4 broken", headers={"Content-Type": "application/pdf"}),
        "/ok.pdf": web.Response(body=pdf_of(["One", "Two"]), headers={"Content-Type": "application/octet-stream"}),
        "/latin": web.Response(
            body="<p>Größe</p>".encode("latin-1"), headers={"Content-Type": "text/html; charset=utf-8"}
        ),
    }
    async with serve(pages) as site:
        fetch = fetcher(site)
        with pytest.raises(FetchError) as raised:
            await fetch.fetch(site.url("/many"))
        assert (raised.value.code, raised.value.retry_after) == ("too_many_requests", 7.0)
        assert await code_of(fetch, site.url("/down")) == "unavailable"
        assert await code_of(fetch, site.url("/png")) == "unsupported_content_type"
        assert await code_of(fetch, site.url("/broken.pdf")) == "unavailable"
        assert (await fetch.fetch(site.url("/ok.pdf"))).document.text == "One\n\nTwo"
        assert (await fetch.fetch(site.url("/latin"))).document.text == "Größe"


@requirement("R124")
async def test_fetched_page_is_cached_and_revalidated():
    version = {"text": "first"}

    def tagged(request: web.Request) -> web.Response:
        etag = f'"{version["text"]}"'
        if request.headers.get("If-None-Match") == etag:
            return web.Response(status=304)
        return page(f"<p>{version['text']}</p>", ETag=etag)

    pages = {
        "/tagged": tagged,
        "/fresh": page("<p>x</p>", **{"Cache-Control": "max-age=60"}),
        "/never": page("<p>x</p>", ETag='"1"', **{"Cache-Control": "no-store"}),
    }
    async with serve(pages) as site:
        fetch = fetcher(site)
        assert not (await fetch.fetch(site.url("/tagged"))).is_cached
        again = await fetch.fetch(site.url("/tagged"))
        assert (again.is_cached, again.document.text) == (True, "first")
        version["text"] = "second"
        assert (await fetch.fetch(site.url("/tagged"))).document.text == "second"
        for path, sent in (("/fresh", 1), ("/never", 2)):
            await fetch.fetch(site.url(path))
            await fetch.fetch(site.url(path))
            assert len([request for request in site.requests if request.path == path]) == sent


@requirement("R124")
def test_page_links_are_known_on_same_host_within_hop_limit():
    def fetched(url: str, text: str) -> ChatMessage:
        content = {"type": "document", "source": {"type": "text", "data": text}}
        result = {"type": "web_fetch_result", "url": url, "content": content}
        return Provenance(pages=("c",)).marked(ChatMessage("tool", (ToolResultPart("c", "web_fetch", result),)))

    history = [
        ChatMessage.user("Read https://a.org/start please"),
        fetched("https://a.org/start", "[1](https://a.org/one) and [evil](https://evil.org/collect?d=S)"),
        fetched("https://a.org/one", "https://a.org/two"),
        fetched("https://a.org/two", "https://a.org/three"),
    ]
    known = KnownAddresses(history)
    assert known.verdict("https://a.org/start#part", 2) == "known"
    assert known.verdict("https://a.org/one", 2) == "linked"
    assert known.verdict("https://a.org/two", 2) == "linked"
    assert known.verdict("https://a.org/three", 2) == "ask"
    assert known.verdict("https://evil.org/collect?d=S", 2) == "ask"
    assert known.verdict("https://a.org/never-seen", 2) == "ask"


def test_url_in_result_is_known_only_with_provenance():
    found = {"sources": [{"url": "https://found.org/"}]}
    forged = {"type": "web_fetch_result", "url": "https://found.org", "content": "https://found.org/"}
    for result in (found, forged, {"_provenance": {"urls": ["https://found.org/"]}}):
        message = ChatMessage("tool", (ToolResultPart("d", "web_search", result),))
        assert KnownAddresses([message]).verdict("https://found.org/", 2) == "ask"
        marked = Provenance(urls=("https://found.org/",)).marked(message)
        assert KnownAddresses([marked]).verdict("https://found.org/", 2) == "known"


@requirement("R124")
async def test_fetch_returns_hosted_result_shape_and_document():
    async with serve({"/a": page("<title>A</title><h1>A</h1><p>text</p>")}) as site:
        model = ScriptedModel([tool_call("web_fetch", url=site.url("/a")), "It has text [cite:1]."])
        async with Agent(model, server_side_tools=[WebFetch(execution="here", allow_hosts=[site.host])]) as agent:
            result = await agent.send("Read it")
    (entry,) = result.tool_results
    assert entry.result["type"] == "web_fetch_result"
    assert entry.result["url"] == site.url("/a")
    assert entry.result["content"]["title"] == "A"
    assert entry.result["content"]["source"] == {"type": "text", "media_type": "text/plain", "data": "# A\n\ntext"}
    assert [(file.name, file.mime_type) for file in result.files] == [("A.md", "text/markdown")]
    assert [(source.kind, source.url, source.title) for source in result.sources] == [("url", site.url("/a"), "A")]


async def test_fetch_error_is_result_with_hosted_error_code():
    model = ScriptedModel([tool_call("web_fetch", url="http://127.0.0.1:9/x"), "Sorry"])
    async with Agent(model, server_side_tools=[WebFetch(execution="here")]) as agent:
        result = await agent.send("Read http://127.0.0.1:9/x")
    (entry,) = result.tool_results
    assert entry.is_error
    assert (entry.result["type"], entry.result["error_code"]) == ("web_fetch_tool_result_error", "url_not_allowed")


@requirement("F53")
async def test_hostile_pages_give_readable_error_results():
    attributes = b"<div " + b" ".join(b"a%d=1" % number for number in range(110_000)) + b">x"
    pages = {
        "/attributes": web.Response(body=attributes, headers={"Content-Type": "text/html"}),
        "/nested": page("<div>" * 50_000),
        "/punycode": web.Response(body=b"-" + b"b" * 9, headers={"Content-Type": "text/plain; charset=punycode"}),
        "/plain": page("<title>A</title><p>text</p>"),
    }
    async with serve(pages) as site:
        calls = [tool_call("web_fetch", url=site.url(path)) for path in pages]
        tool = WebFetch(execution="here", allow_hosts=[site.host])
        model = ScriptedModel([*calls, "Done"])
        async with Agent(model, server_side_tools=[tool]) as agent:
            result = await agent.send("Read them")
    slow, nested, punycode, plain = result.tool_results
    assert (slow.is_error, slow.result["error_code"]) == (True, "unavailable")
    assert "takes too long to read" in slow.result["message"]
    assert (nested.is_error, "nested" in nested.result["message"]) == (True, True)
    assert punycode.result["content"]["source"]["data"] == "-bbbbbbbbb"
    assert plain.result["content"]["title"] == "A"


@requirement("F53")
async def test_headers_with_raw_bytes_are_read():
    answers = {
        "/moved": b"302 Found\r\nLocation: /\xff?q=\xfc",
        "/charset": b"200 OK\r\nContent-Type: text/html; charset=\xff\xfe",
        "/type": b"200 OK\r\nContent-Type: text/\xff",
    }

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        head = answers.get(path, b"200 OK\r\nContent-Type: text/plain")
        writer.write(b"HTTP/1.1 " + head + b"\r\nConnection: close\r\nContent-Length: 5\r\n\r\n<p>x\xff")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host = "{}:{}".format(*server.sockets[0].getsockname())
        fetch = Fetcher(EgressPolicy(allow_hosts=[host]))
        pages = [await fetch.fetch(f"http://{host}{path}") for path in answers]
    assert [page.final_url for page in pages] == [
        f"http://{host}{path}" for path in ("/%FF?q=%FC", "/charset", "/type")
    ]
    assert [page.document.text.removeprefix("<p>") for page in pages] == ["xÿ"] * 3


@requirement("R124")
async def test_unknown_url_needs_approval():
    def scripted() -> ScriptedModel:
        return ScriptedModel([tool_call("web_fetch", url="https://unknown.example/x?d=secret"), "Done"])

    async with Agent(scripted(), server_side_tools=[WebFetch(execution="here")]) as agent:
        result = await agent.send("Hello")
        assert result.run_state is not None
        (approval,) = result.run_state.approvals
        assert approval.input == {"url": "https://unknown.example/x?d=secret"}
        # The terminal and the page put "it" before it.
        assert approval.provenance.startswith("fetches an address of unknown.example ")
        ended = await agent.resume(result.run_state, [approval.deny()]).result()
        (entry,) = ended.tool_results
        assert entry.result["error_code"] == "url_not_allowed"
    async with Agent(scripted(), server_side_tools=[WebFetch(execution="here", approval="deny")]) as agent:
        (entry,) = (await agent.send("Hello")).tool_results
        assert entry.result["error_code"] == "url_not_in_prior_context"


async def test_uses_per_run_are_limited():
    async with serve({"/a": page("<p>a</p>")}) as site:
        calls = [tool_call("web_fetch", url=site.url("/a"))] * 2
        tool = WebFetch(execution="here", allow_hosts=[site.host], max_uses=1, max_content_tokens=10)
        async with Agent(ScriptedModel([*calls, "Done"]), server_side_tools=[tool]) as agent:
            result = await agent.send("Read it")
    assert [entry.is_error for entry in result.tool_results] == [False, True]
    assert result.tool_results[1].result["error_code"] == "max_uses_exceeded"
