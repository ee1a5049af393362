"""The process that parses documents, within time and memory limits. Untrusted documents are parsed nowhere else.

Where processes can be forked, `serve` is a template that has loaded the libraries and never sees a document. It forks a
process for each one, kills it at its timeout or when the caller closes the connection, and reports how it ended unless
it has answered. On other systems `serve_once` parses one document, and the caller watches the process.
"""

import codecs
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sidestream.errors import DocumentError
from sidestream.portable.documents.charset import load_codecs, read_text
from sidestream.portable.documents.document import DOCX, HTML_TYPES, PDF, Document, DocumentLimits, others

ORDER_BYTES = 512
"""Length of an order to the template, as JSON padded with spaces."""
LENGTHS = struct.Struct("<II")
"""Header with the lengths of the request and the document, which follow it."""
ANSWER = struct.Struct("<i")
"""Header with the length of the answer, which follows it. A negative number instead says how the process ended: the
signal's number, or LATE or FAILED."""
LATE = -1000
"""The process was killed at its timeout."""
FAILED = -1001
"""The process exited by itself without an answer."""
MAX_TITLE_CHARS = 300
MAX_LINK_CHARS = 2048

Parse = Callable[[bytes, "ParseRequest"], Document | str]


class ParseRequest(Struct, frozen=True, kw_only=True):
    """A request to parse a document, without its bytes."""

    kind: str
    """Mime type."""
    charset: str = ""
    url: str = ""
    limits: DocumentLimits


class Parsed(Struct, frozen=True, kw_only=True):
    """The parsed document, or the error."""

    document: Document | None = None
    error: str = ""
    reason: str = ""


class _Child(Struct, eq=False):
    """A process that parses a document."""

    pid: int
    connection: socket.socket
    ended: int
    """Read end of a pipe that the process holds open."""
    deadline: float


def serve(control: socket.socket) -> None:
    """Start a process for each document whose connection is passed on.

    Returns when the caller has closed `control`.
    """
    _load()
    children: list[_Child] = []
    while True:
        watched = select.poll()
        watched.register(control, select.POLLIN)
        for child in children:
            watched.register(child.ended, select.POLLIN)
            watched.register(child.connection, 0)  # Reports that the caller has closed it.
        first = min((child.deadline for child in children), default=None)
        events = watched.poll(None if first is None else max(0.0, first - time.monotonic()) * 1000)
        ready = {descriptor for descriptor, _ in events}
        for child in children[:]:
            if ready & {child.ended, child.connection.fileno()} or child.deadline <= time.monotonic():
                children.remove(child)
                _end(child)
        if control.fileno() in ready:
            started = _started(control, children)
            if started is None:
                break
            children.append(started)
    for child in children:
        _end(child)


def _started(control: socket.socket, running: list[_Child]) -> _Child | None:
    """Fork a process for the next order. Return None if there will be no more."""
    order, descriptors, *_ = socket.recv_fds(control, ORDER_BYTES, 1)
    if not order:
        return None
    connection = socket.socket(fileno=descriptors[0])
    wanted = json.loads(order)
    if wanted["kind"] not in others():  # Their libraries may start threads, which do not survive a fork.
        with suppress(Exception):  # The parser process fails in the same way, and reports it.
            parser_of(wanted["kind"])
    gc.freeze()
    ended, alive = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            control.close()
            for child in running:  # Else their callers would wait for this process too.
                child.connection.close()
                os.close(child.ended)
            os.setpgid(0, 0)
            signal.setitimer(signal.ITIMER_REAL, wanted["timeout_s"] + 1)  # In case the template dies.
            with connection.makefile("rwb") as stream:
                _parse(stream, stream)
        finally:
            os._exit(1)  # The exit code matters only without an answer.
    os.close(alive)
    with suppress(OSError):  # Set by both, against a race. Programs that it starts are killed with it.
        os.setpgid(pid, pid)
    return _Child(pid, connection, ended, time.monotonic() + wanted["timeout_s"])


def _end(child: _Child) -> None:
    """Kill a process unless it has ended, and report how it ended.

    After an answer, the caller ignores the report.
    """
    is_late = child.deadline <= time.monotonic()
    for kill in (os.killpg, os.kill):
        with suppress(OSError):
            kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with child.connection as connection, suppress(OSError):
        connection.setblocking(False)
        connection.send(ANSWER.pack(LATE if is_late else code if code < 0 else FAILED))
        # Unread data would reset the connection and discard the report.
        connection.shutdown(socket.SHUT_RD)
        while connection.recv(1 << 16):
            pass
    os.close(child.ended)


