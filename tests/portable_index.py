"""Files and vectors for the tests of the file index."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

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
