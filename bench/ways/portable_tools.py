"""Tools that run here, and the libraries that they are made of: file search over 10,000 passages, a page, citations."""

import asyncio
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import sqlite_vec

from bench.worker import Clock

PASSAGES = 10_000
DIMENSIONS = 384
WORDS_EACH = 120
QUERIES = 20
FETCHES = 30
CITATIONS = 10
DOCS = Path(__file__).parents[2] / "docs"
PROSE = re.compile(r"[A-Z][^`\"]{60,160}\.")

_SERVER = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

section = "<h2>Section {0}</h2><p>" + "The quick brown fox jumps over <a href='/p{0}'>the lazy dog</a>. " * 12 + "</p>"
links = "".join(f"<a href='/n{n}'>link {n}</a>" for n in range(60))
body = f"<html><head><title>T</title></head><body><nav>{links}</nav><main>"
body += "".join(section.format(n) for n in range(45)) + "</main><footer>f</footer></body></html>"
page = body.encode()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *arguments):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@cache
def _texts() -> list[str]:
    random = numpy.random.default_rng(7)
    words = [f"word{number}" for number in range(5000)]
    ranks = random.zipf(1.3, size=(PASSAGES, WORDS_EACH)) % len(words)
    return [" ".join(words[rank] for rank in row) for row in ranks]


@cache
def _vectors() -> Any:
    random = numpy.random.default_rng(8)
    made = random.standard_normal((PASSAGES, DIMENSIONS)).astype(numpy.float32)
    return made / numpy.linalg.norm(made, axis=1, keepdims=True)


def _queries() -> list[tuple[str, Any]]:
    return [
        (f"word{30 + number} word{200 + number} word{900 + number}", _vectors()[number]) for number in range(QUERIES)
    ]


@cache
def _bare() -> Any:
    import apsw

    connection: Any = apsw.Connection(str(Path(tempfile.mkdtemp()) / "bare.db"))
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    connection.execute("CREATE VIRTUAL TABLE t USING fts5 (text, tokenize = 'porter unicode61 remove_diacritics 2')")
    connection.execute(
        f"CREATE VIRTUAL TABLE v USING vec0 (id INTEGER PRIMARY KEY, e float[{DIMENSIONS}] distance_metric=cosine)"
    )
    with connection:
        connection.executemany("INSERT INTO t (rowid, text) VALUES (?, ?)", list(enumerate(_texts(), 1)))
        vectors = [(number, vector.tobytes()) for number, vector in enumerate(_vectors(), 1)]
        connection.executemany("INSERT INTO v (id, e) VALUES (?, ?)", vectors)
    return connection


async def search_bare(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """Both queries of SQLite, ten rows each."""
    connection, queries = _bare(), _queries()
    found = 0
    clock = Clock()
    for text, vector in queries:
        match = " OR ".join(f'"{word}"' for word in text.split())
        sql = "SELECT rowid, text FROM t WHERE t MATCH ? ORDER BY rank LIMIT 10"
        found += len(connection.execute(sql, (match,)).fetchall())
        sql = "SELECT id, distance FROM v WHERE e MATCH ? AND k = 10"
        found += len(connection.execute(sql, (vector.tobytes(),)).fetchall())
    return {**clock.stop(), "found": found}


@cache
def _index() -> Any:
    from sidestream.portable.documents import Document
    from sidestream.portable.index.chunks import Chunk
    from sidestream.portable.index.records import IndexedFile, digest_of, file_id_of
    from sidestream.portable.index.sqlite import SqliteIndex

    database = SqliteIndex(Path(tempfile.mkdtemp()) / "ours.db")
    database.open()
    texts = _texts()
    chunks: list[Chunk] = []
    start = 0
    for text in texts:
        chunks.append(Chunk(start, start + len(text)))
        start += len(text) + 1
    document = Document(text="\n".join(texts), mime_type="text/plain")
    file = IndexedFile(path="/all.txt", file_id=file_id_of("/all.txt"), digest="all", mime_type="text/plain")
    database.put(file, document, chunks)
    database.set_model("bench", DIMENSIONS)
    vectors = {digest_of(text): vector.tolist() for text, vector in zip(texts, _vectors(), strict=True)}
    database.put_vectors(vectors)
    database.close()
    return database


async def search_ours(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """`Index.search`, with the query's vector known."""
    from sidestream.portable.index import Index

    queries = _queries()
    known = dict(queries)

    async def embed(texts: Any) -> Any:
        return [known[text] for text in texts]

    async with Index(_index(), embed, "bench") as index:
        await index.search(queries[0][0])
        found = 0
        clock = Clock()
        for text, _ in queries:
            found += len(await index.search(text))
        return {**clock.stop(), "found": found}


async def fetch_bare(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """aiohttp, selectolax and html-to-markdown, with a short list of what is dropped."""
    import aiohttp
    from html_to_markdown import convert
    from selectolax.lexbor import LexborHTMLParser

    async def fetch(session: aiohttp.ClientSession, address: str) -> str:
        async with session.get(address) as response:
            tree = LexborHTMLParser(await response.text())
        for node in tree.css("script, style, nav, footer, aside, noscript"):
            node.decompose()
        return convert(tree.body.html).content or ""  # type: ignore[union-attr, arg-type]

    with _Site() as address:
        async with aiohttp.ClientSession() as session:
            await fetch(session, address)
            clock = Clock()
            chars = [len(await fetch(session, address)) for _ in range(FETCHES)]
            return {**clock.stop(), "chars": sum(chars)}


async def fetch_ours(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """The fetcher of `WebFetch`."""
    from sidestream.portable.fetch import EgressPolicy, Fetcher

    with _Site() as address:
        fetcher = Fetcher(EgressPolicy(allow_hosts=["127.0.0.1"]))
        await fetcher.fetch(address)
        clock = Clock()
        chars = [len((await fetcher.fetch(address)).document.text) for _ in range(FETCHES)]
        return {**clock.stop(), "chars": sum(chars)}


class _Site:
    """A page of 40 kB, served by another process."""

    def __enter__(self) -> str:
        self._process = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return f"http://127.0.0.1:{int(self._process.stdout.readline())}/page"

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=10)


PLAYERS = {}


async def check_citations(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """Check ten citations of pages of the docs, half of them with a name too many."""
    from sidestream.evidence import tokens
    from sidestream.results.passages import CitablePassage, finding

    pages = sorted(DOCS.glob("*.md"), key=lambda path: path.stat().st_size)[-CITATIONS:]
    texts = [page.read_text("utf-8") for page in pages]
    found = [[entry.text for entry in tokens.sentences(text)] for text in texts]
    claims = [next(entry for entry in page if PROSE.fullmatch(entry)) for page in found]
    passages = [CitablePassage(number=number, text=text) for number, text in enumerate(texts)]
    tokens.tokens.cache_clear()
    clock = Clock()
    for number, (passage, claim) in enumerate(zip(passages, claims, strict=True)):
        finding(passage, claim if number % 2 else f"Bergen {claim}", None)
    return {**clock.stop(), "chars": sum(map(len, texts))}


PROGRAMS = {
    "check-citations": check_citations,
    "search-bare": search_bare,
    "search-ours": search_ours,
    "fetch-bare": fetch_bare,
    "fetch-ours": fetch_ours,
}

if __name__ == "__main__":  # one of them alone, without the server of the benchmarks
    print(asyncio.run(PROGRAMS[sys.argv[1]]("", {})))
