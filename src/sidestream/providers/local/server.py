"""The llama.cpp servers of this process, which start on first use, are shared by all agents and stop at exit."""

import asyncio
import atexit
import json
import os
import secrets
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from sidestream.errors import ConfigurationError, ConnectError
from sidestream.providers.local.files import CHAT, folder_of
from sidestream.providers.local.program import MARK
from sidestream.providers.local.sources import ModelSource, source_of

HERE = Path(__file__).resolve().parent
ANSWER_TOKENS = 1024
"""Maximum output tokens of the embedded model, since small models may repeat themselves endlessly."""
PARALLEL = 2
"""Concurrent requests. Others wait."""
START_TIMEOUT_S = 120.0
STEP_TIMEOUT_S = 3.0
"""Maximum duration of each shutdown step."""
LOG_LINES = 30
SHOWN_CHARACTERS = 500


class LocalEndpoint(Struct, frozen=True):
    """The server's URL and its key."""

    url: str
    key: str

    def __repr__(self) -> str:
        return f"Address({self.url!r})"


class LlamaServer:
    """A server process. A thread reads its output, so that the pipe never fills."""

    def __init__(self, source: ModelSource, model: Path) -> None:
        self._owner = os.getpid()
        self._key = secrets.token_urlsafe(32)
        self._has_ended = False
        self.source = source
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self.address: Future[LocalEndpoint] = Future()
        # If a waiting caller is cancelled, the start must continue for the others.
        self.address.set_running_or_notify_cancel()
        self._process = subprocess.Popen(
            # -P keeps modules beside the program from shadowing others of the same name.
            [sys.executable, "-P", str(HERE / "program.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal must not kill it before the run has ended.
        )
        is_ours = source.is_embedded or source.uses_own_template
        settings = {
            "model": str(model),
            "alias": source.name,
            "template": (HERE / "chat.jinja").read_text("utf-8") if is_ours else None,
            "key": self._key,
            "context_tokens": source.runtime.context_tokens,
            "answer_tokens": ANSWER_TOKENS if source.is_embedded else -1,
            "is_deterministic": source.is_embedded,
            "parallel": PARALLEL,
            "threads": source.runtime.threads,
            "gpu_layers": source.runtime.gpu_layers,
            "path": [os.path.abspath(entry) for entry in sys.path],
        }
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # The process has exited already; its output says why.
            self._process.stdin.write(json.dumps(settings).encode() + b"\n")
            self._process.stdin.flush()
        threading.Thread(target=self._read, name="sidestream-local", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def descriptors(self) -> set[int]:
        """File descriptors of the open pipes."""
        pipes = (self._process.stdin, self._process.stdout)
        return {pipe.fileno() for pipe in pipes if pipe is not None and not pipe.closed}

    @property
    def is_usable(self) -> bool:
        """Whether the server is running and this is the process that started it, not a fork."""
        return os.getpid() == self._owner and not self._has_ended and self._process.poll() is None

    def stop(self) -> None:
        """Close the server's stdin, then send SIGTERM, then SIGKILL, each with a bounded wait."""
        if os.getpid() != self._owner:
            return
        process = self._process
        assert process.stdin is not None
        for step in (process.stdin.close, process.terminate, process.kill):
            with suppress(OSError):
                step()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STEP_TIMEOUT_S)
                return

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                text = line.decode("utf-8", "replace").strip()
                if text.startswith(MARK) and not self.address.done():
                    self.address.set_result(LocalEndpoint(text.removeprefix(MARK), self._key))
                elif text:
                    self._log.append(text)
        self._has_ended = True  # `poll` returns None while this thread waits for the process.
        code = self._process.wait()
        if not self.address.done():
            output = " / ".join(self._log)[-SHOWN_CHARACTERS:] or "none"
            message = f"the embedded model's server did not start (exit code {code}); its last output: {output}"
            self.address.set_exception(ConnectError(message, code="local-server"))


_lock = threading.Lock()
_shared: list[LlamaServer] = []
"""Running servers, one per model."""


async def running_server(source: ModelSource | None = None) -> LocalEndpoint:
    """Return the endpoint of a model's server, and start the server if necessary. None means the embedded model.

    Raises ConfigurationError if the runtime or the model is not installed, ConnectError if the server does not start.
    """
    server = _server(source or source_of(CHAT.model))
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            return await asyncio.wrap_future(server.address)
    except TimeoutError:
        await asyncio.to_thread(server.stop)
    raise ConnectError(f"the embedded model's server did not start within {START_TIMEOUT_S:g} s", code="local-server")


async def stop() -> None:
    """Stop all running servers. The next request starts a new one."""
    await asyncio.to_thread(stop_now)


def stop_now() -> None:
    """Stop all running servers, synchronously."""
    with _lock:
        while _shared:
            _shared.pop().stop()


atexit.register(stop_now)


def running_pid() -> int | None:
    """Return the process id of a running server, or None if there is none."""
    return next((server.pid for server in _shared if server.is_usable), None)


def kept_descriptors() -> set[int]:
    """Return the open descriptors of the running servers, so that leak checks can ignore them."""
    return {descriptor for server in _shared for descriptor in server.descriptors}


def _server(source: ModelSource) -> LlamaServer:
    with _lock:
        for server in [server for server in _shared if not server.is_usable]:
            _shared.remove(server)
            server.stop()
        found = next((server for server in _shared if server.source == source), None)
        if found is None:
            found = LlamaServer(source, _model_path(source))
            _shared.append(found)
        return found


def _model_path(source: ModelSource) -> Path:
    import importlib.util

    from sidestream.errors import MissingExtraError
    from sidestream.providers.local.files import WITH_RUNTIME

    has_runtime = importlib.util.find_spec("xllamacpp") is not None
    if not source.is_embedded:
        if not has_runtime:
            raise MissingExtraError("local", "A local model")
        return Path(source.path)
    try:
        folder = folder_of(CHAT)
    except ConfigurationError:
        if has_runtime:
            raise
        raise ConfigurationError(f"the embedded model is not installed; run `{WITH_RUNTIME}`") from None
    if not has_runtime:
        raise MissingExtraError("local", "The embedded model")
    return folder / CHAT.files[0].path
