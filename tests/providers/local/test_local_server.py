"""The server is one per process, is private, and never outlives its owner."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import aiohttp
import pytest

from providers.local.embedded import skip_without
from requirements import requirement
from sidestream import Agent
from sidestream.errors import ConfigurationError, MissingExtraError
from sidestream.providers.local import stop
from sidestream.providers.local.files import CHAT
from sidestream.providers.local.server import running_pid, running_server, stop_now
from sidestream.providers.local.sources import THREADS_VARIABLE
from sidestream.providers.openai.chat import OpenAIChatOptions
from support.children import started

skip_without("xllamacpp", model="smollm2-135m")

BOUND_S = 30
OPTIONS = OpenAIChatOptions(temperature=0, max_completion_tokens=4)
OWNER = """
import asyncio, sys
from sidestream.providers.local.server import running_pid, running_server

asyncio.run(running_server())
print(running_pid(), flush=True)
if sys.argv[1] == "waits":
    sys.stdin.read()
"""


def ended(descriptor: int) -> bool:
    """True once the process behind a pidfd has ended, be it reaped or not."""
    return bool(select.select([descriptor], [], [], BOUND_S)[0])


def shown_of(pid: int | None) -> bytes:
    """What other processes may see of one, where the system shows it."""
    files = [Path(f"/proc/{pid}/{name}") for name in ("cmdline", "environ")]
    return b"".join(file.read_bytes() for file in files if file.exists())


@pytest.mark.usefixtures("connections")
async def test_agents_share_one_server_without_blocking_loop() -> None:
    await stop()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    try:
        addresses = await asyncio.gather(*(running_server() for _ in range(3)))
    finally:
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
    assert turns > 10
    assert len(set(addresses)) == 1
    first = running_pid()
    await asyncio.gather(*(Agent("local", options=OPTIONS).send("Repeat this word: yes") for _ in range(3)))
    assert running_pid() == first is not None


def test_consecutive_event_loops_share_one_server() -> None:
    agent = Agent("local", options=OPTIONS)
    assert agent.send_sync("Repeat this word: yes").output
    first = running_pid()
    assert agent.send_sync("Repeat this word: yes").output
    assert running_pid() == first is not None


async def test_cancelled_waiter_does_not_stop_server_start() -> None:
    await stop()
    waiting = [asyncio.create_task(running_server()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert (await waiting[1]).url.startswith("http://127.0.0.1:")


async def test_server_requires_key_and_key_stays_hidden() -> None:
    address = await running_server()
    async with aiohttp.ClientSession() as session:
        for key, status in (("wrong", 401), (address.key, 200)):
            headers = {"Authorization": f"Bearer {key}"}
            async with session.get(f"{address.url}/v1/models", headers=headers) as answer:
                assert answer.status == status
    assert address.key not in repr(address)
    assert address.key.encode() not in shown_of(running_pid())


@pytest.mark.usefixtures("connections")
async def test_stopped_server_exits_and_next_request_starts_another() -> None:
    await running_server()
    pid = running_pid()
    assert pid is not None
    with ExitStack() as stack:
        descriptor = os.pidfd_open(pid)
        stack.callback(os.close, descriptor)
        await stop()
        assert ended(descriptor)
    assert running_pid() is None
    assert (await Agent("local", options=OPTIONS).send("Repeat this word: yes")).output
    assert running_pid() not in (None, pid)


@pytest.mark.usefixtures("connections")
async def test_dead_server_is_replaced() -> None:
    await running_server()
    pid = running_pid()
    assert pid is not None
    with ExitStack() as stack:
        descriptor = os.pidfd_open(pid)
        stack.callback(os.close, descriptor)
        os.kill(pid, signal.SIGKILL)
        assert ended(descriptor)
    assert (await Agent("local", options=OPTIONS).send("Repeat this word: yes")).output
    assert running_pid() not in (None, pid)


@requirement("R91")
@pytest.mark.parametrize("end", ["leaves", "waits"], ids=["that ends", "that is killed"])
def test_server_never_outlives_its_owner(end: str) -> None:
    pipe = subprocess.PIPE
    with started(sys.executable, "-c", OWNER, end, stdin=pipe, stdout=pipe, encoding="utf-8") as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        descriptor = None
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
        if end == "waits":
            assert owner.poll() is None
            assert descriptor is not None
            owner.kill()
        owner.wait(BOUND_S)
    if descriptor is not None:
        try:
            assert ended(descriptor)
        finally:
            os.close(descriptor)


def shadow(folder: Path, size_bytes: int | None) -> None:
    """A package of the model's name that is found first, with a model file of zeros, or none."""
    package = folder / CHAT.module
    package.mkdir()
    (package / "__init__.py").touch()
    if size_bytes is not None:
        with (package / CHAT.files[0].path).open("wb") as file:
            file.truncate(size_bytes)


@pytest.mark.parametrize(
    ("size_bytes", "code", "said"),
    [
        (None, 2, "sidestream local install"),
        (1000, 2, "is damaged; run `sidestream local install`"),
        (CHAT.files[0].size_bytes, 1, "did not start"),
    ],
    ids=["without its file", "with a short file", "with a file that is none"],
)
def test_unrunnable_model_fails_with_one_line_reason(
    tmp_path: Path, size_bytes: int | None, code: int, said: str
) -> None:
    shadow(tmp_path, size_bytes)
    done = subprocess.run(
        [sys.executable, "-m", "sidestream.cli", "-m", "local", "--no-log", "hi"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


async def test_missing_runtime_error_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    await stop()
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MissingExtraError) as missing:
        await Agent("local").send("hi")
    assert missing.value.extra == "local"
    assert running_pid() is None


async def test_invalid_thread_count_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_now()
    monkeypatch.setenv(THREADS_VARIABLE, "many")
    with pytest.raises(ConfigurationError, match=THREADS_VARIABLE):
        await running_server()
