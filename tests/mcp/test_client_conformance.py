"""The public conformance suite for MCP clients, with our client: every scenario that a protocol version requires."""

import asyncio
import json
import re
import sys
import traceback
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from support.npm_packages import INSTALL_TIMEOUT_S, environment, installed, node
from support.places import TESTS

CLIENT = TESTS / "mcp"
PACKAGE = "@modelcontextprotocol/conformance"
VERSIONS = {"conformance-stable": "0.1.16", "conformance-next": "0.2.0-alpha.12"}
"""Folder below `node_modules` → version. Only the newer one knows the protocol of 2026."""
SUITE_TIMEOUT_S = 240
GREEN = re.compile(r"^✓ (\S+): \d+ passed, 0 failed", re.MULTILINE)
FAILED = re.compile(r"^✗ (\S+):", re.MULTILINE)
TIMED = {"sse-retry"}
"""Scenarios that fail a client for being half a second late, as one on a busy machine may be."""
ATTEMPTS = 3

pytestmark = pytest.mark.timeout(INSTALL_TIMEOUT_S + SUITE_TIMEOUT_S)


@pytest.fixture(scope="session")
def suites() -> Path:
    """The folder with both versions of the suite."""
    return installed("conformance", {name: f"{name}@npm:{PACKAGE}@{version}" for name, version in VERSIONS.items()})


@asynccontextmanager
async def clients(folder: Path) -> AsyncGenerator[Path]:
    """The socket on which the launcher of each scenario gets its client, in this process, one at a time."""
    import_module("mcp")  # not while the first client's time counts
    # Not by its name: the package `mcp` has it already.
    spec = spec_from_file_location("conformance_client", CLIENT / "conformance_client.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)

    # The suite starts all scenarios at the same time; on a busy machine their clients would exceed time limits.
    alone = asyncio.Lock()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            given: dict[str, Any] = json.loads(await reader.readline())
            async with alone:
                await module.drive(given["url"], given["scenario"], given["context"])
        except Exception:
            writer.write(traceback.format_exc().encode())
        finally:
            writer.close()

    path = folder / "clients"
    async with await asyncio.start_unix_server(serve, path, limit=2**24):
        yield path


async def run_suite(package: Path, folder: Path, *options: str) -> tuple[int, str]:
    """The exit code of the suite, and what it printed."""
    async with clients(folder) as socket:
        launcher = f"{sys.executable} -I -S {CLIENT / 'conformance_launcher.py'} {socket}"
        process = await asyncio.create_subprocess_exec(
            node(), package / "dist" / "index.js",
            "client", "--command", launcher, "--timeout", str(SUITE_TIMEOUT_S * 500), *options,
            cwd=folder, env=environment(), stdout=PIPE, stderr=STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(SUITE_TIMEOUT_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def green(package: Path, folder: Path, output: str) -> set[str]:
    """The scenarios that passed. One that is only about time may be repeated, alone."""
    passed = set(GREEN.findall(output))
    for scenario in TIMED.intersection(FAILED.findall(output)):
        for _ in range(ATTEMPTS):
            code, _ = await run_suite(package, folder, "--scenario", scenario)
            if code == 0:
                passed.add(scenario)
                break
    return passed


def required(package: Path, version: str) -> set[str]:
    """The client scenarios of a frozen list."""
    text = (package / "requirements" / f"{version}.yaml").read_text("utf-8")
    section = re.search(r"^client:\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    return set(re.findall(r"^\s+- (\S+)", section[1], re.MULTILINE))


@requirement("R80")
@pytest.mark.parametrize(("version", "count"), [("2026-07-28", 32), ("2025-11-25", 18)])
async def test_every_scenario_required_by_protocol_version_passes(
    suites: Path, tmp_path: Path, version: str, count: int
):
    package = suites / "conformance-next"
    code, output = await run_suite(package, tmp_path, "--requirements", version)
    passed = await green(package, tmp_path, output)
    assert required(package, version) - passed == set(), output[-4000:]
    assert len(required(package, version)) == count
    assert code == 0 or passed != set(GREEN.findall(output))


@requirement("R80")
async def test_every_scenario_of_stable_suite_passes(suites: Path, tmp_path: Path):
    package = suites / "conformance-stable"
    _, output = await run_suite(package, tmp_path, "--suite", "all")
    scenarios = set(re.findall(r"^[✓✗] (\S+):", output, re.MULTILINE))
    assert len(scenarios) == 26, output[-4000:]
    # Its metadata names another issuer than the server's origin, which is refused. The newer suite has mended it.
    passed = await green(package, tmp_path, output)
    assert scenarios - passed == {"auth/2025-03-26-oauth-metadata-backcompat"}, output[-4000:]
