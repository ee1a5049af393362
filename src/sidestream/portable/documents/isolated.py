"""PDF and Word files, parsed by a separate process."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from sidestream.errors import DocumentError, MissingExtraError
from sidestream.portable.documents.document import Document, DocumentLimits

_PROGRAM = Path(__file__).resolve().with_name("child.py")
_LIBRARIES = {"pdf": "pypdfium2", "docx": "docx"}
PAGE_BREAK = "\n\n"


def read_isolated(kind: str, mime_type: str, data: bytes, limits: DocumentLimits) -> Document:
    """The document. The process is gone when this returns or raises."""
    if importlib.util.find_spec(_LIBRARIES[kind]) is None:
        raise MissingExtraError("fetch", f"Reading {kind} files")
    settings = {
        "kind": kind,
        "path": [os.path.abspath(entry) for entry in sys.path],
        "max_pages": limits.max_pages,
        "max_chars": limits.max_chars,
        "memory_bytes": limits.memory_bytes,
        "cpu_s": max(1, int(limits.timeout_s)),
    }
    process = subprocess.Popen(
        [sys.executable, "-P", str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH")},
    )
    try:
        output, _ = process.communicate(json.dumps(settings).encode() + b"\n" + data, timeout=limits.timeout_s)
    except subprocess.TimeoutExpired:
        raise DocumentError(f"reading it took longer than {limits.timeout_s:g} s", "timeout") from None
    finally:
        process.kill()
        process.communicate()
    if not output:
        raise DocumentError("it could not be read: its content ended the reader", "damaged")
    answer = json.loads(output)
    if "error" in answer:
        raise DocumentError(answer["error"], answer["reason"])
    text, pages = _joined(answer["pages"])
    return Document(
        text=text,
        mime_type=mime_type,
        title=answer["title"],
        pages=pages if kind == "pdf" else (),
        is_cut=answer["is_cut"],
    )


def _joined(pages: list[str]) -> tuple[str, tuple[int, ...]]:
    starts: list[int] = []
    at = 0
    for page in pages:
        starts.append(at)
        at += len(page) + len(PAGE_BREAK)
    return PAGE_BREAK.join(pages), tuple(starts)
