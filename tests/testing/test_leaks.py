"""The leak check notices whatever a block leaves behind, and names it."""

import asyncio
import os
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from sidestream.store.blobs import folder as blobs
from sidestream.store.blobs.folder import BlobFolder
from sidestream.testing import no_leaks
from sidestream.testing.leaks import LeakError

ROUNDS = 3


def an_open_file(folder: Path) -> Callable[[], object]:
    descriptor = os.open(folder / "left", os.O_CREAT | os.O_RDWR)
    return lambda: os.close(descriptor)


def an_open_folder(folder: Path) -> Callable[[], object]:
    descriptor = os.open(folder, os.O_RDONLY)
    return lambda: os.close(descriptor)


def a_pipe(folder: Path) -> Callable[[], object]:
    ends = os.pipe()
    return lambda: [os.close(end) for end in ends]


def a_thread(folder: Path) -> Callable[[], object]:
    done = threading.Event()
    threading.Thread(target=done.wait, name="left").start()
    return done.set


def a_task(folder: Path) -> Callable[[], object]:
    return asyncio.create_task(asyncio.Event().wait(), name="left").cancel


@pytest.mark.parametrize("leave", [an_open_file, an_open_folder, a_pipe, a_thread, a_task])
async def test_resource_outliving_its_block_is_named(tmp_path: Path, leave: Callable[[Path], Callable[[], object]]):
    async def left_open() -> Callable[[], object]:
        return leave(tmp_path)

    free: Callable[[], object] | None = None
    with pytest.raises(LeakError) as caught:
        async with no_leaks(ROUNDS):
            free = await left_open()
    assert free is not None
    free()
    assert "left behind" in str(caught.value)


async def test_descriptor_reused_for_other_file_counts_as_new(tmp_path: Path):
    first = os.open(tmp_path, os.O_RDONLY)

    async def block() -> None:
        async with no_leaks(ROUNDS):
            os.close(first)
            assert os.open(tmp_path / "second", os.O_CREAT | os.O_RDWR) == first

    with pytest.raises(LeakError, match="second"):
        await block()
    os.close(first)


async def test_descriptor_left_by_each_blob_flush_is_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, kept = BlobFolder(tmp_path / "blobs"), []

    class KeptOpen:
        def __getattr__(self, name: str):
            return getattr(os, name)

        def close(self, descriptor: int) -> None:
            kept.append(descriptor)

    async with no_leaks(ROUNDS):
        folder.put(sha256(b"a").hexdigest(), b"a")
    monkeypatch.setattr(blobs, "os", KeptOpen())
    with pytest.raises(LeakError, match="blobs"):
        async with no_leaks(ROUNDS):
            folder.put(sha256(b"b").hexdigest(), b"b")
    for descriptor in kept:
        os.close(descriptor)
