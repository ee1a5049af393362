"""A server with the API of S3 for the test run: moto's, in a process of its own, on 127.0.0.1."""

import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from support.waiting import wait_until

START_S = 60.0
KEY, SECRET = "AKIACANARYKEY", "c4n4ry-s3cret-key"
_ADDRESS = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")


def environment(endpoint: str) -> dict[str, str]:
    """What a client needs to know."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


@contextmanager
def s3_server() -> Generator[str]:
    """The address of a server that holds the bucket `talks`."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
            server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            endpoint = _address(log)
            request = urllib.request.Request(f"{endpoint}/talks", method="PUT")
            urllib.request.urlopen(request, timeout=START_S).close()
            yield endpoint
        finally:
            server.kill()
            server.wait(START_S)


def _address(log: Path) -> str:
    return wait_until(lambda: _ADDRESS.search(log.read_text()), within_s=START_S, pause_s=0.05, explain=log.read_text)[
        1
    ]
