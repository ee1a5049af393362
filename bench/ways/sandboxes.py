"""Containers in which code runs here, and what they are measured against: the bare interpreter."""

import asyncio
import os
import subprocess
import sys
import time
from statistics import median
from typing import Any

from sidestream.portable.sandbox import choice
from sidestream.portable.sandbox.port import Container, ContainerSpec

_SPEC = ContainerSpec(packages=())
_PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
_BARE = ("-I", "-S", "-c", "print(1)")


async def bare(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """The interpreter of a container alone: started, one line, ended."""
    began = time.perf_counter()
    await asyncio.to_thread(subprocess.run, [_PYTHON, *_BARE], stdout=subprocess.DEVNULL, check=True)
    return {"wall_s": time.perf_counter() - began}


async def cold(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """A container from nothing to the output of its first cell."""
    began = time.perf_counter()
    container = await choice.start("bubblewrap", _SPEC)
    outcome = await _run(container, "print(1)")
    spent = time.perf_counter() - began
    await container.kill()
    return {"wall_s": spent, "logs": outcome}


async def warm(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """The median of cells in a container that has run one."""
    container = await choice.start("bubblewrap", _SPEC)
    await _run(container, "x = 0")
    spent: list[float] = []
    for _ in range(task["cells"]):
        began = time.perf_counter()
        await _run(container, "x += 1; print(x)")
        spent.append(time.perf_counter() - began)
    outcome = await _run(container, "x")
    await container.kill()
    return {"wall_s": median(spent), "logs": outcome}


async def many(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """Containers at once, with a cell each; the memory of the largest process inside."""
    began = time.perf_counter()
    containers = await asyncio.gather(*(choice.start("bubblewrap", _SPEC) for _ in range(task["containers"])))
    outcomes = await asyncio.gather(*(_run(container, "print(1)") for container in containers))
    spent = time.perf_counter() - began
    sizes = await asyncio.gather(*(_run(container, _RESIDENT) for container in containers))
    await asyncio.gather(*(container.kill() for container in containers))
    return {"wall_s": spent, "resident_mb": max(int(size) for size in sizes) / 1024, "worked": outcomes.count("1\n")}


_RESIDENT = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


async def _run(container: Container, code: str) -> str:
    return (await container.run(code, lambda text: None)).logs


PROGRAMS = {"sandbox-bare": bare, "sandbox-cold": cold, "sandbox-warm": warm, "sandbox-many": many}
