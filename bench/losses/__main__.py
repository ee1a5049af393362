"""`python -m bench.losses`: plays scripted answers to Sidestream and its peers, and reports what each shows of them."""

import argparse
import asyncio
import datetime
import json
import platform
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.environments import ROOT, prepare, versions
from bench.losses.judge import JUDGES, NOT_TRIED, Cell, Observation
from bench.losses.libraries import LIBRARIES, Library
from bench.losses.probes import PROBES
from bench.losses.report import README, is_whole, table, with_table, write
from bench.processes import environment

CHILD_S = 600


def main() -> None:
    args = _parser().parse_args()
    chosen = _chosen(args.peers)

    def report(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    peers, left_out = prepare([one.peer for one in chosen if one.peer], report, upgrade=args.upgrade)
    pythons = {one.title: peers.get(one.peer) if one.peer else Path(sys.executable) for one in chosen}
    cells = asyncio.run(_all(chosen, pythons, left_out))
    known = versions(peers)
    found: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "libraries": {
            one.title: {"version": known.get(one.peer or "sidestream", ""), "api": one.api} for one in chosen
        },
        "rows": {
            probe.name: {
                "title": probe.title,
                "cells": {one.title: _json(cells[one.title][probe.name]) for one in chosen},
            }
            for probe in PROBES
        },
    }
    if args.json:
        print(json.dumps(found))
        return
    print(table(found))
    if is_whole(found) and not left_out:
        print(f"\nwritten to {write(found)}")
        README.write_text(with_table(README.read_text("utf-8"), found), "utf-8")


async def _all(
    libraries: list[Library], pythons: dict[str, Path | None], left_out: dict[str, str]
) -> dict[str, dict[str, Cell]]:
    """One library after the other, each in a process of its own."""
    cells: dict[str, dict[str, Cell]] = {}
    for library in libraries:
        python = pythons[library.title]
        if python is None:
            reason = Cell(NOT_TRIED, f"not installed: {left_out.get(library.peer or '', '')}")
            cells[library.title] = {probe.name: reason for probe in PROBES}
            continue
        print(f"probing {library.title}", file=sys.stderr, flush=True)
        cells[library.title] = await observe(library, python)
    return cells


async def observe(library: Library, python: Path) -> dict[str, Cell]:
    """Plays every probe to this library, each from a provider of its own."""
    async with AsyncExitStack() as stack:
        fakes = {probe.name: await stack.enter_async_context(probe.provider()) for probe in PROBES}
        tasks = [{"name": probe.name, "tool": probe.tool, "url": fakes[probe.name].base_url} for probe in PROBES]
        child = await asyncio.create_subprocess_exec(
            python,
            "-m",
            "bench.losses.child",
            f"bench.losses.ways.{library.module}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(ROOT),
            cwd=ROOT,
        )
        try:
            async with asyncio.timeout(CHILD_S):
                output, trouble = await child.communicate(json.dumps(tasks).encode())
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode:
            reason = Cell(NOT_TRIED, f"its process failed: {trouble.decode(errors='replace').strip()[-300:]}")
            return {probe.name: reason for probe in PROBES}
        recorded = json.loads(output.strip().splitlines()[-1])
        return {
            name: JUDGES[name](Observation(library=library, requests=fakes[name].requests, **entry))
            for name, entry in recorded.items()
        }


def _json(cell: Cell) -> dict[str, str]:
    return {"verdict": cell.verdict, "text": cell.text, "evidence": cell.evidence}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.losses", description=__doc__)
    parser.add_argument("--peers", help="only these, comma-separated, or `none`; writes no file")
    parser.add_argument("--upgrade", action="store_true", help="install the newest versions of the peers again")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON and write no file")
    return parser


def _chosen(names: str | None) -> list[Library]:
    if names is None:
        return list(LIBRARIES)
    known = {library.peer for library in LIBRARIES if library.peer}
    wanted = set() if names == "none" else set(names.split(","))
    if unknown := wanted - known:
        raise SystemExit(f"unknown peer {', '.join(sorted(unknown))}; available: {', '.join(sorted(known))}")
    return [library for library in LIBRARIES if library.peer is None or library.peer in wanted]


if __name__ == "__main__":
    main()
