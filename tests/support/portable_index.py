"""Files and vectors for the tests of the file index."""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from sidestream.portable.index import Index
from sidestream.portable.index.records import Database

SECRET = "The password is swordfish."

DIMENSIONS = 64
_SAME = {"automobile": "car", "physician": "doctor", "feline": "cat", "spaghetti": "pasta"}
"""Words that mean the same: only vectors know it."""


async def bag_of_words(texts: Sequence[str]) -> list[list[float]]:
    """Vectors of texts whose words count, whatever their order: an embeddings model without a model."""
    return [_vector(text) for text in texts]


def _vector(text: str) -> list[float]:
    vector = [0.0] * DIMENSIONS
    for word in re.findall(r"\w+", text.lower()):
        place = hashlib.sha256(_SAME.get(word, word).encode()).digest()[0] % DIMENSIONS
        vector[place] += 1.0
    return vector if any(vector) else [1.0, *[0.0] * (DIMENSIONS - 1)]


def write_corpus(folder: Path) -> None:
    """A few short files of several formats."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cars.md").write_text(
        "# Cars\n\n## Brakes\n\nThe car has disc brakes.\n\n## Paint\n\nThe paint is red.\n"
    )
    (folder / "cooking.txt").write_text("Boil the pasta for nine minutes. Add salt to the water first.\n")
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "sub" / "cats.html").write_text(
        "<html><head><title>Cats</title></head><body><nav>Menu</nav><main><h1>Cats</h1>"
        "<p>The cat sleeps on the windowsill.</p></main></body></html>"
    )


def pdf_of(pages: Sequence[str]) -> bytes:
    """A PDF with one line of text per page."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids: list[str] = []
    for text in pages:
        stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode()
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % len(objects)
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    body = b"%PDF-1.4\n"
    offsets: list[int] = []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    size = len(objects) + 1
    return body + head + table + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (size, len(body))


async def holding(index: Index, word: str) -> set[str]:
    """Names of the files with a passage that holds a word."""
    found = await index.search(word, 50, paths=["/"])
    return {passage.filename for passage in found if word in passage.text}


def hostile_folder(docs: Path) -> dict[str, str]:
    """Fill a folder with what must be skipped; returns the path of each, as it is reported, and a word of the reason."""
    (docs / "self.txt").symlink_to("self.txt")
    (docs / "ring-a").symlink_to("ring-b")
    (docs / "ring-b").symlink_to("ring-a")
    (docs / "gone.md").symlink_to("nowhere.md")
    (docs / "up.txt").symlink_to("../secret.txt")
    (docs / "etc").symlink_to("/etc")
    (docs.parent / "secret.txt").write_text(SECRET)
    os.mkfifo(docs / "pipe.txt")
    os.mknod(docs / "socket.txt", stat.S_IFSOCK | 0o600)
    raw = os.fsencode(docs)
    with open(raw + b"/bad\xff.txt", "w") as file:
        file.write("unreadable name")
    os.mkdir(raw + b"/bad\xfe")
    with open(raw + b"/bad\xfe/inner.txt", "w") as file:
        file.write("unreadable folder")
    reasons = {
        "self.txt": "itself", "ring-a": "itself", "ring-b": "itself", "gone.md": "missing", "up.txt": "out of",
        "etc": "folder", "pipe.txt": "regular", "socket.txt": "regular", "bad\\xff.txt": "UTF-8", "bad\\xfe": "UTF-8",
    }  # fmt: skip
    return {str(docs / name): reason for name, reason in reasons.items()}


async def skips_and_reports(database: Callable[[], Database], docs: Path) -> None:
    """A session with a folder that somebody else fills: indexed, changed, searched, and opened again."""
    expected = hostile_folder(docs)
    async with Index(database(), bag_of_words, "words") as index:
        report = await index.add(docs)
        assert report.added == 3
        assert report.problems.keys() == expected.keys()
        assert all(expected[path] in problem for path, problem in report.problems.items())
        assert {file.path for file in await index.list() if file.problem} == expected.keys()
        await index.complete()
        again = await index.add(docs)
        assert (again.added, again.changed, again.removed, again.problems) == (0, 0, 0, report.problems)
        (docs / "up.txt").unlink()
        (docs / "up.txt").write_text("Now the tuna is a file.")
        (docs / "cars.md").unlink()
        (docs / "cars.md").symlink_to("../secret.txt")
        os.rename(os.fsencode(docs) + b"/bad\xff.txt", docs / "good.txt")
        report = await index.add(docs)
        assert "out of" in report.problems[str(docs / "cars.md")]
    async with Index(database(), bag_of_words, "words") as index:
        assert (await index.refresh()).problems == report.problems
        await index.complete()
        assert await holding(index, "tuna") == {"up.txt"}
        assert await holding(index, "unreadable") == {"good.txt"}
        assert not await holding(index, "brakes")
        assert not await holding(index, "swordfish")
