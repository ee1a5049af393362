"""Citations that a provider reports: the cited pages are fetched, within the policy, and compared."""

from collections.abc import Iterable

import pytest
from aiohttp import web

from requirements import requirement
from sidestream import Agent, ChatResult
from sidestream.testing import FakeProvider
from support.citations import citing
from support.portable_index import pdf_of
from support.web_pages import Answer, Site, page, serve

FACTS = "<title>Facts</title><main><p>The <a href='/x'>bridge</a> is 1,870 metres long. It opened on 9 June 1967.</p></main>"
CLAIMS = {
    "/facts": "The bridge is 1870 m long.",
    "/wrong": "The bridge is 1,780 metres long.",
    "/old": "It opened on June 9, 1967.",
    "/closed": "The bridge is 1,870 metres long.",
    "/gone": "The bridge is old.",
}
PAGES = {
    "/facts": page(FACTS),
    "/wrong": page(FACTS),
    "/old": web.Response(status=301, headers={"Location": "/facts"}),
    "/closed": page(FACTS),
    "/robots.txt": web.Response(text="User-agent: *\nDisallow: /closed\n"),
}


async def answer(site: Site) -> ChatResult[str]:
    script = citing((claim, site.url(path), path) for path, claim in CLAIMS.items())
    async with FakeProvider([script.reply()]) as fake:
        return await Agent("openai-responses:m", base_url=fake.base_url, api_key="k").send("How long?")


@requirement("R230")
async def test_cited_pages_are_fetched_and_compared_on_request():
    async with serve(PAGES) as site:
        result = await answer(site)
        assert not site.requests
        checked = await result.check_evidence(allow_hosts=[site.host])
        paths = [request.path for request in site.requests]
        again = await checked.check_evidence(allow_hosts=[site.host])
        retried = [request.path for request in site.requests[len(paths) :]]
    states = {source.title: source.evidence.state for source in checked.sources}
    assert states == {
        "/facts": "supported",
        "/wrong": "contradicted",
        "/old": "supported",
        "/closed": "unreachable",
        "/gone": "unreachable",
    }
    reasons = {source.title: source.evidence.reason for source in checked.sources}
    assert "1,780 metres" in reasons["/wrong"]
    assert "moved to" in reasons["/old"]
    assert "robots.txt" in reasons["/closed"]
    assert sorted(paths) == ["/facts", "/facts", "/gone", "/old", "/robots.txt", "/wrong"]
    assert sorted(retried) == ["/gone", "/robots.txt"]
    assert {source.evidence.state for source in result.sources} == {"unchecked"}
    assert again.sources == checked.sources
    (facts, *_) = checked.sources
    assert facts.provider_metadata is not None
    snapshot = facts.provider_metadata["sidestream"]["snapshot"]
    assert (len(snapshot["sha256"]), snapshot["url"]) == (64, site.url("/facts"))
    assert "(contradicted: " in checked.cited_text().listing


@requirement("R230")
async def test_private_host_is_unreachable_unless_named():
    async with serve(PAGES) as site:
        checked = await (await answer(site)).check_evidence()
    assert {source.evidence.state for source in checked.sources} == {"unreachable"}
    assert not site.requests


def _closed_connection(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@requirement("R231")
@pytest.mark.parametrize(
    ("robots", "state", "reads"),
    [
        (web.Response(status=404), "supported", True),
        (web.Response(status=401), "supported", True),
        (web.Response(status=500), "unreachable", False),
        (web.Response(status=503), "unreachable", False),
        (_closed_connection, "unreachable", False),
    ],
)
async def test_unreadable_robots_txt_closes_site_unless_4xx(robots: Answer, state: str, reads: bool):
    async with serve({**PAGES, "/robots.txt": robots}) as site:
        checked = await (await answer(site)).check_evidence(allow_hosts=[site.host])
    (facts, *_) = checked.sources
    assert facts.evidence.state == state
    paths = [request.path for request in site.requests]
    assert ("/facts" in paths) is reads
    assert reads or ("robots.txt" in facts.evidence.reason and set(paths) == {"/robots.txt"})


async def cited(site: Site, claims: Iterable[tuple[str, str]]) -> ChatResult[str]:
    """An answer with these claims, each with the path of its page."""
    async with FakeProvider([citing((claim, site.url(path), path) for claim, path in claims).reply()]) as fake:
        return await Agent("openai-responses:m", base_url=fake.base_url, api_key="k").send("How long?")


@requirement("R231")
async def test_unreachable_page_is_read_again_on_next_request():
    answers = [web.Response(status=503), page(FACTS)]
    async with serve({"/facts": lambda request: answers.pop(0)}) as site:
        result = await cited(site, [("The bridge is 1,870 metres long.", "/facts")])
        first = await result.check_evidence(allow_hosts=[site.host])
        second = await first.check_evidence(allow_hosts=[site.host])
    assert [found.sources[0].evidence.state for found in (first, second)] == ["unreachable", "quoted"]


@requirement("R231")
async def test_page_is_read_once_however_often_it_is_cited():
    versions = iter(range(1870, 1900))
    claim = "The bridge is 1870 metres long."
    async with serve({"/p": lambda request: page(f"<p>The bridge is {next(versions)} metres long.</p>")}) as site:
        result = await cited(
            site, [(claim, path) for path in ("/p", "/p#length", "/p?utm_source=openai", "/p#:~:text=x")]
        )
        checked = await result.check_evidence(allow_hosts=[site.host])
    assert [source.evidence.state for source in checked.sources] == ["quoted"] * 4
    assert (
        len({(source.provider_metadata or {})["sidestream"]["snapshot"]["sha256"] for source in checked.sources}) == 1
    )
    assert [request.path for request in site.requests] == ["/robots.txt", "/p"]


@requirement("R231")
@pytest.mark.parametrize(
    ("encoding", "content_type"),
    [
        ("iso-8859-1", "text/html; charset=iso-8859-1"),
        ("cp1252", "text/html"),
        ("utf-16", "text/html"),
        ("utf-8", "text/html; charset=nonsense"),
    ],
)
async def test_page_in_other_encoding_is_compared(encoding: str, content_type: str):
    claim = "Das Café in Zürich hat 1.230 Plätze für Gäste."
    body = f"<main><p>{claim}</p></main>".encode(encoding)
    async with serve({"/p": web.Response(body=body, headers={"Content-Type": content_type})}) as site:
        checked = await (await cited(site, [(claim, "/p")])).check_evidence(allow_hosts=[site.host])
    assert [source.evidence.state for source in checked.sources] == ["quoted"]


@requirement("R231")
async def test_reason_says_page_was_compared_in_part():
    rest = "<p>It is old and made of steel and stone.</p>" * 30_000
    async with serve({"/p": page(f"<main>{rest}<p>The bridge is long.</p></main>")}) as site:
        checked = await (await cited(site, [("The bridge is long.", "/p")])).check_evidence(allow_hosts=[site.host])
    (found,) = (source.evidence for source in checked.sources)
    assert (found.state, "only its first 1,000,000 characters" in found.reason) == ("not-found", True)


@requirement("R231")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.Response(body=b"<p>" + b"x " * 11_000_000, content_type="text/html"), "larger than"),
        (web.Response(status=302, headers={"Location": "http://[::bad"}), "redirects to, is invalid"),
        (web.Response(status=302, headers={"Location": "file:///etc/passwd"}), "redirects to, is invalid"),
        (web.Response(status=302, headers={"Location": "/p"}), "redirects more than"),
        (web.Response(body=b"GIF89a", content_type="image/gif"), "image/gif"),
        (web.Response(status=204), "no text"),
        (page("<form><input type=password></form>"), "no text"),
    ],
    ids=["huge", "bad-redirect", "file-redirect", "loop", "image", "empty", "form"],
)
async def test_unreadable_page_is_unreachable_and_says_why(answer: Answer, words: str):
    async with serve({"/p": answer}) as site:
        checked = await (await cited(site, [("The bridge is long.", "/p")])).check_evidence(allow_hosts=[site.host])
    (found,) = (source.evidence for source in checked.sources)
    assert (found.state, words in found.reason) == ("unreachable", True)


