"""The page's files: what is served where, as what, and for how long."""

import gzip
import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from requirements import requirement
from sidestream.server import Page, create_app
from sidestream.server.console import page_files

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

INDEX = (
    '<meta name="sidestream-base" content="" /><meta name="sidestream-sign-in" content="" />'
    '<link rel="icon" type="image/svg+xml" href="./icon.svg" /><title>Sidestream</title>'
    '<script src="./assets/index-1.js"></script>'
)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "page"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(INDEX)
    (folder / "assets" / "index-1.js").write_text("1;")
    (folder / "icon.svg").write_text("<svg/>")
    (tmp_path / "secret.txt").write_text("secret")
    monkeypatch.setattr(page_files.routes, "__defaults__", (folder,))
    return folder


def client(tmp_path: Path) -> TestClient:
    return TestClient(create_app(store=tmp_path / "talks.db"), base_url="http://127.0.0.1")


@requirement("R143")
@pytest.mark.parametrize("path", ["/", "/c/abc", "/r/run-1", "/view/recording.jsonl", "/settings/mcp"])
def test_every_web_ui_route_returns_revalidated_page(built: Path, tmp_path: Path, path: str) -> None:
    answer = client(tmp_path).get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert 'src="/assets/index-1.js"' in answer.text


@requirement("R143")
def test_asset_has_type_and_is_immutable_and_unknown_one_is_404(built: Path, tmp_path: Path) -> None:
    asked = client(tmp_path)
    script = asked.get("/assets/index-1.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert "immutable" in script.headers["cache-control"]
    assert asked.get("/icon.svg").headers["content-type"].startswith("image/svg+xml")
    for path in ("/assets/index-2.js", "/assets/%2e%2e%2f%2e%2e%2fsecret.txt", "/other"):
        answer = asked.get(path)
        assert answer.status_code == 404, path
        assert answer.json()["error"]["type"] == "not_found"


@requirement("R143")
def test_mounted_page_contains_its_base_path(built: Path, tmp_path: Path) -> None:
    outer = Starlette(routes=[Mount("/chat", create_app(store=tmp_path / "talks.db"))])
    html = TestClient(outer, base_url="http://127.0.0.1").get("/chat/c/abc").text
    assert 'src="/chat/assets/index-1.js"' in html
    assert 'content="/chat"' in html


@requirement("R143")
def test_missing_web_ui_build_explains_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_files.routes, "__defaults__", (tmp_path / "none",))
    answer = client(tmp_path).get("/")
    assert answer.status_code == 503
    assert "make page" in answer.text


@requirement("R215")
def test_operators_title_and_icon_show_before_sign_in(built: Path, tmp_path: Path) -> None:
    (tmp_path / "acme.png").write_bytes(b"\x89PNG")
    page = Page(title='Acme & "Co"', icon=str(tmp_path / "acme.png"), sign_in_url="/login?next=/chat")
    app = create_app(store=tmp_path / "talks.db", tokens=["token-of-anna-0123456789"], page=page)
    asked = TestClient(Starlette(routes=[Mount("/chat", app)]), base_url="http://127.0.0.1")
    html = asked.get("/chat/").text
    assert "<title>Acme &amp; &quot;Co&quot;</title>" in html
    assert 'type="image/png" href="/chat/icon"' in html
    assert 'name="sidestream-sign-in" content="/login?next=/chat"' in html
    icon = asked.get("/chat/icon")
    assert (icon.content, icon.headers["content-type"]) == (b"\x89PNG", "image/png")
    assert client(tmp_path).get("/icon").status_code == 404


def test_built_page_has_what_operators_replace() -> None:
    html = (page_files.FOLDER / "index.html").read_text() if (page_files.FOLDER / "index.html").is_file() else INDEX
    source = (Path(__file__).parents[3] / "page" / "index.html").read_text()
    for text in (page_files._BASE, page_files._SIGN_IN, page_files._TITLE):  # pyright: ignore[reportPrivateUsage]
        assert text in html
        assert text in source
    assert 'type="image/svg+xml" href=' in source


@requirement("R214")
@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate, br, zstd", "br"),
        ("gzip, br;q=0", "gzip"),
        ("GZIP;q=0.5", "gzip"),
        ("br;q=0.0, gzip;q=0", None),
        ("identity", None),
        ("", None),
    ],
)
def test_asset_is_sent_in_accepted_encoding(built: Path, tmp_path: Path, accepted: str, encoding: str | None) -> None:
    script = b"export const answer = 42;" * 100
    asset = built / "assets" / "index-1.js"
    asset.write_bytes(script)
    asset.with_name("index-1.js.gz").write_bytes(packed := gzip.compress(script))
    asset.with_name("index-1.js.br").write_bytes(b"as Brotli")
    with client(tmp_path).stream("GET", "/assets/index-1.js", headers={"Accept-Encoding": accepted}) as answer:
        data = b"".join(answer.iter_raw())
    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["vary"] == "Accept-Encoding"
    assert data == {"gzip": packed, "br": b"as Brotli", None: script}[encoding]


@requirement("R214")
def test_uncompressed_asset_is_sent_without_compressed_one(built: Path, tmp_path: Path) -> None:
    asked = client(tmp_path)
    assert "content-encoding" not in asked.get("/assets/index-1.js").headers
    (built / "assets" / "index-1.js.gz").write_bytes(b"")
    assert asked.get("/assets/index-1.js.gz").status_code == 404


@requirement("R214")
def test_built_assets_have_compressed_versions(tmp_path: Path) -> None:
    asked = client(tmp_path)
    if asked.get("/").status_code == 503:
        pytest.skip("the web UI is not built")
    sizes = [0, 0]
    for path in re.findall(r'(?:src|href)="(/assets/[^"]+)"', asked.get("/").text):
        answer = asked.get(path, headers={"Accept-Encoding": "gzip"})
        whole = asked.get(path, headers={"Accept-Encoding": "identity"})
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.content == whole.content
        for index, response in enumerate((answer, whole)):
            sizes[index] += int(response.headers["content-length"])
    assert sizes[0] < sizes[1] * 0.4