def serve_once() -> None:
    """Parse one document from stdin, and answer to stdout."""
    _load()
    _parse(sys.stdin.buffer, sys.stdout.buffer)


def _load() -> None:
    """Load everything that a document may need, since no file can be opened later."""
    load_codecs()
    codecs.lookup("cp437")  # For names in archives.
    importlib.import_module("unicodedata")  # For hosts in links.
    with suppress(ModuleNotFoundError):
        importlib.import_module("resource")


def _parse(incoming: Any, outgoing: Any) -> None:
    """Answer one request. The limits are set before any library sees the document."""
    lengths = LENGTHS.unpack(incoming.read(LENGTHS.size))
    request = msgspec.msgpack.decode(incoming.read(lengths[0]), type=ParseRequest)
    data = incoming.read(lengths[1])
    parse = parser_of(request.kind)
    _limit(request.limits, is_closed=request.kind not in others())
    answer = _answer(parse, data, request)
    outgoing.write(ANSWER.pack(len(answer)) + answer)
    outgoing.flush()


def _answer(parse: Parse, data: bytes, request: ParseRequest) -> bytes:
    try:
        made = parse(data, request)
        document = Document(text=made, mime_type=request.kind) if isinstance(made, str) else made
        answer = Parsed(document=_bounded(document, request.limits))
    except DocumentError as error:
        answer = Parsed(error=str(error), reason=error.reason)
    except MemoryError:
        answer = Parsed(error="it needs too much memory to be read", reason="memory")
    except Exception as error:  # Libraries raise any exception for a damaged file.
        text = str(error)[:200].encode("utf-8", "replace").decode()
        answer = Parsed(error=f"it is damaged ({type(error).__name__}: {text})", reason="damaged")
    try:
        return msgspec.msgpack.encode(answer)
    except MemoryError:
        return msgspec.msgpack.encode(Parsed(error="it needs too much memory to be read", reason="memory"))


@cache
def parser_of(kind: str) -> Parse:
    """Load the parser for a format."""
    if kind in others():
        reader = others()[kind]
        return lambda data, request: reader(data, request.limits)
    if kind in HTML_TYPES:
        from sidestream.portable.documents.html import read_html

        return lambda data, request: read_html(
            data, request.limits, charset=request.charset or None, url=request.url or None
        )
    if kind not in (PDF, DOCX):
        return lambda data, request: read_text(data, request.limits, request.charset or None, request.kind)
    from sidestream.portable.documents.binary import read_docx, read_pdf

    if kind == PDF:
        importlib.import_module("pypdfium2")
    else:
        library: Any = importlib.import_module("docx")
        library.Document()  # Triggers its lazy imports.
    read = read_pdf if kind == PDF else read_docx
    return lambda data, request: read(data, request.limits, request.kind)


def _bounded(document: Document, limits: DocumentLimits) -> Document:
    """Truncate a document to the limits, and make it encodable."""
    return replace(
        document,
        text=_encodable(document.text[: limits.max_chars]),
        title=_encodable(document.title[:MAX_TITLE_CHARS]) if document.title else None,
        links=tuple(link for link in document.links[: limits.max_links] if len(link) <= MAX_LINK_CHARS),
        is_cut=document.is_cut or len(document.text) > limits.max_chars,
    )


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _limit(limits: DocumentLimits, *, is_closed: bool) -> None:
    """Set the resource limits of this process.

    With `is_closed`, it can open no file, connection or program from now on.
    """
    resource: Any = sys.modules.get("resource")
    if resource is None:
        return  # Windows: only the caller's timeout applies.
    used = 0
    if sys.platform == "linux":
        with open("/proc/self/statm") as mapped:
            used = int(mapped.read().split()[0]) * resource.getpagesize()
    bounds = {"RLIMIT_AS": used + limits.memory_bytes, "RLIMIT_CPU": limits.cpu_s, "RLIMIT_CORE": 0}
    if is_closed:
        bounds |= {"RLIMIT_FSIZE": 0, "RLIMIT_NPROC": 0, "RLIMIT_NOFILE": 0}
    for name, bound in bounds.items():
        if (limit := getattr(resource, name, None)) is not None:
            _set(resource, limit, bound)


def _set(resource: Any, limit: int, bound: int) -> None:
    with suppress(ValueError, OSError):
        _, hard = resource.getrlimit(limit)
        ceiling = sys.maxsize if hard == resource.RLIM_INFINITY else hard
        soft = min(bound, ceiling)
        # At the soft CPU limit the process gets a distinct signal; at the hard one it is killed.
        resource.setrlimit(limit, (soft, min(soft + (limit == resource.RLIMIT_CPU), ceiling)))