@requirement("R231")
async def test_redirect_to_closed_page_is_not_followed():
    async with serve(PAGES) as closed:
        away = web.Response(status=302, headers={"Location": closed.url("/closed")})
        near = web.Response(status=302, headers={"Location": "/closed"})
        open_page = web.Response(status=302, headers={"Location": closed.url("/facts")})
        async with serve({**PAGES, "/facts": away, "/wrong": near, "/old": open_page}) as site:
            checked = await (await answer(site)).check_evidence(allow_hosts=[site.host, closed.host])
    found = {source.title: source.evidence for source in checked.sources}
    assert (found["/facts"].state, found["/wrong"].state) == ("unreachable", "unreachable")
    assert "robots.txt" in found["/facts"].reason
    assert "robots.txt" in found["/wrong"].reason
    assert found["/old"].state == "supported"
    assert [request.path for request in closed.requests] == ["/robots.txt", "/facts"]
    assert "/closed" not in [request.path for request in site.requests]


@requirement("R231")
async def test_reason_says_why_page_may_not_have_claim():
    paid = '<script type="application/ld+json">{"isAccessibleForFree": false}</script>' + FACTS
    home = web.Response(status=302, headers={"Location": "/"})
    pages = {
        "/": page(FACTS),
        "/facts": web.Response(status=402),
        "/wrong": web.Response(status=403),
        "/old": home,
        "/closed": page(FACTS.replace("1,870", "many")),
        "/gone": page(paid),
    }
    async with serve(pages) as site:
        checked = await (await answer(site)).check_evidence(allow_hosts=[site.host])
    found = {source.title: source.evidence for source in checked.sources}
    assert (found["/facts"].state, "paywall" in found["/facts"].reason) == ("unreachable", True)
    assert (found["/wrong"].state, "subscription" in found["/wrong"].reason) == ("unreachable", True)
    assert (found["/old"].state, "home page" in found["/old"].reason) == ("supported", True)
    assert (found["/gone"].state, "paywall" in found["/gone"].reason) == ("not-found", True)
    assert "paywall" not in found["/closed"].reason


@requirement("R231")
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "needs a sign-in"),
        (402, "paywall"),
        (403, "subscription"),
        (404, "does not exist any more"),
        (410, "was removed"),
        (451, "legal reasons"),
        (500, "500"),
    ],
)
async def test_reason_says_how_site_refuses_page(status: int, words: str):
    async with serve({"/facts": web.Response(status=status)}) as site:
        checked = await (await answer(site)).check_evidence(allow_hosts=[site.host])
    found = checked.sources[0].evidence
    assert (found.state, words in found.reason) == ("unreachable", True)


@requirement("R231")
async def test_reason_says_source_is_pdf():
    pdf = web.Response(body=pdf_of(["The bridge is 1870 m long."]), content_type="application/pdf")
    scan = web.Response(body=pdf_of([""]), content_type="application/pdf")
    async with serve({"/facts": pdf, "/wrong": scan}) as site:
        checked = await (await answer(site)).check_evidence(allow_hosts=[site.host])
    facts, wrong, *_ = (source.evidence for source in checked.sources)
    assert facts.state in ("quoted", "supported")
    assert "PDF" in facts.reason
    assert (wrong.state, "scan" in wrong.reason) == ("unreachable", True)
